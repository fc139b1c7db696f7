"""The score of the zoo, on rows written by hand."""

import pytest
from faults.baselines import nonzero_check
from faults.score import compared, summary
from zoo import ZooRun

FAULTS = {
    "a1": {"family": "a", "failed": ["gradient presence"], "localised": True, "curve": "normal"},
    "f1": {"family": "f", "failed": ["reference forward"], "curve": "worse"},
    "f2": {"family": "f", "failed": [], "curve": "better"},
}
HEALTHY = {"plain": {"failed": []}, "odd": {"failed": [], "inconclusive": ["labels"]}}
COST = {"inconclusive": [], "seconds": 2.0, "steps": 100, "nonzero_alarm": False}
FAULTS = {name: COST | row for name, row in FAULTS.items()}
HEALTHY = {name: COST | row for name, row in HEALTHY.items()}


def test_what_only_a_reference_shows_is_counted_apart():
    figures = summary(FAULTS, HEALTHY)
    assert (figures["faults"], figures["caught"], figures["caught_without_reference"]) == (3, 2, 1)
    assert (figures["gradient_faults"], figures["localised"]) == (1, 1)


def test_an_undecided_healthy_run_is_no_alarm_and_is_counted():
    figures = summary(FAULTS, HEALTHY)
    assert (figures["healthy"], figures["alarms"], figures["inconclusive"]) == (2, 0, 1)


def test_a_better_curve_stops_nobody():
    found = {way: faults for way, faults, _ in compared(FAULTS, HEALTHY)}
    assert found["loss curve worse than healthy seeds"] == "1 / 3"


def test_a_tool_that_was_not_asked_is_not_silently_blind():
    assert {way: faults for way, faults, _ in compared(FAULTS, HEALTHY)}["torchdiag"] == "not installed"


@pytest.mark.parametrize(("scale", "alarm"), [(0.5, False), (0.0, True)])
def test_the_original_check_sees_a_zero_and_believes_any_other_number(scale, alarm):
    run = ZooRun()
    run.model.blocks[0].up.weight.register_hook(lambda g: g * scale)
    assert nonzero_check(run) is alarm
