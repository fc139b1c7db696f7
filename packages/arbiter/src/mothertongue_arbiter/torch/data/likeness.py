"""How likely it is that two rows of a text are equal by chance.

Rows may repeat for good reasons: a small vocabulary, a template, sampling with replacement. So nothing is
said about one equal pair; what is said is that equal pairs are far more frequent in one place than elsewhere.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mothertongue_arbiter.torch.run.listing import Ids

LARGEST_CHANCE = 1e-6  # of an accident that would be called a fault
MOST_TOKENS = 200_000  # from which the likelihood of repetition is measured
ESTIMATE_ERROR = 1e3  # templates make some rows far more likely than their text is on average
FACTOR = np.uint64(0x9E3779B97F4A7C15)  # of hashes: the golden ratio, odd
LEAST_PAIRS = 10  # of equal contexts, to say how often the same token follows


@dataclass(frozen=True, kw_only=True)
class Likeness:
    """How likely two unrelated stretches of a text are equal.

    That three tokens are equal is counted; each further one multiplies by how often the same token follows
    the same one, two or three tokens, whichever is most.
    """

    three: float
    further: float

    @classmethod
    def of(cls, rows: Iterable[Ids]) -> Likeness:
        """Measure it in `rows`, equal ones counted once."""
        distinct = {row.tobytes(): row for row in rows}.values()
        sizes = itertools.accumulate(map(len, distinct))
        text = [row for row, size in zip(distinct, sizes, strict=True) if size <= MOST_TOKENS]
        likely = []
        for width in (1, 2, 3):  # a context at the end of a row has no token that could follow
            contexts, _ = _pairs([row[:-1] for row in text], width)
            if contexts >= LEAST_PAIRS:
                likely.append((_pairs(text, width + 1)[0] + 1) / (contexts + 2))
        equal, possible = _pairs(text, 3)
        # None in n looks: less than 3 / n, with 95 % confidence.
        return cls(three=(equal + 3) / (possible + 3), further=max(likely, default=0.5))

    def chance(self, tokens: int) -> float:
        """Return the probability for stretches of `tokens` tokens, at most 1."""
        return float(min(1.0, ESTIMATE_ERROR * self.three * self.further ** max(tokens - 3, 0)))


def _pairs(text: Sequence[Ids], width: int) -> tuple[float, float]:
    """Return how many pairs of stretches of `width` tokens are equal, and how many pairs there are."""
    hashes = [stretches(row, width) for row in text]
    if not hashes:
        return 0.0, 0.0
    counts = np.unique(np.concatenate(hashes), return_counts=True)[1].astype(np.float64)
    total = float(counts.sum())
    return float((counts * (counts - 1)).sum() / 2), total * (total - 1) / 2


def stretches(row: Ids, tokens: int) -> npt.NDArray[np.uint64]:
    """Return a hash of each stretch of `tokens` tokens of `row`; none if it is shorter."""
    count = max(0, len(row) - tokens + 1)
    ids, hashes = row.astype(np.uint64), np.zeros(count, np.uint64)
    for place in range(tokens if count else 0):  # Horner's rule, modulo 2^64
        hashes = hashes * FACTOR + ids[place : place + count]
    return hashes


def equal_pairs(one: Sequence[bytes], other: Sequence[bytes]) -> int:
    """Return how many pairs of a row of `one` and a row of `other` are equal."""
    counts = Counter(other)
    return sum(counts[key] for key in one)


def chance_of_as_many(found: int, expected: float) -> float:
    """Return how likely at least `found` accidents are where `expected` would be usual: a Poisson tail."""
    if found <= expected:
        return 1.0
    terms = range(found, found + 200)
    return min(1.0, sum(math.exp(k * math.log(expected) - expected - math.lgamma(k + 1)) for k in terms))
