"""Packing: a document gives the same logits in a row of its own as between others."""

from __future__ import annotations

import torch
from torch import Tensor

from mothertongue_arbiter.certificate import Check, Verdict
from mothertongue_arbiter.torch.forward.modes import evaluation
from mothertongue_arbiter.torch.forward.padding import real_positions
from mothertongue_arbiter.torch.run.batches import (
    POSITION_NAMES,
    named_tensor,
    other_ids,
    stretch_of,
    with_ids,
    with_tensor,
)
from mothertongue_arbiter.torch.run.subject import ExactSubject, Unavailable

MOST_DOCUMENTS = 4


def packing_independence(subject: ExactSubject) -> Check:
    """A document that shares its row has the logits that it has alone, at the start of its own row."""
    subject.need("forward")
    if subject.documents is None:
        raise Unavailable("the run has no `documents`")
    if not subject.declared.isolated_documents:
        raise Unavailable("documents are not declared isolated")
    found = later_documents(subject)
    if not found:
        raise Unavailable("no row holds two documents")
    with evaluation(subject.run.model):  # shapes differ, and so would dropout
        whole = subject.standing
        for row, columns in found:
            alone = subject.logits(_at_the_start(stretch_of(subject.batch, row, columns)))[0]
            together = whole[row, columns][: len(alone)]
            apart = float(
                (alone[: len(together)] - together).abs().max() / whole.abs().max().clamp(min=1e-30)
            )
            if apart > subject.same_at_other_positions:
                where = f"the document at {columns.start} to {columns.stop - 1} of row {row}"
                return Check(
                    name="packing independence",
                    verdict=Verdict.FAIL,
                    evidence=f"{where} differs by {apart:.1e} from the same document alone",
                    cause=_cause(subject, row, columns, whole),
                )
    evidence = f"{len(found)} documents have the same logits alone as in their rows"
    return Check(name="packing independence", verdict=Verdict.PASS, evidence=evidence)


def later_documents(subject: ExactSubject) -> list[tuple[int, slice]]:
    """Return a few (row, columns) of documents that are not the first of their row; padding is none."""
    documents, real = subject.documents, real_positions(subject)
    assert documents is not None
    found = []
    for row in range(len(documents)):
        starts = [0, *((documents[row, 1:] != documents[row, :-1]).nonzero().flatten() + 1).tolist()]
        spans = [slice(a, b) for a, b in zip(starts, [*starts[1:], documents.shape[1]], strict=True)]
        later = [
            one for one in spans[1:] if bool(real[row, one].all()) and int(documents[row, one.start]) >= 0
        ]
        if later:
            found.append((row, max(later, key=lambda one: (one.stop - one.start, one.start))))
    return found[:MOST_DOCUMENTS]


def _at_the_start(batch: object) -> object:
    """Let position ids count from the first one, as they do in a row of its own."""
    positions = named_tensor(batch, POSITION_NAMES)
    return batch if positions is None else with_tensor(batch, positions, positions - positions[..., :1])


def _cause(subject: ExactSubject, row: int, columns: slice, whole: Tensor) -> str:
    """Say whether the other documents reach this one, or only its place in the row does."""
    inside = torch.zeros_like(subject.ids, dtype=torch.bool)
    inside[row, columns] = True
    changed = torch.where(inside, subject.ids, other_ids(subject.ids))
    moved = subject.logits(with_ids(subject.batch, changed))[row, columns] - whole[row, columns]
    if float(moved.abs().max()) > subject.same_at_other_positions * float(whole.abs().max()):
        return "attention crosses documents of one row"
    if subject.declared.positions == "relative":
        return "positions are not relative: queries and keys turned differently, or positions that run on"
    return "positions run on from document to document, where each should start at 0"
