"""Accumulation: the micro-batches of a step together give the gradient of the whole batch."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from mothertongue_arbiter.certificate import Check, Finding, Verdict
from mothertongue_arbiter.judgement import named
from mothertongue_arbiter.torch.run.backward import backward, distance
from mothertongue_arbiter.torch.run.batches import in_float64
from mothertongue_arbiter.torch.run.subject import ExactSubject, Unavailable

LARGEST_DISTANCE = 1e-8  # relative, float64; sums of another order differ by 1e-13


def accumulation(subject: ExactSubject) -> Check:
    """The mean of the micro-batches' gradients is the gradient of the whole batch."""
    micro_batches = subject.need("micro_batches")(subject.step, 0)
    if hasattr(subject.run, "train_step"):
        raise Unavailable("judged in the real step instead: see 'gradient handed over' and 'step weights'")
    if subject.is_random:
        raise Unavailable("the loss draws random numbers (dropout), differently for each micro-batch")
    whole = backward(subject.run, in_float64(subject.run.batch(subject.step)), seed=subject.options.seed)
    parts = [backward(subject.run, in_float64(part), seed=subject.options.seed) for part in micro_batches]
    share = 1.0 if subject.declared.normalisation == "sum" else 1.0 / len(parts)
    mean = {name: _mean([part.gradients[name] for part in parts], share) for name in whole.gradients}
    apart: Mapping[str, float] = {name: distance(mean, whole.gradients, name) for name in mean}
    bad = [name for name, far in apart.items() if not far <= LARGEST_DISTANCE]
    worst = max(apart.values(), default=0.0)
    return Check(
        name="accumulation",
        verdict=Verdict.FAIL if bad else Verdict.PASS,
        evidence=f"{len(parts)} micro-batches are not their batch, gradients {worst:.1e} apart: {named(bad)}"
        if bad
        else f"{len(parts)} micro-batches give the gradient of the whole batch ({worst:.1e})",
        cause="a mean of micro-batch means where token counts differ, or dropped rows" if bad else "",
        findings=tuple(Finding(subject=name, verdict="WRONG") for name in bad),
    )


def _mean(gradients: list[Tensor | None], share: float) -> Tensor | None:
    present = [gradient for gradient in gradients if gradient is not None]
    if not present:
        return None
    total = present[0] * share
    for gradient in present[1:]:
        total = total + gradient * share
    return total
