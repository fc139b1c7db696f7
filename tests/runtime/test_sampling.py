import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mothertongue.sampling import Sampling, sample, softmax, top_k, top_p

LOGITS = np.log(np.array([0.5, 0.25, 0.15, 0.1], np.float32))
DRAWS = 4_000
# Five standard deviations of a share of 0.5 in that many draws.
SHARE_TOLERANCE = 5 * math.sqrt(0.25 / DRAWS)


def shares(sampling: Sampling) -> np.ndarray:
    rng = np.random.default_rng(0)
    drawn = [sample(LOGITS, sampling, rng) for _ in range(DRAWS)]
    return np.bincount(drawn, minlength=len(LOGITS)) / DRAWS


@pytest.mark.parametrize(
    ("sampling", "expected"),
    [
        (Sampling(temperature=1.0), [0.5, 0.25, 0.15, 0.1]),
        # Squared and normalised by hand: 25, 6.25, 2.25, 1 of 34.5.
        (Sampling(temperature=0.5), [25 / 34.5, 6.25 / 34.5, 2.25 / 34.5, 1 / 34.5]),
        (Sampling(temperature=1.0, top_k=2), [2 / 3, 1 / 3, 0, 0]),
        (Sampling(temperature=1.0, top_p=0.8), [0.5 / 0.9, 0.25 / 0.9, 0.15 / 0.9, 0]),
        (Sampling(temperature=1.0, top_p=1e-9), [1, 0, 0, 0]),
        (Sampling(temperature=1e-300), [1, 0, 0, 0]),
        (Sampling(), [1, 0, 0, 0]),
    ],
)
def test_tokens_are_drawn_with_their_probabilities(sampling: Sampling, expected: list[float]) -> None:
    assert shares(sampling) == pytest.approx(expected, abs=SHARE_TOLERANCE)


def test_temperature_comes_before_top_p() -> None:
    # At temperature 0.5 the first token has 0.72 of the mass, so a nucleus of 0.7 holds it alone.
    assert shares(Sampling(temperature=0.5, top_p=0.7)).tolist() == [1, 0, 0, 0]


def test_one_seed_makes_one_sequence() -> None:
    def sequence(seed: int) -> list[int]:
        rng = np.random.default_rng(seed)
        return [sample(LOGITS, Sampling(temperature=1.0), rng) for _ in range(50)]

    assert sequence(3) == sequence(3) != sequence(4)


@given(values=st.lists(st.floats(-50, 50), min_size=1, max_size=20), p=st.floats(0.01, 1))
def test_the_nucleus_is_the_fewest_tokens_that_reach_the_mass(values: list[float], p: float) -> None:
    logits = np.array(values)
    kept = np.isfinite(top_p(logits, p))
    probabilities = softmax(logits)
    assert probabilities[kept].sum() >= p - 1e-9
    assert probabilities[kept].sum() - probabilities[kept].min() < p + 1e-9
    assert kept.all() or probabilities[kept].min() >= probabilities[~kept].max()


@given(values=st.lists(st.floats(-50, 50), min_size=1, max_size=20, unique=True), k=st.integers(1, 25))
def test_top_k_keeps_the_k_largest(values: list[float], k: int) -> None:
    kept = np.array(values)[np.isfinite(top_k(np.array(values), k))]
    assert sorted(kept, reverse=True) == sorted(values, reverse=True)[:k]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("temperature", bad) for bad in (-0.1, math.nan, math.inf, "1", None, True)),
        *(("top_k", bad) for bad in (0, -1, 1.5, math.nan, "2", True)),
        *(("top_p", bad) for bad in (0, -0.1, 1.1, math.nan, math.inf, "1", None)),
        *(("seed", bad) for bad in (-1, 0.5, "a", True)),
    ],
)
def test_a_value_out_of_range_is_refused(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"{name} must be"):
        Sampling(**{name: value})


@pytest.mark.parametrize("bad", [[math.nan, 1.0], [math.inf, 1.0], [-math.inf, -math.inf]])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_diverged_model_is_not_sampled(bad: list[float], temperature: float) -> None:
    with pytest.raises(ValueError, match="diverged"):
        sample(np.array(bad, np.float32), Sampling(temperature=temperature), np.random.default_rng(0))
