import pytest
import torch
from torch import nn
from torch.nn import functional as F
from zoo import ZooRun

from mothertongue_arbiter import Verdict
from mothertongue_arbiter.torch.forward.modes import dropout, evaluation, evaluation_mode
from mothertongue_arbiter.torch.optimizer.steps import take_steps
from mothertongue_arbiter.torch.optimizer.steps import training_mode as training_mode_in
from mothertongue_arbiter.torch.run.subject import Unavailable


def training_mode(subject):
    return training_mode_in(subject, take_steps(subject))


class EvaluatedRun(ZooRun):
    def evaluate(self):
        self.model.eval()
        with torch.no_grad():
            self.loss(self.model, self.batch(100))
        self.model.train()


def dropping():
    return EvaluatedRun(dropout=0.2)


def test_a_run_that_switches_modes_passes(subject):
    found = subject(dropping())
    for check in (training_mode, evaluation_mode, dropout):
        assert check(found).verdict == Verdict.PASS


def test_a_model_left_in_evaluation_mode_fails(subject):
    run = dropping()
    run.model.eval()
    check = training_mode(subject(run))
    assert check.verdict == Verdict.FAIL
    assert "blocks.0" in check.evidence


def test_without_dropout_no_mode_is_wrong(subject):
    run = ZooRun()
    run.model.eval()
    check = training_mode(subject(run))
    assert check.verdict == Verdict.PASS
    assert check.evidence == "nothing acts differently"


def test_a_frozen_part_may_rest(subject):
    run = dropping()
    run.model.blocks[0].eval().requires_grad_(False)
    assert training_mode(subject(run)).verdict == Verdict.PASS


def test_a_step_without_gradients_fails(subject):
    run = dropping()

    def step(number):
        with torch.no_grad():
            run.loss(run.model, run.batch(number))

    run.train_step = step
    assert "gradients are off" in training_mode(subject(run)).evidence


def test_an_evaluation_in_training_mode_fails(subject):
    run = dropping()
    run.evaluate = lambda: run.loss(run.model, run.batch(100))
    check = evaluation_mode(subject(run))
    assert check.verdict == Verdict.FAIL
    assert check.cause == "model.eval() is missing"


def test_a_model_that_does_not_come_back_fails_and_one_that_the_step_puts_back_passes(subject):
    run = dropping()
    run.evaluate = lambda: run.loss(run.model.eval(), run.batch(100))
    assert "not back in training mode" in evaluation_mode(subject(run)).evidence

    run = dropping()
    step = run.train_step
    run.evaluate = lambda: run.loss(run.model.eval(), run.batch(100))
    run.train_step = lambda number: (run.model.train(), step(number))
    assert evaluation_mode(subject(run)).verdict == Verdict.PASS


def test_an_evaluation_that_learns_fails(subject):
    run = dropping()

    def evaluate():
        run.model.eval()
        with torch.no_grad():
            run.loss(run.model, run.batch(100))
            run.model.norm.mul_(1.01)
        run.model.train()

    run.evaluate = evaluate
    assert "changes norm" in evaluation_mode(subject(run)).evidence


def test_dropout_that_never_rests_fails(subject):
    run = ZooRun()
    run.model.operations.block_out = lambda x: F.dropout(x, 0.2)
    assert dropout(subject(run)).verdict == Verdict.FAIL


def test_dropout_that_is_never_applied_fails(subject):
    run = ZooRun()
    run.model.dropout = nn.Dropout(0.1)
    check = dropout(subject(run))
    assert check.verdict == Verdict.FAIL
    assert "never applied" in check.cause


def test_the_evaluation_mode_ends(subject):
    model = ZooRun().model
    model.blocks[0].eval()
    with evaluation(model):
        assert not model.blocks[1].training
    assert [block.training for block in model.blocks] == [False, True]


def test_without_its_members_nothing_is_asked(subject):
    with pytest.raises(Unavailable, match="evaluate"):
        evaluation_mode(subject(ZooRun()))
