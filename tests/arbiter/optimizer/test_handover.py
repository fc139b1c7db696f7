import random
from dataclasses import replace

import pytest
import torch
from torch import nn
from zoo import LEARNING_RATE, ZooRun

from mothertongue_arbiter import Verdict
from mothertongue_arbiter.declared_optimizer import Group, Optimizer
from mothertongue_arbiter.torch.gradients.rounding import measure_rounding
from mothertongue_arbiter.torch.optimizer.handover import handed_gradient
from mothertongue_arbiter.torch.optimizer.steps import take_steps
from mothertongue_arbiter.torch.run.state import preserved
from mothertongue_arbiter.torch.run.subject import Unavailable

CLIP = 0.5
GROUPS = (Group(parameters=("*",), learning_rate=LEARNING_RATE),)
SCALE = 65536.0


def run_that(*, clip=CLIP, clip_value=None, accumulation=1, **facts):
    """A run that declares this clipping; the zoo clips to 0.5, and its gradients are longer."""
    run = ZooRun(accumulation=accumulation)
    optimizer = Optimizer(groups=GROUPS, clip_norm=clip, clip_value=clip_value)
    run.declared = replace(run.declared, optimizer=optimizer, **facts)
    return run


def clipping(run, clip):
    """Let the step of `run` do `clip(parameters)` between backward and optimizer."""

    def train_step(step):
        run.optimizer.zero_grad()
        run.accumulate(step)
        clip(list(run.model.parameters()))
        run.optimizer.step()

    run.train_step = train_step
    return run


def scale_all(parameters, factor):
    for parameter in parameters:
        parameter.grad.mul_(factor)


@pytest.fixture
def check(subject):
    def handed(run):
        one = subject(run)
        with preserved(run):
            return handed_gradient(one, take_steps(one), measure_rounding(one))

    return handed


def test_clipping_as_declared_passes_and_is_counted(check):
    found = check(run_that())
    assert found.verdict == Verdict.PASS
    assert "clipped as declared in 3" in found.evidence


@pytest.mark.parametrize("clip", [None, 1e3])
def test_a_gradient_that_needs_no_clipping_is_handed_over_whole(check, clip):
    assert check(clipping(run_that(clip=clip), lambda parameters: None)).verdict == Verdict.PASS


def test_clipping_by_value_is_judged_element_by_element(check):
    def clamp(parameters):
        nn.utils.clip_grad_value_(parameters, 0.01)

    assert check(clipping(run_that(clip=None, clip_value=0.01), clamp)).verdict == Verdict.PASS
    assert check(clipping(run_that(clip=None, clip_value=0.02), clamp)).verdict == Verdict.FAIL


def test_a_loss_scale_that_is_undone_before_clipping_passes(check):
    def unscaled(parameters):
        scale_all(parameters, SCALE)
        scale_all(parameters, 1 / SCALE)
        nn.utils.clip_grad_norm_(parameters, CLIP)

    assert check(clipping(run_that(), unscaled)).verdict == Verdict.PASS


def clip_before_unscale(parameters):
    scale_all(parameters, SCALE)
    nn.utils.clip_grad_norm_(parameters, CLIP)
    scale_all(parameters, 1 / SCALE)


def clip_some(parameters):
    total = nn.utils.get_total_norm([one.grad for one in parameters[:8]])
    nn.utils.clip_grads_with_norm_(parameters, CLIP, total)


def clip_each(parameters):
    for one in parameters:
        nn.utils.clip_grad_norm_([one], 0.05)


@pytest.mark.parametrize(
    ("clip", "named"),
    [
        (lambda parameters: None, "not done"),
        (clip_before_unscale, "unscale before clipping"),
        (lambda parameters: nn.utils.clip_grad_norm_(parameters, 0.1), "clipped to the norm 0.1, 0.5"),
        (clip_some, "some parameters only"),
        (clip_each, "one by one"),
    ],
)
def test_wrong_clipping_is_named(check, clip, named):
    found = check(clipping(run_that(), clip))
    assert found.verdict == Verdict.FAIL
    assert named in found.cause


def test_clipping_that_is_not_declared_is_named(check):
    found = check(run_that(clip=None))
    assert "clipped to the norm 0.5, none is declared" in found.cause


@pytest.mark.parametrize(
    ("factor", "facts", "named"),
    [
        (SCALE, {}, "loss scale of 65536 is not undone"),
        (4, {"ranks": 4}, "4 ranks are summed"),
        (1 / 4, {"ranks": 4}, "divided by the 4 ranks once too often"),
        (1.3, {}, "not declared"),
    ],
)
def test_a_gradient_of_the_wrong_length_is_named(check, factor, facts, named):
    run = clipping(run_that(clip=None, **facts), lambda parameters: scale_all(parameters, factor))
    found = check(run)
    assert found.verdict == Verdict.FAIL
    assert named in found.cause


def test_micro_batches_that_are_summed_are_named(check):
    run = clipping(run_that(clip=None, accumulation=2), lambda parameters: None)
    assert check(run).verdict == Verdict.PASS
    run = clipping(run_that(clip=None, accumulation=2), lambda parameters: scale_all(parameters, 2))
    assert "2 micro-batches are summed" in check(run).cause


def test_without_a_declared_optimizer_one_common_factor_is_free(check):
    run = clipping(ZooRun(), lambda parameters: scale_all(parameters, 1.3))
    assert check(run).verdict == Verdict.PASS


def test_a_missing_zero_grad_is_called_by_its_name(check):
    run = run_that()
    run.optimizer.zero_grad = lambda: None
    assert "zero_grad() is missing" in check(run).cause


def test_the_gradient_of_the_step_before_is_called_by_its_name(check):
    run = run_that(clip=None)
    last = []

    def late(parameters):
        now = [one.grad.clone() for one in parameters]
        for one, gradient in zip(parameters, last or now, strict=True):
            one.grad.copy_(gradient)
        last[:] = now

    assert "the gradient of the step before" in check(clipping(run, late)).cause


def test_a_declared_factor_on_a_tensor_may_come_before_or_after_this_moment(check):
    def scaled(parameters):
        run.model.embedding.weight.grad.mul_(0.1)

    run = clipping(run_that(clip=None, gradient_scale={"embedding.*": 0.1}), scaled)
    assert check(run).verdict == Verdict.PASS
    run.declared = replace(run.declared, gradient_scale={})
    assert check(run).verdict == Verdict.FAIL


def test_a_loss_scale_that_doubles_before_it_is_undone_is_named(check):
    calls = []

    def halved(parameters):
        nn.utils.clip_grad_norm_(parameters, CLIP)
        calls.append(1)
        if len(calls) == 2:
            scale_all(parameters, 0.5)

    assert "a loss scale that changed" in check(clipping(run_that(), halved)).cause


def test_a_step_with_dropout_is_compared_without_it(check):
    run = run_that()
    for block in run.model.blocks:
        block.dropout = 0.2
    assert check(run).verdict == Verdict.PASS


def test_where_chance_stays_clipping_is_seen_by_its_bound(check):
    run = run_that()
    loss = run.loss
    run.loss = lambda model, batch: loss(model, batch) * (1 + random.random() / 100)
    with pytest.raises(Unavailable, match="draws random numbers"):
        check(run)
    found = check(clipping(run, lambda parameters: None))
    assert found.verdict == Verdict.FAIL
    assert "clipping is not done" in found.cause


def test_a_closure_is_not_judged(check):
    run = run_that()

    def closure():
        run.accumulate(0)
        return torch.zeros(())

    run.train_step = lambda step: run.optimizer.step(closure)
    with pytest.raises(Unavailable, match="closure"):
        check(run)
