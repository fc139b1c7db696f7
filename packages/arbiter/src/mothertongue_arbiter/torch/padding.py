"""Padding: a row gives the same logits without it, and nobody learns from it."""

from __future__ import annotations

import torch
from torch import Tensor

from mothertongue_arbiter.certificate import Check, Verdict
from mothertongue_arbiter.torch.batches import MASK_NAMES, named_tensor, stretch_of
from mothertongue_arbiter.torch.modes import evaluation
from mothertongue_arbiter.torch.subject import ExactSubject, Subject, Unavailable


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
    if subject.xray.residual > 1e-6 or supervised.shape[0] != len(real):
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
