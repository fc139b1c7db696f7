"""The documents that a run believes are in its batch, and where they really are.

A document may lie in one row or run on in the next; between two there may be a separator or padding. Only
what no such layout explains is a fault: a document that is missing, twice, cut, or in another order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from mothertongue_arbiter.certificate import Check, Verdict
from mothertongue_arbiter.torch.data.rows import ranks_of, rows_of_rank
from mothertongue_arbiter.torch.run.batches import mapped, token_ids
from mothertongue_arbiter.torch.run.listing import Ids, listed_documents
from mothertongue_arbiter.torch.run.subject import Subject, Unavailable

LEAST_TELLING = 4  # tokens of a document that is recognised in a strange place
CHECKED_STEPS = 2


@dataclass(frozen=True)
class Stream:
    """Rows of tokens one after the other, and where each row ends."""

    tokens: Ids
    row_ends: frozenset[int]

    def find(self, document: Ids, start: int = 0) -> int:
        """Return where `document` begins at `start` or later, -1 if nowhere."""
        text, sought = self.tokens.tobytes(), document.tobytes()
        size = self.tokens.itemsize
        at = text.find(sought, start * size)
        while at >= 0 and at % size:
            at = text.find(sought, at + 1)
        return at // size if at >= 0 else -1


def documents_held(subject: Subject) -> Check:
    """The batch holds the documents that `documents` lists: all of them, whole, once, in order."""
    believed = subject.need("documents")
    steps = range(subject.step, subject.step + CHECKED_STEPS)
    count = 0
    for step in steps:
        readings = _readings(subject, believed, step)
        problem = None
        for listed, stream in reversed(readings):  # the first one, the plain batch, is what is reported
            problem = _problem(listed, stream)
            if problem is None:
                break
        if problem:
            evidence = f"step {step}: {problem[0]}"
            return Check(name="documents", verdict=Verdict.FAIL, evidence=evidence, cause=problem[1])
        count += len(readings[0][0])
    evidence = f"{count} documents in {len(steps)} batches: each whole, once, in order"
    return Check(name="documents", verdict=Verdict.PASS, evidence=evidence)


def _readings(subject: Subject, believed: Any, step: int) -> list[tuple[list[Ids], Stream]]:
    """Return what may be meant: the batch or the part of rank 0, with the last label of a row or without.

    Where padding and end-of-text are one token, the first one after a text may be either.
    """
    whole = subject.run.batch(step)
    ids = token_ids(whole)
    if ids is None:
        raise Unavailable("a batch holds no token ids")
    ranks = ranks_of(subject) if hasattr(subject.run, "micro_batches") else 1
    of_ranks = [listed_documents(believed(step, rank), ids) for rank in range(ranks)]
    if any(one is None for one in of_ranks):
        raise Unavailable("`documents` gives the number of each token's document, not the documents")
    first = of_ranks[0] or []
    parts = [(first, [whole])]
    if ranks > 1:
        parts = [
            (first, rows_of_rank(subject, step, 0)),
            ([one for r in of_ranks for one in r or []], [whole]),
            *parts,
        ]
    pad = subject.declared.pad_token
    return [
        (documents, _stream(batches, pad, labels=labels, end=end))
        for documents, batches in parts
        for labels in (False, True)
        for end in ((False, True) if pad is not None else (False,))
    ]


def _stream(batches: Sequence[Any], pad: int | None, *, labels: bool, end: bool) -> Stream:
    rows: list[Ids] = []
    for batch in batches:
        ids = token_ids(batch)
        assert ids is not None
        for row, last in zip(ids.cpu().long().numpy(), _last_labels(batch, ids), strict=True):
            rows.append(np.append(row, last) if labels and last >= 0 else row)
    rows = [row if pad is None else _without(row, pad, end=end) for row in rows]
    ends = np.cumsum([len(row) for row in rows])
    return Stream(np.concatenate(rows).astype(np.int64), frozenset(ends.tolist()))


def _without(row: Ids, pad: int, *, end: bool) -> Ids:
    """Return `row` without the padding at its ends, but with the first one after its text if `end`."""
    real = np.flatnonzero(row != pad)
    return row[real[0] : real[-1] + 1 + end] if len(real) else row[:0]


def _last_labels(batch: Any, ids: Tensor) -> list[int]:
    """Return the label of the last position of each row, if the batch holds shifted labels; else -1."""
    found = [-1] * len(ids)

    def look(tensor: Tensor) -> Tensor:
        if tensor.shape == ids.shape and tensor is not ids and not tensor.is_floating_point():
            told = tensor[:, :-1] >= 0
            if bool(told.any()) and bool((tensor[:, :-1] == ids[:, 1:])[told].float().mean() > 0.9):
                found[:] = tensor[:, -1].tolist()
        return tensor

    mapped(batch, look)
    return found


def _problem(documents: Sequence[Ids], stream: Stream) -> tuple[str, str] | None:
    """Return what is wrong with the documents of this stream, and why; None when nothing is."""
    at, gaps = 0, list[tuple[int, int]]()
    for number, document in enumerate(documents):
        found = stream.find(document, at)
        if found < 0:
            if number == 0 and _begins_with_the_end_of(document, stream):
                found, document = 0, document[: _begins_with_the_end_of(document, stream)]
            elif number == len(documents) - 1 and _ends_with_the_beginning_of(document, stream, at):
                return _gap_problem(documents, gaps, stream)
            else:
                return _lost(number, document, stream, at)
        gaps.append((at, found))
        at = found + len(document)
    gaps.append((at, len(stream.tokens)))
    return _gap_problem(documents, gaps, stream)


def _begins_with_the_end_of(document: Ids, stream: Stream) -> int:
    """Return how many of the last tokens of `document` begin the stream: a document from the batch before."""
    sizes = range(len(document) - 1, 0, -1)
    return next((n for n in sizes if np.array_equal(stream.tokens[:n], document[-n:])), 0)


def _ends_with_the_beginning_of(document: Ids, stream: Stream, at: int) -> bool:
    """Return whether the stream ends, soon after `at`, within `document`: it goes on in the next batch."""
    rest = len(stream.tokens) - at
    return any(
        np.array_equal(stream.tokens[-n:], document[:n])
        for n in range(min(rest, len(document)), 0, -1)
        if rest - n <= 2
    )


def _lost(number: int, document: Ids, stream: Stream, at: int) -> tuple[str, str]:
    which = f"document {number} ({len(document)} tokens)"
    if stream.find(document) >= 0:
        return f"{which} stands before an earlier one", "documents in another order than listed"
    if len(document) > 1 and stream.find(document[:-1], at) >= 0:
        return (
            f"{which} lacks its last token {document[-1]}",
            "the end-of-text token is cut off, or a window is off by one",
        )
    if len(document) > 1 and stream.find(document[1:], at) >= 0:
        return (
            f"{which} lacks its first token {document[0]}",
            "the begin-of-text token is lost, or a window is off by one",
        )
    kept = next((n for n in range(len(document) - 2, 0, -1) if stream.find(document[:n], at) >= 0), 0)
    if kept >= max(LEAST_TELLING, len(document) // 4):
        return f"{which} is cut after {kept} tokens", "truncated, or the tokens of another row follow"
    return f"{which} is not in the batch", "a dropped document, or the batch of another step or rank"


def _gap_problem(
    documents: Sequence[Ids], gaps: Sequence[tuple[int, int]], stream: Stream
) -> tuple[str, str] | None:
    """Between documents there is nothing, the same separator everywhere, or padding."""
    separators = []
    for number, (start, end) in enumerate(gaps):
        between = stream.tokens[start:end]
        twin = next(
            (n for n, one in enumerate(documents) if len(one) >= LEAST_TELLING and _holds(between, one)), None
        )
        if twin is not None:
            return f"document {twin} is in the batch twice", "a document that two windows or two rows hold"
        inner = 0 < number < len(documents)
        if inner and end not in stream.row_ends and start not in stream.row_ends:
            separators.append((number, tuple(between.tolist())))
    kinds = {gap for _, gap in separators}
    if len(kinds) > 1:
        usual = max(kinds, key=lambda kind: sum(gap == kind for _, gap in separators))
        number, strange = next((number, gap) for number, gap in separators if gap != usual)
        if (
            len(set(strange)) <= 1
            and len(set(usual)) <= 1
            and len({*strange, *usual}) == 1
            and strange
            and usual
        ):
            return None  # padding of different lengths
        here, elsewhere = list(strange) or "nothing", list(usual) or "nothing"
        evidence = f"{here} between documents {number - 1} and {number}, {elsewhere} between others"
        return evidence, "a separator that is lost or doubled, or tokens of another document"
    usual = next(iter(kinds), ())
    if len(usual) == 1 and len(documents) > 2:
        if all(one[-1] == usual[0] for one in documents):
            return (
                f"token {usual[0]} stands twice at the end of every document",
                "the end-of-text token is added twice",
            )
        if all(one[0] == usual[0] for one in documents):
            return (
                f"token {usual[0]} stands twice before every document",
                "the begin-of-text token is added twice",
            )
    return None


def _holds(tokens: Ids, document: Ids) -> bool:
    return Stream(tokens, frozenset()).find(document) >= 0
