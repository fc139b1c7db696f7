from dataclasses import replace

import pytest
import torch
from zoo import ZooRun

from mothertongue_arbiter import Verdict
from mothertongue_arbiter.declared_optimizer import Group, Optimizer
from mothertongue_arbiter.torch.optimizer.dtypes import kept_dtypes
from mothertongue_arbiter.torch.optimizer.steps import take_steps
from mothertongue_arbiter.torch.run.state import preserved
from mothertongue_arbiter.torch.run.subject import Unavailable

MASTERS = Optimizer(groups=(Group(parameters=("*",), learning_rate=1e-3),), master_dtype="float32")


@pytest.fixture
def check(subject):
    def found(run):
        with preserved(run):
            return kept_dtypes(subject(run), take_steps(subject(run)))

    return found


def declaring(**facts):
    run = ZooRun()
    run.declared = replace(run.declared, **facts)
    return run


def test_weights_and_moments_in_float32_pass(check):
    assert check(declaring(dtypes={"*": "float32"})).verdict == Verdict.PASS


def test_the_first_pattern_that_names_a_weight_decides(check):
    run = declaring(dtypes={"*norm*": "bfloat16", "*": "float32"})
    found = check(run)
    assert found.verdict == Verdict.FAIL
    assert "norm: float32, declared bfloat16" in found.evidence
    assert all("norm" in finding.subject for finding in found.findings)


def test_a_second_moment_in_bfloat16_is_a_ratchet(check):
    run = declaring()
    run.model.to(torch.bfloat16)
    run.make_optimizer()
    found = check(run)
    assert found.verdict == Verdict.FAIL
    assert "can only grow" in found.cause


def test_a_second_moment_that_forgets_faster_is_no_ratchet(check):
    run = declaring()
    run.model.to(torch.bfloat16)
    run.optimizer = torch.optim.AdamW(run.model.parameters(), lr=1e-3, betas=(0.9, 0.95))
    assert check(run).verdict == Verdict.PASS


def test_declared_masters_that_do_not_exist_are_missed(check):
    run = declaring(optimizer=MASTERS)
    run.model.to(torch.bfloat16)
    run.optimizer = torch.optim.AdamW(run.model.parameters(), lr=1e-3, betas=(0.9, 0.95))
    found = check(run)
    assert found.verdict == Verdict.FAIL
    assert "no float32 copy" in found.evidence


def test_a_step_counter_in_bfloat16_stops_counting(check):
    run = declaring()
    step = run.optimizer.step

    def spoiled():
        step()
        for state in run.optimizer.state.values():
            state["step"] = state["step"].bfloat16().float().bfloat16()

    run.optimizer.step = spoiled
    run.optimizer.param_groups[0]["foreach"] = False
    found = check(run)
    assert found.verdict == Verdict.FAIL
    assert "stops counting" in found.cause


def test_nothing_declared_and_nothing_shown_is_not_judged(check):
    run = declaring()
    optimizer, run.optimizer = run.optimizer, None
    run.train_step = lambda step: (optimizer.zero_grad(), run.accumulate(step), optimizer.step())
    with pytest.raises(Unavailable, match="no state"):
        check(run)
