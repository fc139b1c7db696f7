import pytest
import torch
from optimized import (
    ALL,
    SGD,
    Lion,
    adamw,
    declaring,
    lion,
    master_weights,
    muon,
    muon_and_adamw,
    parity,
    rising,
    with_groups,
    with_masters,
    with_masters_inside,
)
from zoo import LEARNING_RATE, ZooRun

from mothertongue_arbiter import Verdict
from mothertongue_arbiter.declared_optimizer import Group, Optimizer
from mothertongue_arbiter.torch.run.subject import Unavailable


@pytest.mark.parametrize("numbers", [{"foreach": True}, {"fused": True}, {"foreach": False}], ids=str)
def test_every_implementation_of_adamw_is_adamw(numbers):
    check = parity(with_groups(declaring(), **numbers))
    assert check.verdict == Verdict.PASS, check
    assert "20 adamw tensors" in check.evidence


def test_without_a_declaration_the_numbers_of_the_optimizer_are_taken_and_that_is_said():
    check = parity(ZooRun())
    assert check.verdict == Verdict.PASS, check
    assert "none are declared" in check.evidence


def test_a_later_step_continues_from_the_moments_of_the_optimizer():
    run = declaring(adamw(learning_rate=rising))
    run.learning_rate = rising
    for step in range(4):
        run.train_step(step)
    assert parity(run, step=4).verdict == Verdict.PASS


def test_sgd_with_momentum_and_decay_passes():
    group = Group(parameters=ALL, algorithm="sgd", learning_rate=LEARNING_RATE, weight_decay=0.02, **SGD)
    run = declaring(Optimizer(groups=(group,), clip_norm=0.5))
    run.optimizer = torch.optim.SGD(run.model.parameters(), lr=LEARNING_RATE, weight_decay=0.02, **SGD)
    assert parity(run).verdict == Verdict.PASS


def test_a_lion_written_by_hand_passes():
    run = declaring(lion(betas=(0.9, 0.99), weight_decay=0.1))
    run.optimizer = Lion(run.model.parameters(), lr=LEARNING_RATE, betas=(0.9, 0.99), weight_decay=0.1)
    assert parity(run).verdict == Verdict.PASS
    assert parity(run, step=1).verdict == Verdict.PASS  # the state is that of a fresh optimizer


@pytest.mark.parametrize("declared", [True, False])
def test_two_optimizers_with_muon_pass(declared):
    run = muon_and_adamw(ZooRun())
    check = parity(declaring(muon(), run) if declared else run)
    assert check.verdict == Verdict.PASS, check
    assert "14 muon" in check.evidence


def test_a_warm_up_from_zero_passes_when_declared_so():
    run = declaring(adamw(learning_rate=lambda step: LEARNING_RATE * step / 10), warmup_steps=10)
    run.learning_rate = lambda step: LEARNING_RATE * step / 10
    assert parity(run).verdict == Verdict.PASS


def test_a_tensor_without_gradient_is_passed_over_and_counts_nothing():
    run = declaring(adamw(learning_rate=LEARNING_RATE, betas=(0.9, 0.95)), conditional=("*gate*",))
    with_groups(run, betas=(0.9, 0.95))
    accumulate = run.accumulate

    def sometimes(step, rank):
        accumulate(step, rank)
        if step == 1:
            run.model.blocks[0].gate.weight.grad = None

    run.accumulate = sometimes
    assert parity(run).verdict == Verdict.PASS


def test_a_loss_scale_that_is_undone_passes_also_inside_a_fused_step():
    run = with_groups(declaring(Optimizer(groups=adamw().groups)), fused=True)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)

    def train_step(step):
        run.optimizer.zero_grad()
        scaler.scale(run.loss(run.model, run.batch(step))).backward()
        scaler.step(run.optimizer)
        scaler.update()

    run.train_step = train_step
    assert parity(run).verdict == Verdict.PASS


def test_frozen_parameters_pass():
    run = declaring(frozen=("blocks.0.*",))
    run.model.blocks[0].requires_grad_(False)
    run.make_optimizer()
    assert parity(run).verdict == Verdict.PASS


@pytest.mark.parametrize("accumulation", [1, 2])
def test_a_step_written_by_hand_is_judged_by_the_weights_alone(accumulation):
    run = declaring(Optimizer(groups=adamw(decay=0.0).groups), ZooRun(accumulation=accumulation))
    hidden, run.optimizer = torch.optim.AdamW(run.model.parameters(), weight_decay=0.0), None

    def train_step(step):
        hidden.zero_grad()
        run.accumulate(step)
        hidden.step()

    run.train_step = train_step
    assert parity(run).verdict == Verdict.PASS
    run = declaring(Optimizer(groups=adamw(learning_rate=2e-3).groups), run)
    assert parity(run).verdict == Verdict.FAIL


def test_low_precision_weights_that_follow_their_masters_pass():
    assert parity(with_masters(declaring(master_weights()))).verdict == Verdict.PASS


def test_masters_out_of_sight_are_allowed_for():
    assert parity(with_masters_inside(0.02)).verdict == Verdict.PASS
    assert parity(with_masters_inside(0.03)).verdict == Verdict.FAIL


def test_what_rounding_hides_is_not_said_to_agree():
    run = with_masters(declaring(master_weights()))
    run.optimizer = None
    with pytest.raises(Unavailable, match="rounding"):
        parity(run)
