from dataclasses import replace

import torch
from shuffled import ShuffledRun
from zoo import ZooRun

from mothertongue_arbiter import Verdict
from mothertongue_arbiter.torch.gradients.rounding import measure_rounding
from mothertongue_arbiter.torch.optimizer.handover import handed_gradient
from mothertongue_arbiter.torch.optimizer.steps import STEPS, movement, step_weights, take_steps


def test_real_steps_are_watched_and_the_optimizer_gets_its_method_back(subject):
    run = ZooRun(accumulation=2)
    one = subject(run)
    rounding = measure_rounding(one)
    steps = take_steps(one)
    assert len(steps.records) == STEPS
    assert [len(record.xrays) for record in steps.records] == [2, 0, 0]
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


class AccumulatedOnTwoRanks(ShuffledRun):
    """Its `batch` is that of rank 0, as a program sees it on one machine of two."""

    def __init__(self):
        super().__init__(0.0)
        self.declared = replace(self.declared, accumulation=3)

    def micro_batches(self, step, rank):
        return list(super().micro_batches(step, rank)[0].split(1))

    def batch(self, step):
        return torch.cat(self.micro_batches(step, 0))

    def train_step(self, step):
        for rank, model in enumerate(self.replicas):
            model.zero_grad()
            for part in self.micro_batches(step, rank):
                (self.loss(model, part) / 3).backward()
        self.reduce()
        for optimizer in self.optimizer:
            optimizer.step()


def test_the_gradient_of_two_ranks_is_that_of_all_their_rows(subject):
    run = AccumulatedOnTwoRanks()
    one = subject(run)
    rounding = measure_rounding(one)
    steps = take_steps(one)
    assert handed_gradient(one, steps, rounding).verdict == Verdict.PASS
    assert step_weights(one, steps).verdict == Verdict.PASS


def test_a_gradient_that_is_not_reduced_is_not_that_of_all_rows(subject):
    run = AccumulatedOnTwoRanks()
    run.reduce = lambda: None
    one = subject(run)
    rounding = measure_rounding(one)
    assert handed_gradient(one, take_steps(one), rounding).verdict == Verdict.FAIL
