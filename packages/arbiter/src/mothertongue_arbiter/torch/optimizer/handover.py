"""The gradient that the optimizer is handed: the declared function of the gradient of the whole batch."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from mothertongue_arbiter.certificate import Check, Finding, Verdict
from mothertongue_arbiter.declared_optimizer import Optimizer
from mothertongue_arbiter.judgement import named
from mothertongue_arbiter.run import Declared
from mothertongue_arbiter.torch.data.rows import ranks_of
from mothertongue_arbiter.torch.gradients.rounding import OwnPrecision
from mothertongue_arbiter.torch.optimizer.comparison import (
    LEAST_TOLERANCE,
    Compared,
    Gradients,
    along,
    apart,
    compare,
    norm_of,
)
from mothertongue_arbiter.torch.optimizer.mixtures import centralised, mixture
from mothertongue_arbiter.torch.optimizer.steps import Steps, small_step
from mothertongue_arbiter.torch.optimizer.watching import Recorded
from mothertongue_arbiter.torch.run.subject import Subject, Unavailable

NAME = "gradient handed over"
ROUNDINGS_OF_A_MOVE = 16.0  # of weights that are moved and moved back
SPARE_BITS = 2  # by which a gradient is shorter than what is clipped
UNKNOWN = (
    "accumulation with unequal weights, dropped or separately clipped micro-batches, or an altered gradient"
)
LEAST_LOSS_SCALE = 8.0  # powers of two from here are taken for a loss scale


def handed_gradient(subject: Subject, steps: Steps, rounding: OwnPrecision) -> Check:
    """The optimizer gets the gradient of the declared loss on the whole batch, clipped as declared.

    Without a declared optimizer one common factor is free: clipping and loss scaling are unknown.
    """
    if not subject.is_still:
        return _bounded(subject, steps)
    if any(record.closure for record in steps.records):
        raise Unavailable("`optimizer.step(closure)` computes its gradient itself")
    if any(record.hidden for record in steps.records):
        raise Unavailable("the optimizer finds its gradients elsewhere than at `grad` or `main_grad`")
    if any(record.handed is None for record in steps.records):
        raise Unavailable("`train_step` did not call `optimizer.step()` of this run's `optimizer`")
    optimizer = subject.declared.optimizer
    compared: list[Compared] = []
    for record in steps.records:
        one = compare(record, record.reference, rounding, subject.declared)
        if one.unlike:
            return _another(subject, record, one, compared, rounding)
        compared.append(one)
    evidence = f"in {len(compared)} steps, that of the whole batch"
    if optimizer is None:
        return Check(name=NAME, verdict=Verdict.PASS, evidence=evidence)
    wrong = [one for one in compared if not one.as_declared]
    if not wrong and optimizer.clip_norm is not None and all(one.expected < 1 for one in compared):
        wrong = _unclipped(subject, steps, compared, rounding)
    if wrong:
        return _scaled(wrong[0], compared, subject.declared, optimizer)
    clipped = sum(1 for one in compared if one.expected < 1)
    evidence += f", clipped as declared in {clipped}" if optimizer.clip_norm is not None else ", unscaled"
    return Check(name=NAME, verdict=Verdict.PASS, evidence=evidence)


def _unclipped(
    subject: Subject, steps: Steps, compared: list[Compared], rounding: OwnPrecision
) -> list[Compared]:
    """Return a step of gradients too small to be clipped, if micro-batches are summed there, not averaged.

    Where every gradient is clipped, its length before shows in nothing, until later in the training.
    """
    count, clip = subject.declared.accumulation, subject.declared.optimizer.clip_norm  # type: ignore[union-attr]
    if count < 2 or ranks_of(subject) > 1 or not clip:
        return []
    longest = max(one.norm for one in compared) * count / clip
    try:
        record = small_step(subject, steps, 2.0 ** -math.ceil(math.log2(longest) + SPARE_BITS))
    except Exception:  # a step that takes no small gradients
        return []
    one = compare(record, record.reference, rounding, subject.declared)
    summed = abs(one.factor / count - 1) <= one.tolerance or abs(one.factor * count - 1) <= one.tolerance
    return [one] if record.handed and not one.unlike and one.expected == 1 and summed else []


def _bounded(subject: Subject, steps: Steps) -> Check:
    """A step of chance cannot be repeated outside; that its gradient is clipped can be seen."""
    clip = None if subject.declared.optimizer is None else subject.declared.optimizer.clip_norm
    for record in steps.records if clip is not None else ():
        norm = norm_of(record.handed or {})
        if clip is not None and norm > clip * (1 + LEAST_TOLERANCE):
            evidence = (
                f"step {record.step}: the norm of the gradient is {norm:.4g}, {clip:g} at most is declared"
            )
            return Check(name=NAME, verdict=Verdict.FAIL, evidence=evidence, cause="clipping is not done")
    raise Unavailable("the loss draws random numbers, so a step cannot be repeated outside")


def _another(
    subject: Subject, record: Recorded, one: Compared, earlier: list[Compared], rounding: OwnPrecision
) -> Check:
    """Say what the optimizer is handed instead, where that can be recognised.

    What is not, may be meant: only a declared optimizer says that the gradient is not altered.
    """
    declared = subject.declared
    if record.moved and _came_back(record):
        raise Unavailable("the weights are moved for the gradient, and moved back, within the step")
    cause = UNKNOWN
    if any(_is_missing(name, one) for name in one.unlike):
        cause = "tensors whose gradient is lost on the way"
    elif all(_is_parallel(name, one, rounding) for name in one.unlike):
        cause = "tensors are scaled one by one: clipped by their own norm, or a missing micro-batch of some"
    if earlier:
        last = earlier[-1]
        piled = _sum(last.handed, one.reference)
        if not compare(record, piled, rounding, declared).unlike:
            cause = "zero_grad() is missing: it is the sum of this and the last step's"
        elif not compare(record, last.reference, rounding, declared).unlike:
            cause = "it is the gradient of the step before"
    if declared.optimizer is None and cause == UNKNOWN:
        if centralised(one.handed, one.reference):
            evidence = "that of the whole batch, less the mean of each row of a matrix"
            return Check(name=NAME, verdict=Verdict.PASS, evidence=evidence)
        cause = mixture(subject, record) or UNKNOWN
    if declared.optimizer is None and cause == UNKNOWN:
        evidence = f"step {record.step}: not that of loss() on batch(), by no known mistake: "
        evidence += f"{named(one.unlike)}; without `declared.optimizer` it may be altered on purpose"
        return Check(name=NAME, verdict=Verdict.INCONCLUSIVE, evidence=evidence)
    return Check(
        name=NAME,
        verdict=Verdict.FAIL,
        evidence=f"step {record.step}: the optimizer gets another gradient than loss() on batch() has: "
        f"{named(one.unlike)}",
        cause=cause,
        findings=tuple(Finding(subject=name, verdict="WRONG") for name in one.unlike),
    )


def _came_back(record: Recorded) -> bool:
    """Return whether the weights were, when the optimizer was called, those from before the step."""
    for call in record.calls[:1]:
        for name, applied in call.items():
            before = record.before[name].double()
            rounding = ROUNDINGS_OF_A_MOVE * torch.finfo(applied.before.dtype).eps
            if float((applied.before.double() - before).norm()) > rounding * float(before.norm()):
                return False
    return True


def _is_missing(name: str, one: Compared) -> bool:
    got, reference = one.handed.get(name), one.reference[name]
    lost = got is None or not bool(got.any())
    return lost and reference is not None and bool(reference.any())


def _is_parallel(name: str, one: Compared, rounding: OwnPrecision) -> bool:
    got, reference = one.handed.get(name), one.reference[name]
    if got is None or reference is None or not bool(reference.any()) or not bool(got.any()):
        return False
    tolerance = max(rounding.tolerances[name], LEAST_TOLERANCE)
    return apart(got, reference, along(got, reference)) <= tolerance


def _sum(one: Gradients, other: Gradients) -> dict[str, Tensor | None]:
    total = {}
    for name, gradient in other.items():
        earlier = one.get(name)
        total[name] = gradient if earlier is None else earlier if gradient is None else gradient + earlier
    return total


def _scaled(wrong: Compared, compared: list[Compared], declared: Declared, optimizer: Optimizer) -> Check:
    """The direction is right, and its length is not what the declared clipping explains."""
    clip = optimizer.clip_norm
    rule = "no clipping is declared" if clip is None else f"clipping to {clip:g} is declared"
    return Check(
        name=NAME,
        verdict=Verdict.FAIL,
        evidence=f"step {wrong.step}: the optimizer gets {wrong.factor:.4g} times the gradient of the whole "
        f"batch, whose norm is {wrong.norm:.4g}; {rule}, so {wrong.expected:.4g} times is expected",
        cause=_length_cause(wrong, compared, declared, clip),
    )


def _length_cause(wrong: Compared, compared: list[Compared], declared: Declared, clip: float | None) -> str:
    """Name the likely reason for a gradient of the wrong length."""
    times = wrong.factor / wrong.expected
    if not math.isfinite(times):
        return "a gradient that is not finite"
    for count, parts in ((declared.accumulation, "micro-batches"), (declared.ranks, "ranks")):
        if count > 1 and abs(times / count - 1) <= wrong.tolerance:
            return f"the gradients of {count} {parts} are summed where they should be averaged"
        if count > 1 and abs(times * count - 1) <= wrong.tolerance:
            return f"the gradient is divided by the {count} {parts} once too often"
    if _is_loss_scale(times, wrong.tolerance):
        return f"a loss scale of {times:.6g} is not undone before the step"
    if any(one.as_declared for one in compared) and _is_power_of_two(times, wrong.tolerance):
        return f"{times:g} times in this step only: a loss scale that changed before it was undone"
    return _clip_cause(wrong, compared, clip)


def _clip_cause(wrong: Compared, compared: list[Compared], clip: float | None) -> str:
    """Read off the length what was clipped instead."""
    norms = [one.factor * one.norm for one in compared]
    is_constant = len(norms) > 1 and max(norms) - min(norms) <= wrong.tolerance * max(norms)
    is_clipped = is_constant and any(one.factor < 1 - one.tolerance for one in compared)
    if clip is None:
        told = f"the gradient is clipped to the norm {norms[0]:.4g}, none is declared"
        return told if is_clipped else "a wrong normalisation, or a factor that is not declared"
    if abs(wrong.factor - 1) <= wrong.tolerance:
        return "the declared clipping is not done"
    supposed = clip / wrong.factor if wrong.factor else math.inf  # the norm that explains the factor
    if _is_loss_scale(supposed / wrong.norm, wrong.tolerance):
        scale = supposed / wrong.norm
        return f"clipped while a loss scale of {scale:.6g} was on the gradient: unscale before clipping"
    if is_clipped:
        return f"the gradient is clipped to the norm {norms[0]:.4g}, {clip:g} is declared"
    if wrong.factor > 1:
        return "a wrong normalisation, or a factor that is not declared"
    return f"clipped as if the norm were {supposed:.4g}: of one rank, one micro-batch or some parameters only"


def _is_loss_scale(factor: float, tolerance: float) -> bool:
    return LEAST_LOSS_SCALE <= factor < math.inf and _is_power_of_two(factor, tolerance)


def _is_power_of_two(factor: float, tolerance: float) -> bool:
    if not 0 < factor < math.inf:
        return False
    power = math.log2(factor)
    return abs(power - round(power)) <= 2 * tolerance
