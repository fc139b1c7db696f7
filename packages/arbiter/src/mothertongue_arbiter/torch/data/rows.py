"""The rows of token ids that a run feeds, rank by rank, and a key by which a row is known again."""

from __future__ import annotations

import hashlib
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mothertongue_arbiter.torch.run.batches import token_ids
from mothertongue_arbiter.torch.run.digest import DIGEST_BYTES
from mothertongue_arbiter.torch.run.listing import Ids
from mothertongue_arbiter.torch.run.subject import Subject, Unavailable

LOOKED_AT_SECONDS = 1.0
LOOKED_AT_STEPS = 64


def row_keys(ids: Tensor) -> list[bytes]:
    """Return one digest for each row of token ids (B, T), whatever their integer dtype."""
    rows = ids.detach().cpu().long().contiguous().numpy()
    return [hashlib.blake2b(row.tobytes(), digest_size=DIGEST_BYTES).digest() for row in rows]


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
    begun, read = time.perf_counter(), subject.rows_read
    wanted = range(subject.step, subject.step + steps)
    for step in wanted:
        if step in read:
            continue
        try:
            batch = subject.run.batch(step)
        except Exception:  # no such step
            break
        read[step] = Rows.of([batch])
        if time.perf_counter() - begun > LOOKED_AT_SECONDS:
            break
    return {step: rows for step, rows in read.items() if step in wanted}


def shortest(tables: Iterable[Rows]) -> int:
    """Return the tokens of the shortest text among these rows; 1 where there is none."""
    return min((len(text) for rows in tables for _, text in rows.each()), default=1)
