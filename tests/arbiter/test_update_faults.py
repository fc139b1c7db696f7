from dataclasses import replace

import pytest
import torch
from optimized import (
    ALL,
    SGD,
    adamw,
    cause,
    declaring,
    hand_adam,
    master_weights,
    muon,
    muon_and_adamw,
    parity,
    rising,
    with_groups,
    with_masters,
)
from torch import nn
from zoo import LEARNING_RATE, ZooRun

from mothertongue_arbiter import Verdict
from mothertongue_arbiter.declared_optimizer import Group, Optimizer
from mothertongue_arbiter.torch.run.subject import Unavailable


def test_decay_on_gains_is_found_and_measured():
    run = with_groups(declaring(), gain_decay=0.1)
    assert cause(run) == "weight decay 0.1 where none is declared"


def test_decay_ten_times_too_large_is_found_and_measured():
    assert cause(with_groups(declaring(), decay=0.1)) == "weight decay 0.1 where 0.01 is declared"


def test_coupled_decay_is_named():
    run = declaring(adamw(decay=0.1))
    assert "coupled" in cause(with_groups(run, torch.optim.Adam, decay=0.1))


def test_a_schedule_that_is_never_applied_is_named():
    assert "the schedule is not applied" in cause(declaring(adamw(learning_rate=rising)))


def test_a_constant_rate_in_a_declared_warm_up_fails_also_without_a_declared_optimizer():
    run = ZooRun()
    run.declared = replace(run.declared, warmup_steps=10)
    assert cause(run) == "the schedule is never applied"


@pytest.mark.parametrize(
    ("rate", "named"),
    [
        (lambda step: rising(2 * step), "stepped several times"),
        (lambda step: rising(2 * step + 1), "stepped several times"),
        (lambda step: rising(step - 1), "one step late"),
        (lambda step: rising(step + 1), "one step early"),
        (lambda step: 3 * rising(step), "3 times the declared"),
    ],
)
def test_a_wrong_learning_rate_is_named(rate, named):
    run = declaring(adamw(learning_rate=rising))
    run.learning_rate = rate
    assert named in cause(run)


def test_a_wrong_learning_rate_of_muon_is_found_through_its_bfloat16():
    run = declaring(muon(learning_rate=0.021), muon_and_adamw(ZooRun()))
    assert "times the declared" in cause(run)


def test_the_other_size_of_a_muon_step_is_named():
    run = declaring(muon(), muon_and_adamw(ZooRun(), adjust_lr_fn="match_rms_adamw"))
    assert "'moonshot'" in cause(run)


@pytest.mark.parametrize(
    ("numbers", "named"),
    [
        ({"betas": (0.999, 0.9)}, "swapped"),
        ({"betas": (0.9, 0.95)}, "betas (0.9, 0.95)"),
        ({"eps": 1e-4}, "eps 0.0001"),
    ],
)
def test_other_numbers_are_named(numbers, named):
    assert named in cause(with_groups(declaring(), **numbers))


def test_plain_momentum_where_nesterov_is_declared_is_named():
    group = Group(parameters=ALL, algorithm="sgd", learning_rate=LEARNING_RATE, **SGD)
    run = declaring(Optimizer(groups=(group,)))
    run.optimizer = torch.optim.SGD(run.model.parameters(), lr=LEARNING_RATE, momentum=0.9)
    assert "plain" in cause(run)


def test_an_adam_written_by_hand_passes():
    assert parity(hand_adam()).verdict == Verdict.PASS


@pytest.mark.parametrize(
    ("mistake", "named"),
    [
        ({"correct": False}, "no bias correction"),
        ({"forget": True}, "start afresh"),
        ({"dtype": torch.bfloat16}, "in bfloat16"),
        ({"late": True}, "the step before"),
    ],
)
def test_a_mistake_inside_the_optimizer_is_named(mistake, named):
    assert named in cause(hand_adam(**mistake))


@pytest.mark.parametrize("declared", [True, False])
def test_a_step_counter_that_is_set_back_is_found(declared):
    run = declaring() if declared else ZooRun()
    step = run.optimizer.step

    def forgetful():
        step()
        run.optimizer.state.clear()

    run.optimizer.step = forgetful
    assert "start afresh" in cause(run)


def test_moments_that_cannot_be_read_in_the_middle_of_a_run_are_not_guessed():
    run = hand_adam(dtype=torch.float64)
    for step in range(2):
        run.train_step(step)
    for state in run.optimizer.state.values():
        state["mine"] = state.pop("exp_avg")
    with pytest.raises(Unavailable, match="cannot be read"):
        parity(run, step=2)


def test_a_gradient_that_is_no_number_is_called_so():
    run = declaring()
    run.model.blocks[0].up.weight.register_hook(lambda g: g * float("nan"))
    assert "not a finite number" in cause(run)


def test_updates_lost_in_bfloat16_weights_are_named():
    run = declaring()
    run.model.to(torch.bfloat16)
    run.make_optimizer()
    assert "lost to the rounding" in cause(run)


def test_masters_that_are_never_written_back_are_named():
    assert "not written back" in cause(with_masters(declaring(master_weights()), write_back=False))


def test_an_optimizer_that_holds_an_old_copy_is_named():
    run = declaring()
    block = run.model.blocks[0]
    block.q.weight = nn.Parameter(block.q.weight.detach().clone())
    assert "not updated at all" in cause(run)


@pytest.mark.parametrize("declared", [True, False])
def test_an_update_written_into_a_contiguous_copy_is_named(declared):
    """As addcdiv_ did on MPS (pytorch #118115)."""
    run = declaring() if declared else ZooRun()
    weight = run.model.blocks[1].up.weight
    weight.data = weight.data.t().contiguous().t()
    run.make_optimizer()
    step = run.optimizer.step

    def losing():
        kept = weight.detach().clone()
        step()
        weight.data.copy_(kept)

    run.optimizer.step = losing
    assert "not updated at all" in cause(run)


def test_a_second_step_in_one_step_is_named():
    run = declaring()
    train_step = run.train_step
    run.train_step = lambda step: (train_step(step), run.optimizer.step())
    assert "each micro-batch, or twice" in cause(run)


def test_weights_that_something_else_moves_too_are_named():
    run = declaring()
    train_step = run.train_step

    def decaying(step):
        train_step(step)
        with torch.no_grad():
            run.model.norm.mul_(0.999)

    run.train_step = decaying
    assert "outside of optimizer.step()" in cause(run)


def test_a_trained_tensor_that_no_group_owns_fails():
    run = declaring(Optimizer(groups=(Group(parameters=("blocks.*",), learning_rate=LEARNING_RATE),)))
    check = parity(run)
    assert check.verdict == Verdict.FAIL
    assert {finding.subject for finding in check.findings} == {"embedding.weight", "norm"}
