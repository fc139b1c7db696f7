"""The judgement on numbers; what a real training shows is in test_monitor.py."""

import numpy as np
import pytest

from mothertongue_arbiter import Declared, Verdict
from mothertongue_arbiter.certificate import Finding
from mothertongue_arbiter.monitoring import CAUSES, Observation, TensorWatch, conclusion, sentences

SINGLE, HALF = np.finfo(np.float32).eps, 2.0**-7


def watch(declared=None, *, epsilon=SINGLE, patience=3):
    return TensorWatch(
        ["a", "b"],
        numbers=[100, 100],
        epsilons=[epsilon] * 2,
        declared=declared or Declared(),
        patience=patience,
    )


def seen(step, **changed):
    """A healthy observation of two tensors, with some numbers changed for the second."""
    healthy = {
        "gradient_norms": 0.5, "norms_before": 10.0, "norms": 10.0, "update_norms": 0.01, "alive": 100.0,
        "still": 0.0, "learning_rates": 1e-3, "counters": float(step + 1),
    }  # fmt: skip
    numbers = {name: np.array([usual, changed.get(name, usual)]) for name, usual in healthy.items()}
    return Observation(step=step, **numbers)


def told(one, observations):
    return [(f.subject, f.verdict) for observation in observations for f in one.look(observation)]


def test_a_healthy_history_has_nothing_to_tell():
    assert told(watch(), [seen(step) for step in range(100)]) == []


@pytest.mark.parametrize(
    ("changed", "verdict"),
    [
        ({"still": 100.0, "update_norms": 0.0}, "FROZEN"),
        ({"still": 100.0, "update_norms": 0.0, "learning_rates": np.nan}, "FROZEN"),
        ({"gradient_norms": 0.0, "alive": 0.0}, "DEAD"),
        ({"gradient_norms": np.nan}, "NONFINITE"),
        ({"counters": 7.0}, "STUCK"),
        ({"norms": 1e9}, "CORRUPT"),
    ],
)
def test_each_fault_of_a_tensor_has_its_name(changed, verdict):
    assert set(told(watch(), [seen(step, **changed) for step in range(4)])) == {("b", verdict)}


def test_two_observations_are_not_yet_three():
    frozen = {"still": 100.0, "update_norms": 0.0}
    assert told(watch(), [seen(0, **frozen), seen(1, **frozen), seen(2), seen(3, **frozen)]) == []


def test_bfloat16_elements_that_mostly_stand_still_lose_their_updates():
    lost = [seen(step, still=95.0) for step in range(3)]
    assert told(watch(epsilon=HALF), lost) == [("b", "LOST")]
    assert told(watch(), lost) == []


def test_the_end_of_a_schedule_freezes_nothing():
    start = [seen(step) for step in range(3)]
    end = [
        Observation(
            **(vars(seen(step, still=100.0, update_norms=0.0)) | {"learning_rates": np.full(2, 1e-9)})
        )
        for step in range(3, 20)
    ]
    assert told(watch(), start + end) == []


def test_a_warm_up_is_no_surge():
    rising = [
        Observation(
            **(vars(seen(step)) | {"learning_rates": np.full(2, 1e-5 * (step + 1)),
                                   "update_norms": np.full(2, 1e-4 * (step + 1))})
        )
        for step in range(100)
    ]  # fmt: skip
    assert told(watch(), rising) == []


def test_one_line_a_kind_says_what_where_and_why():
    findings = [Finding(subject=f"layer.{i}", verdict="FROZEN", detail="norm 1") for i in range(9)]
    (line,) = sentences(findings)
    assert line.startswith("FROZEN: layer.0, layer.1")
    assert "and 3 more (norm 1). Likely cause:" in line


def test_a_suspicion_is_inconclusive_and_silence_needs_a_measurement():
    assert conclusion([], steps=5, measured=2).verdict == Verdict.PASS
    assert conclusion([], steps=1, measured=0).verdict == Verdict.INCONCLUSIVE
    for kind in CAUSES:
        verdict = conclusion([Finding(subject="x", verdict=kind)], steps=5, measured=2).verdict
        assert verdict == (Verdict.INCONCLUSIVE if kind in {"SPIKE", "SURGE", "SKIPPED"} else Verdict.FAIL)
