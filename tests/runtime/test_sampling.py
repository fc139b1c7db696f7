import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mothertongue.sampling import Sampler, Sampling, log_probability, min_p, sample, top_k, top_p

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
        # 0.15 is less than 0.4 of 0.5, 0.25 is not.
        (Sampling(temperature=1.0, min_p=0.4), [2 / 3, 1 / 3, 0, 0]),
        (Sampling(temperature=1.0, min_p=1.0), [1, 0, 0, 0]),
        (Sampling(temperature=1e-300), [1, 0, 0, 0]),
        (Sampling(temperature=1e300), [0.25, 0.25, 0.25, 0.25]),
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


def softmax(values: list[float]) -> np.ndarray:
    exponentials = np.exp(np.array(values) - max(values))
    return np.asarray(exponentials / exponentials.sum())


@given(values=st.lists(st.floats(-50, 50), min_size=1, max_size=20), p=st.floats(0.01, 0.999))
def test_the_nucleus_is_the_fewest_tokens_that_reach_the_mass(values: list[float], p: float) -> None:
    probabilities = softmax(values)
    kept = np.zeros(len(values), bool)
    kept[top_p(probabilities, p)] = True
    assert probabilities[kept].sum() >= p - 1e-9
    assert probabilities[kept].sum() - probabilities[kept].min() < p + 1e-9
    assert kept.all() or probabilities[kept].min() >= probabilities[~kept].max()


@given(values=st.lists(st.floats(-50, 50), min_size=1, max_size=20, unique=True), k=st.integers(1, 25))
def test_top_k_keeps_the_k_largest(values: list[float], k: int) -> None:
    kept = np.array(values)[top_k(np.array(values), k)]
    assert sorted(kept, reverse=True) == sorted(values, reverse=True)[:k]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("temperature", bad) for bad in (-0.1, math.nan, math.inf, "1", None, True)),
        *(("top_k", bad) for bad in (0, -1, 1.5, math.nan, "2", True)),
        *(("top_p", bad) for bad in (0, -0.1, 1.1, math.nan, math.inf, "1", None)),
        *(("min_p", bad) for bad in (-0.1, 1.1, math.nan, math.inf, "1", None, True)),
        *(("repetition_penalty", bad) for bad in (0, -1, 1e9, math.nan, math.inf, "1", None)),
        *(("presence_penalty", bad) for bad in (-1e9, 1e9, math.nan, math.inf, -math.inf, "1")),
        *(("frequency_penalty", bad) for bad in (-1e9, 1e9, math.nan, math.inf, "1", None)),
        *(
            ("logit_bias", bad)
            for bad in ({-1: 1}, {1: math.nan}, {1: math.inf}, {"a": 1}, {1: 1e9}, None, 3)
        ),
        *(("logit_bias", bad) for bad in ({True: 1}, {1: True}, {1: "2"}, [1, 2])),
        *(("stop", bad) for bad in ("", ("a", ""), (1,), None, 5, ("a",) * 65, "x" * 1025)),
        *(("max_tokens", bad) for bad in (0, -1, 1.5, math.nan, "2", True)),
        *(("seed", bad) for bad in (-1, 0.5, "a", True)),
    ],
)
def test_a_value_out_of_range_is_refused(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"{name} must "):
        Sampling(**{name: value})


@pytest.mark.parametrize("bad", [[math.nan, 1.0], [math.inf, 1.0], [-math.inf, -math.inf]])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_diverged_model_is_not_sampled(bad: list[float], temperature: float) -> None:
    with pytest.raises(ValueError, match="diverged"):
        sample(np.array(bad, np.float32), Sampling(temperature=temperature), np.random.default_rng(0))


def chosen(sampling: Sampling, *, prompt: tuple[int, ...] = (), count: int) -> list[int]:
    """The ids of an answer whose logits never change."""
    sampler = Sampler(sampling, prompt, len(LOGITS))
    return [sampler.choose(LOGITS + 3)[0] for _ in range(count)]  # all above 0, so that they are divided


def test_a_repetition_penalty_looks_at_prompt_and_answer() -> None:
    assert chosen(Sampling(repetition_penalty=100.0), count=4) == [0, 1, 2, 3]
    assert chosen(Sampling(repetition_penalty=100.0), prompt=(0, 1), count=2) == [2, 3]


def test_a_repetition_penalty_divides_above_zero_and_multiplies_below() -> None:
    logits = np.array([3.0, -1.0, 1.4, -3.0])
    # Halved, 3.0 still leads with 1.5; -1.0 becomes -2.0 and so on: worked out by hand.
    sampler = Sampler(Sampling(repetition_penalty=2.0, logit_bias={0: -5.0}), (0, 1), 4)
    assert sampler.choose(logits)[0] == 2
    sampler = Sampler(Sampling(repetition_penalty=2.0), (1,), 4)
    np.testing.assert_allclose(sampler.adjusted(logits), [3.0, -2.0, 1.4, -3.0])


def test_presence_counts_once_and_frequency_each_time_and_both_in_the_answer_only() -> None:
    logits = np.zeros(3)
    for name, expected in (("presence_penalty", [-0.5, -0.5, 0.0]), ("frequency_penalty", [-1.0, -0.5, 0.0])):
        sampler = Sampler(Sampling(**{name: 0.5}), (2, 2, 2), 3)
        for favourite in (0, 0, 1):
            raised = logits.copy()
            raised[favourite] = 9.0
            assert sampler.choose(raised)[0] == favourite
        np.testing.assert_allclose(sampler.adjusted(logits), expected)


def test_a_bias_is_added_after_the_penalties_and_before_the_choice() -> None:
    assert chosen(Sampling(logit_bias={3: 10.0}), count=2) == [3, 3]
    assert chosen(Sampling(logit_bias={3: 10.0}, frequency_penalty=100.0), count=2) == [3, 0]
    assert chosen(Sampling(logit_bias={0: -10.0, 1: -10.0}), count=1) == [2]


def test_a_bias_for_a_token_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ValueError, match="logit_bias names token 4, the vocabulary has 4 tokens"):
        Sampler(Sampling(logit_bias={4: 1.0}), (), 4)


def test_logits_handed_in_are_not_changed() -> None:
    logits = LOGITS.copy()
    sampling = Sampling(
        repetition_penalty=2.0,
        presence_penalty=1.0,
        logit_bias={1: 2.0},
        temperature=1.0,
        top_p=0.5,
        min_p=0.1,
    )
    sampler = Sampler(sampling, (0,), len(logits))
    for _ in range(3):
        sampler.choose(logits)
    np.testing.assert_array_equal(logits, LOGITS)


def test_one_stop_text_alone_is_one_stop_text() -> None:
    assert Sampling(stop="ab").stop == ("ab",)
    assert Sampling(stop=["a", "b"]).stop == ("a", "b")


@given(values=st.lists(st.floats(-50, 50), min_size=1, max_size=20), p=st.floats(0, 1))
def test_min_p_keeps_what_is_probable_enough(values: list[float], p: float) -> None:
    probabilities = softmax(values)
    kept = np.zeros(len(values), bool)
    kept[min_p(probabilities, p)] = True
    assert (probabilities[kept] >= p * probabilities.max() * (1 - 1e-9)).all()
    assert (probabilities[~kept] <= p * probabilities.max() * (1 + 1e-9)).all()


@given(
    values=st.lists(st.floats(-50, 50), min_size=1, max_size=20), offset=st.sampled_from([0, 11, 300, -300])
)
def test_log_probabilities_are_those_of_the_definition(values: list[float], offset: int) -> None:
    logits = np.array(values, np.float32) + np.float32(offset)
    exact = logits.astype(np.float64)
    expected = exact - exact.max() - np.log(np.exp(exact - exact.max()).sum())
    found = [log_probability(logits, token, np.empty_like(logits)) for token in range(len(logits))]
    np.testing.assert_allclose(found, expected, atol=1e-4)
    best = int(logits.argmax())
    known = log_probability(logits, best, np.empty_like(logits), float(logits[best]))
    assert known == found[best]


@pytest.mark.parametrize("level", [-1e4, -88.0, -60.0, 0.0, 60.0, 88.0, 1e4])
def test_a_level_vocabulary_is_equally_probable_at_any_height(level: float) -> None:
    logits = np.full(65_536, level, np.float32)
    token, logprob = Sampler(Sampling(), (), len(logits)).choose(logits)
    assert token == 0
    assert logprob == pytest.approx(-np.log(65_536), abs=1e-5)
