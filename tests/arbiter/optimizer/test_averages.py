import copy
from dataclasses import replace

import pytest
import torch
from zoo import ZooRun

from mothertongue_arbiter import Verdict
from mothertongue_arbiter.torch.optimizer.averages import averaged_weights
from mothertongue_arbiter.torch.optimizer.steps import take_steps
from mothertongue_arbiter.torch.run.state import preserved
from mothertongue_arbiter.torch.run.subject import Unavailable

DECAY = 0.99


class Averaged(ZooRun):
    """The zoo with an average of its weights, in a mapping."""

    def __post_init__(self):
        super().__post_init__()
        self.declared = replace(self.declared, ema_decay=DECAY)
        self.ema = {name: one.detach().clone() for name, one in self.model.named_parameters()}

    def train_step(self, step):
        before = copy.deepcopy(self.model)
        super().train_step(step)
        self.average(before)

    @torch.no_grad()
    def average(self, before):
        for name, one in self.model.named_parameters():
            self.ema[name].mul_(DECAY).add_(one, alpha=1 - DECAY)


@pytest.fixture
def check(subject):
    def averaged(run):
        with preserved(run):
            return averaged_weights(subject(run), take_steps(subject(run)))

    return averaged


def averaging(rule):
    """A run whose average is `rule(average, weights, weights before the step)`."""
    run = Averaged()

    @torch.no_grad()
    def average(before):
        old = dict(before.named_parameters())
        for name, one in run.model.named_parameters():
            run.ema[name].copy_(rule(run.ema[name], one, old[name]))

    run.average = average
    return run


def test_a_mapping_that_follows_the_weights_passes(check):
    found = check(Averaged())
    assert found.verdict == Verdict.PASS, found


def test_the_average_is_as_before_after_the_audit(check):
    run = Averaged()
    before = {name: one.clone() for name, one in run.ema.items()}
    check(run)
    assert all(torch.equal(run.ema[name], one) for name, one in before.items())


def test_a_module_of_torch_passes_from_its_first_update_on(check):
    run = Averaged()
    average = torch.optim.swa_utils.get_ema_multi_avg_fn(DECAY)
    run.ema = torch.optim.swa_utils.AveragedModel(run.model, multi_avg_fn=average)
    run.average = lambda before: run.ema.update_parameters(run.model)
    assert check(run).verdict == Verdict.PASS
    assert int(run.ema.n_averaged) == 0
    run.train_step(0)
    assert check(run).verdict == Verdict.PASS


@pytest.mark.parametrize(
    ("rule", "named"),
    [
        (lambda average, new, old: 0.9 * average + 0.1 * new, "a decay of 0.9, declared 0.99"),
        (lambda average, new, old: 0.01 * average + 0.99 * new, "swapped"),
        (lambda average, new, old: DECAY * average + (1 - DECAY) * old, "before the step"),
        (lambda average, new, old: average, "never updated"),
        (lambda average, new, old: new, "copy of the weights"),
        (lambda average, new, old: DECAY * average + (1 - DECAY) * new.abs(), "another rule"),
    ],
)
def test_a_wrong_average_is_named(check, rule, named):
    found = check(averaging(rule))
    assert found.verdict == Verdict.FAIL
    assert named in found.cause


@pytest.mark.parametrize("late", [0, 1])
def test_the_usual_ramp_of_a_young_average_passes_and_is_said(check, late):
    run = averaging(None)
    steps = iter(range(late, 10))

    @torch.no_grad()
    def average(before):
        n = next(steps)
        for name, one in run.model.named_parameters():
            run.ema[name].lerp_(one, 1 - (1 + n) / (10 + n))

    run.average = average
    found = check(run)
    assert found.verdict == Verdict.PASS, found
    assert "usual ramp" in found.evidence


def test_an_average_of_another_kind_is_not_judged(check):
    run = Averaged()
    run.ema, run.average = object(), lambda before: None
    with pytest.raises(Unavailable, match="`ema` is a object"):
        check(run)


def test_an_average_that_is_the_weights_is_named(check):
    run = Averaged()
    run.ema = {name: one.detach() for name, one in run.model.named_parameters()}
    assert "alias" in check(run).cause


def test_an_average_in_bfloat16_that_cannot_follow_is_named(check):
    run = Averaged()
    run.ema = {name: one.bfloat16() for name, one in run.ema.items()}
    found = check(run)
    assert found.verdict == Verdict.FAIL
    assert "keep it in float32" in found.cause


def test_a_tensor_that_the_average_lacks_is_named(check):
    run = Averaged()
    del run.ema["norm"]
    run.average = lambda before: None
    found = check(run)
    assert found.verdict == Verdict.FAIL
    assert [finding.subject for finding in found.findings] == ["norm"]


def test_without_a_declared_decay_nothing_is_judged(check):
    run = Averaged()
    run.declared = replace(run.declared, ema_decay=None)
    with pytest.raises(Unavailable, match="ema_decay"):
        check(run)


def test_tensors_that_are_left_out_of_the_average_are_told_from_one_that_stands_still(check):
    run = Averaged()
    average = run.average

    def only_matrices(before):
        held = {name: one.clone() for name, one in run.ema.items()}
        average(before)
        for name, one in held.items():
            if one.dim() == 1:
                run.ema[name].copy_(one)

    run.average = only_matrices
    found = check(run)
    assert found.verdict == Verdict.FAIL
    assert found.cause.startswith("these are left out of the average")
