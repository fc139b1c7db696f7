from itertools import pairwise

import pytest

from mothertongue_arbiter.pacing import Pace


class Clock:
    """Time that passes only when told."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


def trained(*, budget, step_s, arm_s, measure_s, rows_s=0.0, every=1, steps=600):
    """Train with steps and looks of known durations; return the pace and the steps that were measured."""
    clock = Clock()
    pace = Pace(every=every, budget=budget, clock=clock)
    armed, measured = False, []
    for step in range(steps):
        clock.now += step_s
        pace.begin()
        if pace.may_hash:
            clock.now += rows_s
            pace.spent("rows")
        if armed:
            clock.now += measure_s
            pace.spent("measure")
            measured.append(step)
        armed = pace.must_arm
        if armed:
            clock.now += arm_s
            pace.spent("arm")
        pace.end()
    return pace, measured


def test_without_a_budget_the_pace_is_the_one_asked_for():
    assert trained(budget=None, step_s=1, arm_s=1, measure_s=1, steps=5)[1] == [1, 2, 3, 4]
    assert trained(budget=None, step_s=1, arm_s=1, measure_s=1, steps=12, every=5)[1] == [1, 6, 11]


@pytest.mark.parametrize("step_s", [0.01, 0.1, 1.0])
def test_the_share_of_all_looks_stays_inside_the_budget(step_s):
    pace, measured = trained(budget=0.01, step_s=step_s, arm_s=0.001, measure_s=0.003, rows_s=0.00004)
    assert 0 < pace.cost_share < 0.011
    assert len(measured) >= 6


def test_a_step_of_a_tenth_of_a_second_is_measured_every_eighth_time():
    pace, measured = trained(budget=0.01, step_s=0.1, arm_s=0.001, measure_s=0.0029)
    assert pace.every == 8  # 3.9 ms in half of 1 % of 8 steps
    assert {b - a for a, b in pairwise(measured[5:])} == {8}


def test_time_on_the_device_counts_where_it_is_longer():
    pace, _ = trained(budget=0.01, step_s=0.1, arm_s=0.001, measure_s=0.0029)
    before = pace.every
    for _ in range(9):
        pace.spent("measure")
        pace.device_seconds("measure", 0.1)
    assert pace.every > before
