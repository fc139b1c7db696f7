"""The gradient of the run's loss, against that of plain cross-entropy over the reference's logits."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from mothertongue_arbiter.certificate import Check, Verdict
from mothertongue_arbiter.judgement import named, off_by
from mothertongue_arbiter.torch.reference.logits import reference
from mothertongue_arbiter.torch.run.backward import distance
from mothertongue_arbiter.torch.run.subject import ExactSubject, Unavailable

SAME_LOSS = 1e-6  # relative
ROUNDING = 1e-12  # of the largest gradient: where the true one is zero, two float64 programs leave so much
PER_LOGIT = 100.0  # a gradient may be so much further apart than logits: it is small where logits are not


def reference_gradients(subject: ExactSubject) -> Check:
    """The loss of the run, fused or not, has the gradient of the declared loss over independent logits."""
    if subject.is_random:
        raise Unavailable("the loss draws random numbers (dropout), and the reference none")
    targets = _targets(subject)
    expected = reference(subject)
    if not bool(expected.known[:, : targets.shape[1]][targets >= 0].all()):
        raise Unavailable(f"{expected.source} does not know the logits of all learned positions")
    loss = _declared_loss(subject, expected.logits[:, : targets.shape[1]], targets)
    value = float(loss.detach())
    if abs(value - subject.exact.loss) > SAME_LOSS * max(1.0, abs(subject.exact.loss)):
        raise Unavailable(f"`loss` is {subject.exact.loss:.6g}, plain cross-entropy is {value:.6g}")
    parameters = dict(subject.run.model.named_parameters())
    wanted = {name: one for name, one in parameters.items() if one.requires_grad}
    found = torch.autograd.grad(loss, list(wanted.values()), allow_unused=True)
    gradients = dict.fromkeys(parameters) | dict(zip(wanted, found, strict=True))
    allowed = PER_LOGIT * subject.same_at_other_positions
    declared = subject.declared
    asked = [
        name
        for name in subject.judge.witness.names()
        if name in wanted
        and not declared.is_frozen(name)
        and not declared.expects_disagreement(name)
        and name not in declared.gradient_scale
    ]
    far = {name: distance(subject.exact.gradients, gradients, name) for name in asked}
    nothing = ROUNDING * max((_size(one) for one in subject.exact.gradients.values()), default=0.0)
    bad = [
        name
        for name in reversed(asked)
        if not far[name] <= allowed
        and not _size(subject.exact.gradients[name]) + _size(gradients[name]) <= nothing
    ]
    if bad:
        return Check(
            name="reference gradients",
            verdict=Verdict.FAIL,
            evidence=f"{len(bad)} of {len(asked)} gradients are not those of {expected.source}, off by "
            f"{far[bad[0]]:.1e}; nearest the loss: {named(bad)}",
            cause="a fused or hand-written backward",
            findings=off_by(bad, far),
        )
    farthest = max((one for one in far.values() if one <= allowed), default=0.0)
    return Check(
        name="reference gradients",
        verdict=Verdict.PASS,
        evidence=f"{len(asked)} gradients within {farthest:.1e} of {expected.source}",
    )


def _size(gradient: Tensor | None) -> float:
    return 0.0 if gradient is None else float(gradient.double().norm())


def _targets(subject: ExactSubject) -> Tensor:
    """Return the label of each position, (B, T), -100 where it has none."""
    declared, ids = subject.declared, subject.ids.long()
    if hasattr(subject.run, "targets"):
        targets = torch.as_tensor(subject.run.targets(subject.batch)).to(ids.device).long()
        if targets.shape[0] != ids.shape[0] or targets.dim() != 2:
            raise Unavailable(f"`targets` has shape {tuple(targets.shape)}, the token ids {tuple(ids.shape)}")
        return torch.where(targets < 0, -100, targets)
    if declared.labels != "next" or declared.supervised != "all":
        raise Unavailable("the run has no `targets`, and `declared` does not say them")
    targets = torch.full_like(ids, -100)
    targets[:, :-1] = ids[:, 1:]
    if declared.isolated_documents and subject.documents is not None:
        targets[:, :-1][subject.documents[:, 1:] != subject.documents[:, :-1]] = -100
    return targets


def _declared_loss(subject: ExactSubject, logits: Tensor, targets: Tensor) -> Tensor:
    rule = subject.declared.normalisation
    if rule == "other":
        raise Unavailable("`declared.normalisation` does not say how positions are weighed")
    return F.cross_entropy(
        logits.flatten(0, 1),
        targets.flatten(),
        reduction="sum" if rule == "sum" else "mean",
        label_smoothing=subject.declared.label_smoothing,
    )
