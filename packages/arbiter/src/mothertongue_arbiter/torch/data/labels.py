"""Labels and weights, judged from the X-ray of the real loss."""

from __future__ import annotations

import torch
from torch import Tensor

from mothertongue_arbiter.certificate import Check, Finding, Verdict
from mothertongue_arbiter.torch.forward.padding import real_positions
from mothertongue_arbiter.torch.run.batches import mapped
from mothertongue_arbiter.torch.run.subject import ExactSubject, Unavailable
from mothertongue_arbiter.torch.run.xray import Xray

LARGEST_RESIDUAL = 1e-6  # float64; beyond it the loss is no plain cross-entropy, and nothing can be read
LARGEST_WEIGHT_ERROR = 1e-6  # relative, float64
LARGEST_SMOOTHING_ERROR = 1e-4


def labels(subject: ExactSubject) -> Check:
    """Each position learns the label that it should, and every token that should be learned is."""
    if getattr(subject.run, "declared", None) is None and not hasattr(subject.run, "targets"):
        raise Unavailable("neither `targets(batch)` nor `declared` says what should be learned")
    xray = plain(subject)
    expected, must = _expected(subject)
    known = (expected >= 0) & xray.supervised
    wrong = known & (xray.labels != expected)
    if bool(wrong.any()):
        share = float(wrong.sum()) / float(known.sum())
        evidence = f"{share:.0%} of the positions learn another label than declared"
        return _failed("labels", evidence, _shift(subject, xray, known))
    missed = must & ~xray.supervised
    if bool(missed.any()):
        return _missed(subject, expected, missed, must)
    extra = xray.supervised & (expected == -1)
    if bool(extra.any()):
        evidence = f"{int(extra.sum())} positions are learned that have no label"
        return _failed("labels", evidence, "a mask that is not applied, or off by one")
    unlearned = _unlearned(subject, expected, xray)
    if unlearned:
        tokens = ", ".join(map(str, unlearned))
        return _failed("labels", f"token {tokens} never learned", "masked by value, as padding")
    count = int(xray.supervised.sum())
    return Check(
        name="labels",
        verdict=Verdict.PASS,
        evidence=f"{count} of {xray.weights.numel()} positions learned, each with its label",
    )


def weights(subject: ExactSubject) -> Check:
    """All learned positions weigh the same, and the weights add up to the declared normalisation."""
    rule = subject.declared.normalisation
    if getattr(subject.run, "declared", None) is None or rule == "other":
        raise Unavailable("`declared.normalisation` does not say how positions are weighed")
    altered = _another_loss(subject, subject.xray)
    if altered:
        return altered
    xray = plain(subject)
    smoothing, declared = xray.smoothing, subject.declared.label_smoothing
    if smoothing is None and declared:
        raise Unavailable("with logits that are all equal, smoothed labels cannot be told from lighter ones")
    if smoothing is not None and abs(smoothing - declared) > LARGEST_SMOOTHING_ERROR:
        evidence = f"labels are smoothed by {smoothing:.4g}, {declared:g} is declared"
        return _failed("loss weights", evidence, "another label_smoothing than believed")
    found = xray.weights[xray.supervised]
    if not found.numel():
        return _failed("loss weights", "no position is learned", "every label is masked")
    low, high, total = float(found.min()), float(found.max()), float(found.sum())
    if high - low > LARGEST_WEIGHT_ERROR * high:
        evidence = f"weights differ between positions by a factor of {high / low:.3g}"
        return _failed("loss weights", evidence, "a mean of means, or one token's weight used for all")
    should = 1.0 if rule == "tokens" else float(found.numel())
    if abs(total - should) > LARGEST_WEIGHT_ERROR * should:
        evidence = f"weights add up to {total:.6g}, {should:.6g} declared"
        return _failed("loss weights", evidence, "normalised twice, or by another count")
    return Check(
        name="loss weights",
        verdict=Verdict.PASS,
        evidence=f"{found.numel()} equal weights, sum {total:.6g}",
    )


def _another_loss(subject: ExactSubject, xray: Xray) -> Check | None:
    """A loss that is no cross-entropy of the logits of `forward`: what is trained is not what is used."""
    is_tempered = abs(xray.temperature - 1) >= LARGEST_WEIGHT_ERROR
    is_plain = xray.residual <= LARGEST_RESIDUAL
    if (is_plain and not is_tempered) or getattr(subject.run, "forward", None) is None:
        return None
    of_loss, used = subject.logits_of_loss.detach(), subject.logits(subject.batch)
    if of_loss.shape != used.shape or not torch.allclose(of_loss, used, rtol=1e-6, atol=1e-9):
        return None  # `forward` does the same, or the logits are those of another forward
    if is_plain:
        evidence = f"the loss divides the logits of `forward` by {xray.temperature:.4g}"
        return _failed("loss weights", evidence, "a temperature, a scale or a cap in the loss only")
    rule = subject.declared.normalisation
    evidence = f"{rule!r} declares a cross-entropy; the gradient at the logits of `forward` is another one"
    cause = "softmax before the cross-entropy, a clamped or focal loss, or a z-loss: normalisation 'other'"
    return _failed("loss weights", f"{evidence}, {xray.residual:.1e} apart", cause)


def plain(subject: ExactSubject) -> Xray:
    """Return the X-ray, if it can be read: what else acts on the logits, as a z-loss, hides it."""
    if subject.xray.residual > LARGEST_RESIDUAL:
        residual = f"residual {subject.xray.residual:.1e}"
        raise Unavailable(f"the loss is no plain cross-entropy of the logits ({residual})")
    return subject.xray


def _expected(subject: ExactSubject) -> tuple[Tensor, Tensor]:
    """Return the label of each position (-1 none, -2 not known), and where it must be learned."""
    shape = subject.xray.labels.shape
    if hasattr(subject.run, "targets"):
        targets = torch.as_tensor(subject.run.targets(subject.batch)).to(subject.ids.device).long()
        expected = torch.where(targets < 0, -1, targets)[:, : shape[1]]
        if expected.shape != shape:
            raise Unavailable(f"`targets` has shape {tuple(targets.shape)}, the logits say {tuple(shape)}")
        return expected, expected >= 0
    if subject.declared.labels != "next":
        raise Unavailable("`declared.labels` is 'other' and there is no `targets(batch)`")
    ids = subject.ids.long()
    following = torch.full_like(ids, -2)
    following[:, :-1] = ids[:, 1:]
    real = real_positions(subject)
    must = (following >= 0) & _same_document(subject, ids) & real & real.roll(-1, 1)
    if _runs_on(subject):
        following[:, -1] = -1
    if subject.declared.supervised == "some":
        must = torch.zeros_like(must)
    if ids.shape[0] != shape[0] or ids.shape[1] < shape[1]:
        raise Unavailable(f"token ids {tuple(ids.shape)} do not match the logits {tuple(shape)}")
    return following[:, : shape[1]], must[:, : shape[1]]


def _runs_on(subject: ExactSubject) -> bool:
    """Return whether the last position of each row learns the first token of the next row.

    A batch that holds nothing but ids knows no token after a row, so the labels were cut from one long list.
    One token after all rows, also the last, is an end-of-text that the loss adds.
    """
    xray, ids, numbers = subject.xray, subject.ids, 0

    def counted(tensor: Tensor) -> Tensor:
        nonlocal numbers
        numbers += tensor.shape == ids.shape and not tensor.is_floating_point()
        return tensor

    mapped(subject.batch, counted)
    last, first = xray.labels[:-1, -1], ids[1:, 0]
    alone = numbers == 1 and len(ids) > 1 and xray.labels.shape == ids.shape
    if not alone or bool((xray.supervised[:, -1] & (xray.labels[:, -1] == first[0])).all()):
        return False
    return bool(xray.supervised[:-1, -1].all()) and bool((last == first).all())


def _same_document(subject: ExactSubject, ids: Tensor) -> Tensor:
    """Return where the next token belongs to the same document; everywhere, when documents are not known."""
    same = torch.ones_like(ids, dtype=torch.bool)
    documents = subject.documents
    if documents is not None:
        same[:, :-1] = documents[:, :-1] == documents[:, 1:]
    return same


def _missed(subject: ExactSubject, expected: Tensor, missed: Tensor, must: Tensor) -> Check:
    share = float(missed.sum()) / float(must.sum())
    rows = [row for row in range(len(missed)) if bool(must[row].any()) and bool(missed[row][must[row]].all())]
    tokens = sorted(set(expected[missed].tolist()) - set(expected[must & ~missed].tolist()))
    evidence = f"{share:.1%} of the positions that should learn do not"
    if rows:
        return _failed("labels", f"{evidence}: whole rows {rows[:6]}", "rows dropped on the way to the loss")
    if tokens and set(expected[missed].tolist()) == set(tokens):
        listed = ", ".join(map(str, tokens[:6]))
        return _failed(
            "labels", f"{evidence}: token {listed} is never learned", "masked by value, as padding"
        )
    return _failed("labels", evidence, "a mask that is not declared, or the wrong one")


def _unlearned(subject: ExactSubject, expected: Tensor, xray: Xray) -> list[int]:
    occurring = set(subject.ids.flatten().tolist())
    learned = set(xray.labels[xray.supervised].tolist())
    return [token for token in subject.declared.must_learn if token in occurring and token not in learned]


def _shift(subject: ExactSubject, xray: Xray, known: Tensor) -> str:
    """Name the shift that explains the labels, if one does."""
    ids = subject.ids.long()
    length = xray.labels.shape[1]
    for offset, cause in ((2, "labels shifted twice"), (0, "labels not shifted: it learns to copy")):
        shifted = ids[:, offset : offset + length]
        width = shifted.shape[1]
        asked = known[:, :width]
        if bool((xray.labels[:, :width] == shifted)[asked].float().mean() > 0.95):
            return cause
    return "labels and inputs of different rows or positions"


def _failed(name: str, evidence: str, cause: str, findings: tuple[Finding, ...] = ()) -> Check:
    return Check(name=name, verdict=Verdict.FAIL, evidence=evidence, cause=cause, findings=findings)
