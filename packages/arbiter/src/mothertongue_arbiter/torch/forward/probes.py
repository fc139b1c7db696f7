"""Probes: change what must not matter, and see whether it does; in float64, so that "not" means not."""

from __future__ import annotations

import torch
from torch import Tensor

from mothertongue_arbiter.certificate import Check, Verdict
from mothertongue_arbiter.torch.forward.modes import evaluation
from mothertongue_arbiter.torch.forward.padding import real_positions
from mothertongue_arbiter.torch.run.batches import other_ids, rows_of
from mothertongue_arbiter.torch.run.subject import SAME, ExactSubject, Unavailable


def causality(subject: ExactSubject) -> Check:
    """No position sees a later token."""
    subject.need("forward")
    if not subject.declared.causal:
        raise Unavailable("declared as not causal")
    ids, before = subject.ids, subject.standing
    length, real = before.shape[1], real_positions(subject)
    if length < 2:
        raise Unavailable("sequences of one token")
    moved = False
    for cut in sorted({1, length // 2, length - 1}):
        changed = torch.cat([ids[:, :cut], other_ids(ids)[:, cut:]], dim=1)
        difference = subject.change(before, changed) * real[:, :length]
        leak = float(difference[:, :cut].max())
        if leak > SAME:
            first = int((difference.amax(0) > SAME).nonzero()[0])
            return _failed(
                "causality",
                f"position {first} changes by {leak:.1e} when only tokens from {cut} on change",
                _cause_of_leak(subject, changed, int(difference[:, :cut].amax(1).argmax()), cut),
            )
        moved |= float(difference[:, cut:].max()) > 0  # not where all that changes is padding
    if not moved:
        return _silent("causality")
    return _passed("causality", "earlier logits do not move when later tokens change")


def _cause_of_leak(subject: ExactSubject, changed: Tensor, row: int, cut: int) -> str:
    """Say whether the later tokens of the same row do it, or those of other rows."""
    alone = subject.ids.clone()
    alone[row] = changed[row]
    if float(subject.change(subject.standing, alone)[row, :cut].max()) <= SAME:
        return "an operation that mixes the rows of a batch: within its row nothing looks ahead"
    return "the causal mask is missing or off by one, or something mixes positions"


def independent_rows(subject: ExactSubject) -> Check:
    """A row gives the same logits whatever the other rows hold, and alone."""
    subject.need("forward")
    if not subject.declared.independent_rows:
        raise Unavailable("declared as not independent")
    ids, before = subject.ids, subject.standing
    if len(ids) < 2:
        raise Unavailable("the batch has one row")
    for row in (0, len(ids) - 1):
        changed = other_ids(ids)
        changed[row] = ids[row]
        leak = float(subject.change(before, changed)[row].max())
        if leak > SAME:
            evidence = f"row {row} changes by {leak:.1e} when only the other rows change"
            return _failed("independent rows", evidence, "an operation that mixes the rows of a batch")
    alone = _alone(subject)
    if alone > SAME:
        evidence = f"the last row differs by {alone:.1e} when it is the whole batch"
        return _failed("independent rows", evidence, "a kernel that treats the first row differently")
    return _passed("independent rows", "each row is the same with other neighbours and alone")


def isolated_documents(subject: ExactSubject) -> Check:
    """No token sees another document that shares its row."""
    subject.need("forward")
    documents = subject.documents
    if documents is None:
        raise Unavailable("the run has no `documents`")
    if not subject.declared.isolated_documents:
        raise Unavailable("documents are not declared isolated")
    ids, before = subject.ids, subject.standing
    first = documents == documents[:, :1]
    if bool(first.all()):
        raise Unavailable("no row holds two documents")
    changed = torch.where(first, other_ids(ids), ids)
    difference = subject.change(before, changed)
    others = ~first[:, : difference.shape[1]]
    leak = float(difference[others].max())
    if leak > SAME:
        evidence = f"later documents change by {leak:.1e} when only the first of each row changes"
        return _failed("isolated documents", evidence, "attention crosses documents of one row")
    if float(difference.max()) == 0:
        return _silent("isolated documents")
    return _passed("isolated documents", "later documents do not move when the first one changes")


def _alone(subject: ExactSubject) -> float:
    """Return how much the last row changes when it is the whole batch; dropout off, for the shapes differ."""
    with evaluation(subject.run.model):
        together = subject.standing[-1]
        alone = subject.logits(rows_of(subject.batch, slice(-1, None)))[0]
    return float((together - alone).abs().max() / together.abs().max().clamp(min=1e-30))


def _passed(name: str, evidence: str) -> Check:
    return Check(name=name, verdict=Verdict.PASS, evidence=evidence)


def _failed(name: str, evidence: str, cause: str) -> Check:
    return Check(name=name, verdict=Verdict.FAIL, evidence=evidence, cause=cause)


def _silent(name: str) -> Check:
    evidence = "the logits do not depend on the tokens at all here, so nothing was shown"
    return Check(name=name, verdict=Verdict.INCONCLUSIVE, evidence=evidence)
