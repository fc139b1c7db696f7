"""How the next token is chosen: pure functions of the logits, with the randomness handed in."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Logits: TypeAlias = npt.NDArray[np.floating]  # (V,)


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """How to choose each next token. The defaults choose the most probable one.

    Raises ValueError for a value outside its range, NaN included.
    """

    temperature: float = 0.0  # 0 is greedy; applied before top_k and top_p
    top_k: int | None = None  # keep only the k most probable tokens
    top_p: float = 1.0  # then the fewest that together have this probability
    seed: int | None = None  # None draws a fresh one

    def __post_init__(self) -> None:
        if not (is_number(self.temperature) and 0 <= self.temperature < math.inf):
            raise ValueError(f"temperature must be a number from 0 up, got {self.temperature!r}")
        if self.top_k is not None and not (is_integer(self.top_k) and self.top_k >= 1):
            raise ValueError(f"top_k must be an integer from 1 up, or None, got {self.top_k!r}")
        if not (is_number(self.top_p) and 0 < self.top_p <= 1):
            raise ValueError(f"top_p must be in (0, 1], got {self.top_p!r}")
        if self.seed is not None and not (is_integer(self.seed) and self.seed >= 0):
            raise ValueError(f"seed must be an integer from 0 up, or None, got {self.seed!r}")


def is_integer(value: object) -> bool:
    """Return whether `value` is an integer and not a truth value."""
    return isinstance(value, int) and not isinstance(value, bool)


def is_number(value: object) -> bool:
    """Return whether `value` is an integer or a float."""
    return is_integer(value) or isinstance(value, float)


def sample(logits: Logits, sampling: Sampling, rng: np.random.Generator) -> int:
    """Return the next token id: temperature, then top-k, then top-p, then one draw.

    Raises ValueError if a logit is NaN or none is finite.
    """
    if not np.isfinite(logits.max()):  # a maximum of NaN, +inf or all -inf
        raise ValueError("the logits hold no finite maximum; the model has diverged")
    if sampling.temperature == 0:
        return int(logits.argmax())
    # Shifted first and in float64, so that the smallest temperature cannot overflow.
    with np.errstate(over="ignore"):
        scaled = (logits.astype(np.float64) - logits.max()) / sampling.temperature
    if sampling.top_k is not None:
        scaled = top_k(scaled, sampling.top_k)
    if sampling.top_p < 1:
        scaled = top_p(scaled, sampling.top_p)
    cumulative = np.cumsum(softmax(scaled))
    return int(np.searchsorted(cumulative, rng.random() * cumulative[-1], side="right"))


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
    mass_before = np.cumsum(softmax(logits)[order]) - softmax(logits)[order]
    kept = order[mass_before < p]
    nucleus = np.full_like(logits, -np.inf)
    nucleus[kept] = logits[kept]
    return nucleus
