"""The gradient that the optimizer is handed: the declared function of the gradient of the whole batch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median

from torch import Tensor

from mothertongue_arbiter.certificate import Check, Finding, Verdict
from mothertongue_arbiter.declared_optimizer import Optimizer
from mothertongue_arbiter.judgement import named
from mothertongue_arbiter.run import Declared, matches
from mothertongue_arbiter.torch.gradients.rounding import OwnPrecision
from mothertongue_arbiter.torch.optimizer.steps import Steps
from mothertongue_arbiter.torch.optimizer.watching import Recorded
from mothertongue_arbiter.torch.run.subject import Subject, Unavailable

NAME = "gradient handed over"
LEAST_TOLERANCE = 1e-4  # relative; sums in another order
CLIP_EPS = 1e-6  # torch.nn.utils.clip_grad_norm_ divides by norm + 1e-6
LEAST_LOSS_SCALE = 8.0  # powers of two from here are taken for a loss scale

Gradients = Mapping[str, Tensor | None]


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
        one = _compare(record, record.reference, rounding, subject.declared)
        if one.unlike:
            return _another(record, one, compared, rounding, subject.declared)
        compared.append(one)
    evidence = f"in {len(compared)} steps, that of the whole batch"
    if optimizer is None:
        return Check(name=NAME, verdict=Verdict.PASS, evidence=evidence)
    wrong = [one for one in compared if not one.as_declared]
    if wrong:
        return _scaled(wrong[0], compared, subject.declared, optimizer)
    clipped = sum(1 for one in compared if one.expected < 1)
    evidence += f", clipped as declared in {clipped}" if optimizer.clip_norm is not None else ", unscaled"
    return Check(name=NAME, verdict=Verdict.PASS, evidence=evidence)


def _bounded(subject: Subject, steps: Steps) -> Check:
    """A step of chance cannot be repeated outside; that its gradient is clipped can be seen."""
    clip = None if subject.declared.optimizer is None else subject.declared.optimizer.clip_norm
    for record in steps.records if clip is not None else ():
        norm = _norm(record.handed or {})
        if clip is not None and norm > clip * (1 + LEAST_TOLERANCE):
            evidence = (
                f"step {record.step}: the norm of the gradient is {norm:.4g}, {clip:g} at most is declared"
            )
            return Check(name=NAME, verdict=Verdict.FAIL, evidence=evidence, cause="clipping is not done")
    raise Unavailable("the loss draws random numbers, so a step cannot be repeated outside")


def _norm(gradients: Gradients) -> float:
    return math.sqrt(sum(float(one.double().square().sum()) for one in gradients.values() if one is not None))


@dataclass(frozen=True, kw_only=True)
class Compared:
    """The gradient handed over in one step, next to that of the whole batch."""

    step: int
    handed: Gradients
    reference: Gradients
    unlike: tuple[str, ...]  # tensors that are not the reference times the common factor
    factor: float  # that factor
    expected: float  # the factor that the declared clipping explains
    norm: float  # of the whole reference
    tolerance: float  # relative, of the factor

    @property
    def as_declared(self) -> bool:
        return abs(self.factor - self.expected) <= self.tolerance * self.expected


def _compare(record: Recorded, reference: Gradients, rounding: OwnPrecision, declared: Declared) -> Compared:
    """Compare the gradients of `record`, which clipping scales by one common factor."""
    handed, optimizer = record.handed or {}, declared.optimizer
    if optimizer is not None and (limit := optimizer.clip_value) is not None:
        reference = {
            name: None if one is None else one.clamp(-limit, limit) for name, one in reference.items()
        }
    factors = []
    for name, gradient in reference.items():
        got = handed.get(name)
        if gradient is not None and got is not None and bool(gradient.any()):
            factors.append(_along(got, gradient))
    factor = median(factors) if factors else 1.0
    tolerances = {name: max(rounding.tolerances[name], LEAST_TOLERANCE) for name in reference}
    unlike = tuple(
        name
        for name, gradient in reference.items()
        if min(_apart(handed.get(name), gradient, factor * scale) for scale in _scales(name, declared))
        > tolerances[name]
    )
    norm = _norm(reference)
    clip = None if optimizer is None else optimizer.clip_norm
    return Compared(
        step=record.step,
        handed=handed,
        reference=reference,
        unlike=unlike,
        factor=factor,
        expected=1.0 if clip is None else min(1.0, clip / (norm + CLIP_EPS)),
        norm=norm,
        tolerance=2 * median(tolerances.values()) if tolerances else LEAST_TOLERANCE,
    )


def _scales(name: str, declared: Declared) -> list[float]:
    """Return 1, and the declared factor of `name`: it may be put on before or after this moment."""
    declared_scales = [
        scale for pattern, scale in declared.gradient_scale.items() if matches(name, (pattern,))
    ]
    return [1.0, *declared_scales]


def _along(got: Tensor, reference: Tensor) -> float:
    """Return how many times `reference` is in `got`."""
    wide = reference.double()
    return float((got.double() * wide).sum() / wide.square().sum())


def _apart(got: Tensor | None, reference: Tensor | None, factor: float) -> float:
    if reference is None or not bool(reference.any()):
        return 0.0 if got is None or not bool(got.any()) else math.inf
    scaled = reference.double() * factor
    size = float(scaled.norm())
    return float(((0 if got is None else got.double()) - scaled).norm()) / size if size else math.inf


def _another(
    record: Recorded, one: Compared, earlier: list[Compared], rounding: OwnPrecision, declared: Declared
) -> Check:
    """Say what the optimizer is handed instead, where that can be recognised."""
    cause = "accumulation with unequal weights, dropped or separately clipped micro-batches, or an altered "
    cause += "gradient"
    if all(_is_parallel(name, one, rounding) for name in one.unlike):
        cause = "tensors are scaled one by one: clipped by their own norm, or a missing micro-batch of some"
    if earlier:
        last = earlier[-1]
        piled = _sum(last.handed, one.reference)
        if not _compare(record, piled, rounding, declared).unlike:
            cause = "zero_grad() is missing: it is the sum of this and the last step's"
        elif not _compare(record, last.reference, rounding, declared).unlike:
            cause = "it is the gradient of the step before"
    return Check(
        name=NAME,
        verdict=Verdict.FAIL,
        evidence=f"step {record.step}: the optimizer gets another gradient than loss() on batch() has: "
        f"{named(one.unlike)}",
        cause=cause,
        findings=tuple(Finding(subject=name, verdict="WRONG") for name in one.unlike),
    )


def _is_parallel(name: str, one: Compared, rounding: OwnPrecision) -> bool:
    got, reference = one.handed.get(name), one.reference[name]
    if got is None or reference is None or not bool(reference.any()) or not bool(got.any()):
        return False
    tolerance = max(rounding.tolerances[name], LEAST_TOLERANCE)
    return _apart(got, reference, _along(got, reference)) <= tolerance


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
