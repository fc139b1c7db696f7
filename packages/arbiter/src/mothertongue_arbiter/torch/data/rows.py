"""The rows of token ids that a run feeds, and how likely two of them are equal by chance.

Rows may repeat for good reasons: a small vocabulary, a template, sampling with replacement. So nothing is
said about one equal pair; what is said is that equal pairs are far more frequent in one place than elsewhere.
"""

from __future__ import annotations

import itertools
import math
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from mothertongue_arbiter.torch.run.batches import token_ids
from mothertongue_arbiter.torch.run.digest import row_keys
from mothertongue_arbiter.torch.run.listing import Ids
from mothertongue_arbiter.torch.run.subject import Subject, Unavailable

LARGEST_CHANCE = 1e-6  # of an accident that would be called a fault
LOOKED_AT_SECONDS = 1.0
LOOKED_AT_STEPS = 64
MOST_TOKENS = 200_000  # from which the likelihood of repetition is measured
ESTIMATE_ERROR = 1e3  # templates make some rows far more likely than their text is on average
LEAST_PAIRS = 10  # of equal contexts, to say how often the same token follows


@dataclass(frozen=True)
class Rows:
    """Rows of one batch: the token ids (B, T) and a key a row."""

    ids: tuple[Tensor, ...]  # one a micro-batch
    keys: tuple[bytes, ...]

    @classmethod
    def of(cls, batches: Iterable[Any]) -> Rows:
        """Return the rows of `batches`, which may be micro-batches of different lengths.

        Raises:
            Unavailable: a batch holds no token ids.
        """
        found = [token_ids(batch) for batch in batches]
        if not found or any(ids is None for ids in found):
            raise Unavailable("a batch holds no two-dimensional integer tensor of token ids")
        ids = tuple(one.detach().cpu() for one in found if one is not None)
        return cls(ids, tuple(key for one in ids for key in row_keys(one)))

    def each(self) -> Iterator[tuple[bytes, Ids]]:
        """Yield the text of every row with the key of the row; a row of padding has none."""
        rows = (without_padding(row.numpy()) for ids in self.ids for row in ids.long())
        yield from ((key, text) for key, text in zip(self.keys, rows, strict=True) if len(text) > 1)


def without_padding(row: Ids) -> Ids:
    """Return `row` without what only repeats its first or its last token, which would pass for a likeness."""
    changes = np.flatnonzero(row[1:] != row[:-1])
    return row[changes[0] : changes[-1] + 2] if len(changes) else row[:1]


def batches_of(value: Any, like: Any) -> list[Any]:
    """Return `value` as a list of batches: it is one batch if it is built like one, else many."""
    if value is None:
        return []
    if isinstance(value, Tensor | Mapping) or hasattr(value, "_fields"):
        return [value]
    parts = list(value)
    is_one = isinstance(like, list | tuple) and len(parts) == len(like) and all(map(_alike, parts, like))
    return [value] if is_one and not all(map(_is_like(like), parts)) else parts


def _alike(one: Any, other: Any) -> bool:
    return type(one) is type(other) and (not isinstance(one, Tensor) or one.dim() == other.dim())


def _is_like(like: Any) -> Any:
    return lambda part: (
        isinstance(part, list | tuple) and len(part) == len(like) and all(map(_alike, part, like))
    )


def ranks_of(subject: Subject) -> int:
    """Return how many ranks train together."""
    replicas = getattr(subject.run, "replicas", None)
    return max(subject.declared.ranks, len(replicas) if isinstance(replicas, Sequence) else 1)


def rows_of_rank(subject: Subject, step: int, rank: int) -> list[Any]:
    """Return the micro-batches of one rank as a list."""
    return batches_of(subject.need("micro_batches")(step, rank), subject.run.batch(step))


def whole_batch(subject: Subject, step: int) -> Any:
    """Return the batch of all ranks: `batch(step)`, or what it is a part of when it is that of rank 0."""
    batch, ranks = subject.run.batch(step), ranks_of(subject)
    if ranks < 2 or not hasattr(subject.run, "micro_batches"):
        return batch
    parts = [rows_of_rank(subject, step, rank) for rank in range(ranks)]
    try:
        mine, first = Counter(Rows.of([batch]).keys), Counter(Rows.of(parts[0]).keys)
        return _joined([part for of_rank in parts for part in of_rank]) if mine == first else batch
    except (Unavailable, RuntimeError):  # no token ids, or rows of different lengths
        return batch


def _joined(batches: Sequence[Any]) -> Any:
    """Return the rows of `batches`, all built alike, as one batch."""
    first = batches[0]
    if isinstance(first, Tensor):
        return torch.cat(list(batches)) if first.dim() else first
    if isinstance(first, Mapping):
        return {name: _joined([batch[name] for batch in batches]) for name in first}
    if isinstance(first, list | tuple):
        parts = [_joined(part) for part in zip(*batches, strict=True)]
        return type(first)(*parts) if hasattr(first, "_fields") else type(first)(parts)
    return first


def looked_at(subject: Subject, steps: int = LOOKED_AT_STEPS) -> dict[int, Rows]:
    """Return the rows of `batch(step)` for as many steps as a second allows; fewer when the data end."""
    begun, found = time.perf_counter(), {}
    for step in range(subject.step, subject.step + steps):
        try:
            batch = subject.run.batch(step)
        except Exception:  # no such step
            break
        found[step] = Rows.of([batch])
        if time.perf_counter() - begun > LOOKED_AT_SECONDS:
            break
    return found


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
    if len(row) < tokens:
        return np.zeros(0, np.uint64)
    factors = np.power(np.uint64(0x9E3779B97F4A7C15), np.arange(1, tokens + 1, dtype=np.uint64))
    windows = np.lib.stride_tricks.sliding_window_view(row.astype(np.uint64), tokens)
    hashes: npt.NDArray[np.uint64] = (windows * factors).sum(axis=1, dtype=np.uint64)
    return hashes


def shortest(tables: Iterable[Rows]) -> int:
    """Return the tokens of the shortest text among these rows; 1 where there is none."""
    return min((len(text) for rows in tables for _, text in rows.each()), default=1)


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
