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
LARGEST_EXPONENT = 60.0  # float32 holds e to the 88 and to the -87, and sums of 65,536 of these
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
        # How often each token stands in the answer; those of the prompt alone with 0.
        self._counts = dict.fromkeys(prompt, 0) if sampling.counts_tokens else {}
        self._bias = as_arrays(sampling.logit_bias)
        self._scratch = np.empty(vocabulary, np.float32)  # new memory for each token costs page faults

    def choose(self, logits: Logits) -> tuple[int, float]:
        """Return the next token id and its log-probability, in nats, among all tokens as the model sees them.

        Raises ValueError if a logit is NaN or none is finite.
        """
        adjusted = self.adjusted(logits)
        token = sample(adjusted, self._sampling, self._rng)
        if self._sampling.counts_tokens:
            self._counts[token] = self._counts.get(token, 0) + 1
        greedy = adjusted is logits and self._sampling.temperature < SMALLEST_TEMPERATURE
        largest = float(logits[token]) if greedy else None
        return token, log_probability(logits, token, self._scratch, largest)

    def adjusted(self, logits: Logits) -> Logits:
        """Return `logits` (V,) with penalties and bias; the same array where there are none."""
        counted, biased = bool(self._counts), bool(len(self._bias[0]))
        if not counted and not biased:
            return logits
        logits = logits.copy()
        if counted:
            ids, counts = as_arrays(self._counts)
            logits[ids] = penalised(logits[ids], counts, self._sampling)
        if biased:
            ids, values = self._bias
            logits[ids] += values
        return logits


def as_arrays(values: Mapping[int, float]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
    """Return the keys and the values of a mapping, in one order."""
    return np.fromiter(values, np.int64), np.fromiter(values.values(), np.float64)


def penalised(logits: Logits, counts: npt.NDArray[np.float64], sampling: Sampling) -> Logits:
    """Return the `logits` of tokens seen before, less their penalties; `counts` is of the answer alone."""
    factor = sampling.repetition_penalty  # arXiv:1909.05858
    repeated: Logits = np.where(logits > 0, logits / factor, logits * factor)
    repeated -= sampling.presence_penalty * (counts > 0) + sampling.frequency_penalty * counts
    return repeated


def sample(logits: Logits, sampling: Sampling, rng: np.random.Generator) -> int:
    """Return the next token id: temperature, then top-k, top-p and min-p, then one draw.

    Raises ValueError if a logit is NaN or none is finite.
    """
    best = int(logits.argmax())
    if not math.isfinite(logits[best]):  # a maximum of NaN, +inf or all -inf
        raise ValueError("the logits hold no finite maximum; the model has diverged")
    if sampling.temperature < SMALLEST_TEMPERATURE:
        return best
    # The order of logits is that of probabilities at any temperature, so the largest k can be taken first.
    ids = np.arange(len(logits)) if sampling.top_k is None else top_k(logits, sampling.top_k)
    # Shifted first and in float64, so that no temperature overflows.
    weights = np.exp((logits[ids].astype(np.float64) - logits[best]) / sampling.temperature)
    if sampling.top_p < 1:
        kept = top_p(weights / weights.sum(), sampling.top_p)
        ids, weights = ids[kept], weights[kept]
    if sampling.min_p > 0:
        kept = min_p(weights, sampling.min_p)
        ids, weights = ids[kept], weights[kept]
    cumulative = np.cumsum(weights)
    return int(ids[np.searchsorted(cumulative, rng.random() * cumulative[-1], side="right")])


def log_probability(
    logits: Logits, token: int, scratch: npt.NDArray[np.float32], largest: float | None = None
) -> float:
    """Return ln of the probability of `token` under `logits` (V,); `scratch` is as long.

    `largest` is the largest of the logits, where it is known.
    """
    # Each pass over the vocabulary waits for memory: where exp needs no shift it gets none.
    largest = float(logits.max()) if largest is None else largest
    shift = 0.0 if abs(largest) <= LARGEST_EXPONENT else largest
    shifted = logits if shift == 0 else np.subtract(logits, shift, out=scratch)
    return float(logits[token]) - shift - math.log(np.exp(shifted, out=scratch).sum())


def top_k(logits: Logits, k: int) -> npt.NDArray[np.intp]:
    """Return the ids of the `k` largest of `logits` (V,), in order; ties with the last of them stay."""
    if k >= len(logits):
        return np.arange(len(logits))
    return np.flatnonzero(logits >= np.partition(logits, -k)[-k])


def top_p(probabilities: Logits, p: float) -> npt.NDArray[np.intp]:
    """Return the places of the fewest, most probable of `probabilities` whose mass reaches `p`; at least one.

    The nucleus of arXiv:1904.09751.
    """
    # All those below this together have less than 1 - p, so the nucleus lies in the rest: few are sorted.
    (places,) = np.nonzero(probabilities >= (1 - p) / len(probabilities))
    order = places[np.argsort(-probabilities[places], kind="stable")]
    mass = probabilities[order]
    return order[np.cumsum(mass) - mass < p]


def min_p(weights: Logits, p: float) -> npt.NDArray[np.intp]:
    """Return the places of those of `weights` that are at least `p` times the largest.

    arXiv:2407.01082.
    """
    return np.flatnonzero(weights >= p * weights.max())
