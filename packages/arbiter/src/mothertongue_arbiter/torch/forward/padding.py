"""Padding: a row gives the same logits without it, and nobody learns from it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from mothertongue_arbiter.certificate import Check, Verdict
from mothertongue_arbiter.judgement import Judge
from mothertongue_arbiter.torch.forward.modes import evaluation
from mothertongue_arbiter.torch.run.backward import backward
from mothertongue_arbiter.torch.run.batches import MASK_NAMES, named_tensor, rows_of, stretch_of
from mothertongue_arbiter.torch.run.subject import ExactSubject, Subject, Unavailable
from mothertongue_arbiter.torch.run.witness import TorchWitness

READABLE = 1e-6  # residual of an X-ray; beyond it the loss is no plain cross-entropy


def padding_independence(subject: ExactSubject) -> Check:
    """The real positions of a padded row have the logits of the row without its padding."""
    subject.need("forward")
    real = real_positions(subject)
    padded = [row for row in range(len(real)) if bool(real[row].any()) and not bool(real[row].all())]
    if not padded:
        raise Unavailable("no row of this batch is padded")
    learned = _learned_padding(subject, real)
    if learned:
        return _failed(f"{learned} positions inside padding are learned", "a label mask that is not applied")
    with evaluation(subject.run.model):  # shapes differ, and so would dropout
        whole = subject.standing
        for row in padded:
            first, last = _ends(real[row])
            alone = subject.logits(stretch_of(subject.batch, row, slice(first, last)))[0]
            together = whole[row, first : first + len(alone)]
            apart = (alone[: len(together)] - together).abs().amax(-1) / whole.abs().max().clamp(min=1e-30)
            if float(apart.max()) > subject.same_at_other_positions:
                where = f"row {row}, position {first + int(apart.argmax())}"
                return _failed(
                    f"{where} differs by {float(apart.max()):.1e} from the same row without its padding",
                    "padding on the left is attended, or shifts the positions"
                    if first
                    else "padding on the right is attended",
                )
    evidence = f"{len(padded)} padded rows have the same logits without padding, which nobody learns"
    return Check(name="padding independence", verdict=Verdict.PASS, evidence=evidence)


def unless_padding_learns(subject: ExactSubject, check: Check) -> Check:
    """Return `check`, of gradient values; where a position learns and sees nothing, of the other rows.

    A mask adds the lowest number there is. Where it is added to everything, it absorbs the scores, and the
    gradient that softmax hands on is not the derivative. The last padding before a text does learn its first
    token in many programs.
    """
    if check.verdict != Verdict.FAIL:
        return check
    try:
        supervised, real = subject.xray.supervised, real_positions(subject)
    except Unavailable:
        return check
    if supervised.shape[0] != len(real) or subject.xray.residual > READABLE:
        return check
    before_text = ~real & (real.long().cumsum(1) == 0)
    places = (before_text[:, : supervised.shape[1]] & supervised).nonzero().tolist()
    if not places:
        return check
    others = [index for index in range(len(real)) if index not in {place[0] for place in places}]
    if others:
        found = _values(subject, rows_of(subject.batch, others))
        left_out = f"rows {others} only: in the others padding learns"
        return replace(found, evidence=f"{found.evidence}; {left_out}")
    row = int(real.sum(1).argmax())
    found = _values(subject, stretch_of(subject.batch, row, slice(*_ends(real[row]))))
    left_out = f"row {row} without its padding only: in all rows padding learns"
    return replace(found, evidence=f"{found.evidence}; {left_out}")


def _values(subject: ExactSubject, batch: Any) -> Check:
    exact = backward(subject.run, batch, seed=subject.options.seed)
    witness = TorchWitness(subject.run, batch, exact, uses=subject.mode.uses, seed=subject.options.seed)
    directions = subject.options.random_directions
    return Judge(witness, subject.declared, step=subject.step, random_directions=directions).values()


def real_positions(subject: Subject) -> Tensor:
    """Return where a row holds text, (B, T): all of it, when nobody says what padding is."""
    ids = subject.ids
    mask = named_tensor(subject.batch, MASK_NAMES)
    if mask is not None and mask.shape == ids.shape:
        return _inner(mask != 0)
    token = subject.declared.pad_token
    return torch.ones_like(ids, dtype=torch.bool) if token is None else _inner(ids != token)


def _inner(real: Tensor) -> Tensor:
    """Return all from the first to the last real position: a pad token within a text is a token."""
    seen_before = real.long().cumsum(1) > 0
    seen_after = real.long().flip(1).cumsum(1).flip(1) > 0
    return seen_before & seen_after


def _ends(real: Tensor) -> tuple[int, int]:
    positions = real.nonzero().flatten()
    return int(positions[0]), int(positions[-1]) + 1


def _learned_padding(subject: ExactSubject, real: Tensor) -> int:
    """Count padded positions that learn, and whose label is padding too."""
    if not hasattr(subject.run, "loss"):
        return 0
    try:
        supervised = subject.xray.supervised
    except Unavailable:
        return 0
    if subject.xray.residual > READABLE or supervised.shape[0] != len(real):
        return 0
    length = supervised.shape[1]
    padding = ~real[:, :length]
    inside = padding.clone()
    inside[:, :-1] &= padding[
        :, 1:
    ]  # the last position before a text learns its first token in many programs
    inside[:, 1:] &= padding[
        :, :-1
    ]  # the first one after a text may be its own end, where both are one token
    return int((inside & supervised).sum())


def _failed(evidence: str, cause: str) -> Check:
    return Check(name="padding independence", verdict=Verdict.FAIL, evidence=evidence, cause=cause)
