import torch
from zoo import ZooRun

from mothertongue_arbiter import Verdict
from mothertongue_arbiter.torch.handover import handed_gradient
from mothertongue_arbiter.torch.rounding import measure_rounding
from mothertongue_arbiter.torch.steps import STEPS, movement, step_weights, take_steps


def test_real_steps_are_watched_and_the_optimizer_gets_its_method_back(subject):
    run = ZooRun(accumulation=2)
    one = subject(run)
    rounding = measure_rounding(one)
    steps = take_steps(one)
    assert len(steps.records) == STEPS
    assert all(len(record.xrays) == 2 for record in steps.records)
    assert len(steps.moved) == len(list(run.model.parameters()))
    assert "step" not in vars(run.optimizer)
    assert handed_gradient(one, steps, rounding).verdict == Verdict.PASS
    assert step_weights(one, steps).verdict == Verdict.PASS
    assert movement(one, steps).verdict == Verdict.PASS


def test_a_frozen_tensor_that_moves_fails(subject):
    run = ZooRun()
    run.declared = run.declared.__class__(frozen=("norm",))
    check = movement(subject(run), take_steps(subject(run)))
    assert check.verdict == Verdict.FAIL
    assert "frozen, and moved" in check.evidence


def test_a_tensor_that_never_moves_is_seen_without_knowing_the_optimizer(subject):
    run = ZooRun()
    hidden = run.optimizer
    for group in hidden.param_groups:
        group["params"] = [parameter for parameter in group["params"] if parameter is not run.model.norm]
    one = subject(run)
    run.optimizer = None
    accumulate, run.train_step = (
        run.accumulate,
        lambda step: (hidden.zero_grad(), accumulate(step), hidden.step()),
    )
    check = movement(one, take_steps(one))
    assert check.verdict == Verdict.FAIL
    assert [finding.subject for finding in check.findings] == ["norm"]


def test_a_learning_rate_of_zero_fails_unless_it_warms_up(subject):
    run = ZooRun()
    run.learning_rate = lambda step: 0.0
    check = movement(subject(run), take_steps(subject(run)))
    assert check.verdict == Verdict.FAIL
    assert torch.equal(run.model.norm, torch.ones(32))
