"""How the next token is chosen: pure functions of the logits, with the randomness handed in.

The order of the steps, the same for every answer:

    repetition penalty -> presence and frequency penalty -> logit bias
    -> temperature -> top_k -> top_p -> min_p -> one draw

Temperature 0 takes the most probable token right after the logit bias. The penalties look at the prompt and
the answer (repetition), or at the answer alone (presence, frequency), as vLLM and llama-server do.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Logits: TypeAlias = npt.NDArray[np.floating]  # (V,)

# Below this, logits divided by the temperature differ by more than float64's exp can tell: greedy by another
# name.
SMALLEST_TEMPERATURE = 1e-5
LARGEST_BIAS = 1e6  # far beyond any logit, and far from overflow
LARGEST_PENALTY = 1e3
MAXIMUM_STOPS, MAXIMUM_STOP_CHARACTERS = 64, 1024


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """How to choose each next token, and where to stop. The defaults choose the most probable one.

    Raises ValueError for a value outside its range, NaN included.
    """

    temperature: float = 0.0  # 0 is greedy
    top_k: int | None = None  # keep only the k most probable tokens
    top_p: float = 1.0  # of those, the fewest that together have this probability
    min_p: float = 0.0  # of those, the ones at least this share as probable as the most probable
    repetition_penalty: float = 1.0  # divides a positive, multiplies a negative logit of a token seen before
    presence_penalty: float = 0.0  # subtracted from the logit of each token of the answer so far
    frequency_penalty: float = 0.0  # subtracted as often as the token stands in the answer so far
    logit_bias: Mapping[int, float] = field(default_factory=dict)  # added, by token id
    seed: int | None = None  # None draws a fresh one
    stop: tuple[str, ...] = ()  # texts before which the answer ends
    max_tokens: int | None = None  # None: until the context is full

    def __post_init__(self) -> None:
        self._check("temperature", "a number from 0 up", 0, math.inf, below=True)
        self._check("top_p", "in (0, 1]", 0, 1, above=True)
        self._check("min_p", "in [0, 1]", 0, 1)
        self._check("repetition_penalty", f"in (0, {LARGEST_PENALTY:g}]", 0, LARGEST_PENALTY, above=True)
        for name in ("presence_penalty", "frequency_penalty"):
            self._check(
                name, f"in [-{LARGEST_PENALTY:g}, {LARGEST_PENALTY:g}]", -LARGEST_PENALTY, LARGEST_PENALTY
            )
        for name, least in (("top_k", 1), ("seed", 0), ("max_tokens", 1)):
            value = getattr(self, name)
            if value is not None and not (is_integer(value) and value >= least):
                raise ValueError(f"{name} must be an integer from {least} up, or None, got {value!r}")
        object.__setattr__(self, "logit_bias", checked_bias(self.logit_bias))
        object.__setattr__(self, "stop", checked_stops(self.stop))

    @property
    def counts_tokens(self) -> bool:
        """Whether the choice depends on the tokens before it."""
        return self.repetition_penalty != 1 or self.presence_penalty != 0 or self.frequency_penalty != 0

    def _check(
        self, name: str, range_: str, least: float, most: float, *, above: bool = False, below: bool = False
    ) -> None:
        """Raise ValueError unless the value lies between `least` and `most`, strictly where that is asked."""
        value = getattr(self, name)
        fits = is_number(value) and least <= value <= most  # NaN fits nowhere
        if not fits or (above and value == least) or (below and value == most):
            raise ValueError(f"{name} must be {range_}, got {value!r}")


def checked_bias(bias: Any) -> dict[int, float]:
    """Return a copy of `logit_bias`; raise ValueError if it is none."""
    if not isinstance(bias, Mapping):
        raise ValueError(f"logit_bias must map token ids to numbers, got {bias!r}")
    for token, value in bias.items():
        fits = is_integer(token) and token >= 0 and is_number(value) and abs(value) <= LARGEST_BIAS
        if not fits:
            raise ValueError(
                f"logit_bias must map token ids to numbers in [-{LARGEST_BIAS:g}, {LARGEST_BIAS:g}], "
                f"got {token!r}: {value!r}"
            )
    return {int(token): float(value) for token, value in bias.items()}


def checked_stops(stops: Any) -> tuple[str, ...]:
    """Return the stop texts as a tuple, one alone as well; raise ValueError if they are none."""
    found = (stops,) if isinstance(stops, str) else tuple(stops) if isinstance(stops, Iterable) else (None,)
    fitting = all(isinstance(stop, str) and 1 <= len(stop) <= MAXIMUM_STOP_CHARACTERS for stop in found)
    if not fitting or len(found) > MAXIMUM_STOPS:
        raise ValueError(
            f"stop must be at most {MAXIMUM_STOPS} texts of 1 to {MAXIMUM_STOP_CHARACTERS} characters, "
            f"got {str(stops)[:80]!r}"
        )
    return found


def is_integer(value: object) -> bool:
    """Return whether `value` is an integer and not a truth value."""
    return isinstance(value, int) and not isinstance(value, bool)


def is_number(value: object) -> bool:
    """Return whether `value` is an integer or a float."""
    return is_integer(value) or isinstance(value, float)


class Sampler:
    """Chooses the tokens of one answer, one after the other."""

    def __init__(self, sampling: Sampling, prompt: Iterable[int], vocabulary: int) -> None:
        beyond = [token for token in sampling.logit_bias if token >= vocabulary]
        if beyond:
            raise ValueError(f"logit_bias names token {beyond[0]}, the vocabulary has {vocabulary} tokens")
        self._sampling = sampling
        self._rng = np.random.default_rng(sampling.seed)
        self._prompt = np.unique(np.fromiter(prompt, np.int64)) if sampling.counts_tokens else None
        self._counts = np.zeros(vocabulary if sampling.counts_tokens else 0, np.int64)  # of the answer
        self._bias = (
            np.fromiter(sampling.logit_bias, np.int64),
            np.fromiter(sampling.logit_bias.values(), np.float64),
        )

    def choose(self, logits: Logits) -> tuple[int, float]:
        """Return the next token id and its log-probability, in nats, among all tokens as the model sees them.

        Raises ValueError if a logit is NaN or none is finite.
        """
        token = sample(self._adjusted(logits), self._sampling, self._rng)
        if self._prompt is not None:
            self._counts[token] += 1
        return token, log_probability(logits, token)

    def _adjusted(self, logits: Logits) -> Logits:
        """Return `logits` with penalties and bias; the same array where there are none."""
        if self._prompt is not None:
            logits = penalised(logits, self._sampling, self._prompt, self._counts)
        ids, values = self._bias
        if len(ids):
            logits = logits.astype(np.float64)
            logits[ids] += values
        return logits


def penalised(
    logits: Logits, sampling: Sampling, prompt: npt.NDArray[np.int64], counts: npt.NDArray[np.int64]
) -> Logits:
    """Return `logits` (V,) with the penalties for the ids of `prompt` and the `counts` (V,) of the answer."""
    result = logits.astype(np.float64)
    seen = counts > 0
    repeated = seen.copy()
    repeated[prompt] = True
    old = result[repeated]
    result[repeated] = np.where(
        old > 0, old / sampling.repetition_penalty, old * sampling.repetition_penalty
    )  # arXiv:1909.05858
    result -= sampling.presence_penalty * seen + sampling.frequency_penalty * counts
    return result


def sample(logits: Logits, sampling: Sampling, rng: np.random.Generator) -> int:
    """Return the next token id: temperature, then top-k, top-p and min-p, then one draw.

    Raises ValueError if a logit is NaN or none is finite.
    """
    best = int(logits.argmax())
    if not math.isfinite(logits[best]):  # a maximum of NaN, +inf or all -inf
        raise ValueError("the logits hold no finite maximum; the model has diverged")
    if sampling.temperature < SMALLEST_TEMPERATURE:
        return best
    # Shifted first and in float64, so that the smallest temperature cannot overflow.
    scaled = (logits.astype(np.float64) - logits[best]) / sampling.temperature
    if sampling.top_k is not None:
        scaled = top_k(scaled, sampling.top_k)
    if sampling.top_p < 1:
        scaled = top_p(scaled, sampling.top_p)
    if sampling.min_p > 0:
        scaled = min_p(scaled, sampling.min_p)
    cumulative = np.cumsum(softmax(scaled))
    return int(np.searchsorted(cumulative, rng.random() * cumulative[-1], side="right"))


def log_probability(logits: Logits, token: int) -> float:
    """Return the natural logarithm of the probability of `token` under `logits` (V,)."""
    shifted = logits - logits.max()
    # Summed in float64, exponentiated in float32: 49,152 exponentials in 30 microseconds instead of 150.
    return float(shifted[token] - math.log(np.exp(shifted).sum(dtype=np.float64)))


def softmax(logits: Logits) -> Logits:
    """Return the probabilities (V,) of `logits` (V,)."""
    probabilities: Logits = np.exp(logits - logits.max())
    probabilities /= probabilities.sum()
    return probabilities


def top_k(logits: Logits, k: int) -> Logits:
    """Return `logits` (V,) with all below the `k`-th largest set to -inf; ties with it stay."""
    if k >= len(logits):
        return logits
    return np.where(logits >= np.partition(logits, -k)[-k], logits, -np.inf)


def top_p(logits: Logits, p: float) -> Logits:
    """Return `logits` (V,) with only the fewest, most probable tokens whose mass reaches `p`; rest -inf.

    The nucleus of arXiv:1904.09751. At least one token stays.
    """
    order = np.argsort(-logits, kind="stable")
    mass = softmax(logits)[order]
    kept = order[np.cumsum(mass) - mass < p]
    nucleus = np.full_like(logits, -np.inf)
    nucleus[kept] = logits[kept]
    return nucleus


def min_p(logits: Logits, p: float) -> Logits:
    """Return `logits` (V,) with those less than `p` times as probable as the first set to -inf.

    arXiv:2407.01082.
    """
    return np.where(logits >= logits.max() + math.log(p), logits, -np.inf)
