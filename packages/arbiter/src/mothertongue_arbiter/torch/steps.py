"""The real training step: which gradient it hands to the optimizer, how it weighs tokens, and what moves."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import wraps
from typing import Any

import torch
from torch import Tensor

from mothertongue_arbiter.certificate import Check, Finding, Verdict
from mothertongue_arbiter.judgement import named
from mothertongue_arbiter.run import TrainingRun
from mothertongue_arbiter.torch.backward import backward
from mothertongue_arbiter.torch.rounding import OwnPrecision
from mothertongue_arbiter.torch.state import optimizers_of
from mothertongue_arbiter.torch.subject import Subject, Unavailable
from mothertongue_arbiter.torch.xray import Xray, captured_logits, xray

STEPS = 3  # with different batches: a missing zero_grad shows in the second
LARGEST_WEIGHT_SPREAD = 0.05  # bfloat16 logits carry weights to 1 %
LARGEST_XRAY_RESIDUAL = 0.05


@dataclass(kw_only=True)
class Recorded:
    """One step as it was seen from outside."""

    handed: dict[str, Tensor | None] | None = None  # gradients when the optimizer was first called
    learning_rate: float = 0.0  # the largest of all groups, then
    xrays: list[Xray] = field(default_factory=list)  # one a micro-batch
    reference: Mapping[str, Tensor | None] = field(
        default_factory=dict
    )  # of loss() on batch(), before the step


@dataclass(frozen=True, kw_only=True)
class Steps:
    """A few whole steps, and which tensors they moved."""

    records: tuple[Recorded, ...]
    moved: frozenset[str]


def take_steps(subject: Subject) -> Steps:
    """Let the program take `STEPS` real steps, and watch."""
    subject.need("train_step")
    run = subject.run
    before = {name: parameter.detach().clone() for name, parameter in run.model.named_parameters()}
    records = [_take_step(subject, run, subject.step + number) for number in range(STEPS)]
    moved = {
        name for name, parameter in run.model.named_parameters() if not torch.equal(parameter, before[name])
    }
    return Steps(records=tuple(records), moved=frozenset(moved))


def _take_step(subject: Subject, run: Any, step: int) -> Recorded:
    record = Recorded()
    left = {name: parameter.grad for name, parameter in run.model.named_parameters()}
    if not subject.is_random:
        record.reference = backward(run, run.batch(step), seed=subject.options.seed).gradients
    for name, parameter in run.model.named_parameters():  # what the program left there, a fault may need
        parameter.grad = left[name]
    with _watched(run, record), captured_logits(subject.vocabulary, least=1 << 62) as captured:
        run.train_step(step)
    record.xrays = [one for logits in captured if (one := xray(logits)).residual < LARGEST_XRAY_RESIDUAL]
    return record


@contextmanager
def _watched(run: TrainingRun, record: Recorded) -> Iterator[None]:
    """Copy the gradients at the moment when an optimizer is first called."""
    optimizers = [optimizer for optimizer in optimizers_of(run) if hasattr(optimizer, "step")]
    shadowed = [vars(optimizer).get("step") for optimizer in optimizers]

    def watching(step: Callable[..., Any], optimizer: Any) -> Callable[..., Any]:
        @wraps(step)  # a scheduler recognises the method that it wrapped
        def watched(*args: Any, **kwargs: Any) -> Any:
            rates = [float(group.get("lr", 0.0)) for group in getattr(optimizer, "param_groups", [])]
            record.learning_rate = max([record.learning_rate, *rates])
            if record.handed is None:
                record.handed = {
                    name: None if parameter.grad is None else parameter.grad.detach().clone()
                    for name, parameter in run.model.named_parameters()
                }
            return step(*args, **kwargs)

        return watched

    for optimizer in optimizers:
        optimizer.step = watching(optimizer.step, optimizer)
    try:
        yield
    finally:
        for optimizer, step in zip(optimizers, shadowed, strict=True):
            if step is None:
                del optimizer.step
            else:
                optimizer.step = step


def handed_gradient(subject: Subject, steps: Steps, rounding: OwnPrecision) -> Check:
    """The optimizer gets the gradient of the declared loss on the whole batch, up to one common factor."""
    if subject.is_random:
        raise Unavailable("the loss draws random numbers (dropout), so a step cannot be repeated outside")
    if any(record.handed is None for record in steps.records):
        raise Unavailable("`train_step` did not call `optimizer.step()` of this run's `optimizer`")
    previous: Mapping[str, Tensor | None] = {}
    for number, record in enumerate(steps.records):
        bad = _unlike(record, rounding.tolerances, record.reference)
        if bad:
            piled = previous and not _unlike(record, rounding.tolerances, _sum(previous, record.reference))
            cause = "zero_grad() is missing: it is the sum of this and the last step's" if piled else ""
            return Check(
                name="gradient handed over",
                verdict=Verdict.FAIL,
                evidence=f"step {subject.step + number}: the optimizer gets another gradient than loss() on "
                f"batch() has: {named(bad)}",
                cause=cause
                or "accumulation with unequal weights, dropped micro-batches, or an altered gradient",
                findings=tuple(Finding(subject=name, verdict="WRONG") for name in bad),
            )
        previous = record.handed or {}
    evidence = f"in {len(steps.records)} steps, that of the whole batch"
    return Check(name="gradient handed over", verdict=Verdict.PASS, evidence=evidence)


def _unlike(
    record: Recorded, tolerances: Mapping[str, float], reference: Mapping[str, Tensor | None]
) -> list[str]:
    """Return the tensors whose gradient is not the reference; clipping and loss scaling share one factor."""
    handed = record.handed or {}
    factors = []
    for name, gradient in reference.items():
        got = handed[name]
        if gradient is not None and got is not None and bool(gradient.any()):
            factors.append(float((got.double() * gradient.double()).sum() / gradient.double().square().sum()))
    factor = sorted(factors)[len(factors) // 2] if factors else 1.0
    return [
        name
        for name, gradient in reference.items()
        if _apart(handed[name], gradient, factor) > max(tolerances[name], 1e-4)
    ]


def _apart(got: Tensor | None, reference: Tensor | None, factor: float) -> float:
    if reference is None or not bool(reference.any()):
        return 0.0 if got is None or not bool(got.any()) else float("inf")
    scaled = reference.double() * factor
    size = float(scaled.norm())
    return float(((0 if got is None else got.double()) - scaled).norm()) / size if size else float("inf")


def _sum(one: Mapping[str, Tensor | None], other: Mapping[str, Tensor | None]) -> dict[str, Tensor | None]:
    total = {}
    for name, gradient in other.items():
        earlier = one.get(name)
        total[name] = gradient if earlier is None else earlier if gradient is None else gradient + earlier
    return total


def step_weights(subject: Subject, steps: Steps) -> Check:
    """In the real step every learned token weighs the same, whichever micro-batch it is in."""
    if getattr(subject.run, "declared", None) is None or subject.declared.normalisation == "other":
        raise Unavailable("`declared.normalisation` does not say how positions are weighed")
    xrays = steps.records[0].xrays
    if not xrays:
        raise Unavailable("no logits with the gradient of a cross-entropy were seen in `train_step`")
    means = [weight for one in xrays if (weight := _typical_weight(one)) is not None]
    declared = subject.declared.accumulation
    if declared > 1 and len(xrays) != declared:
        evidence = f"{len(xrays)} micro-batches seen, {declared} declared"
        return Check(
            name="step weights", verdict=Verdict.FAIL, evidence=evidence, cause="dropped micro-batches"
        )
    if not means:
        raise Unavailable("every learned token is already predicted")
    low, high = min(low for low, _ in means), max(high for _, high in means)
    good = high - low <= LARGEST_WEIGHT_SPREAD * high
    return Check(
        name="step weights",
        verdict=Verdict.PASS if good else Verdict.FAIL,
        evidence=f"{len(xrays)} micro-batches, "
        + ("all tokens weigh the same" if good else f"token weights differ by a factor of {high / low:.3g}"),
        cause="" if good else "a mean of micro-batch means, where their token counts differ",
    )


def _typical_weight(one: Xray) -> tuple[float, float] | None:
    """Return the smallest and largest weight of the tokens whose weight can be read."""
    readable = one.weights[one.supervised & one.readable]
    return (float(readable.min()), float(readable.max())) if readable.numel() else None


def movement(subject: Subject, steps: Steps) -> Check:
    """What should learn moves, and what is frozen does not."""
    rate = max(record.learning_rate for record in steps.records)
    still, strayed = [], []
    for name, parameter in subject.run.model.named_parameters():
        given = [(record.handed or record.reference).get(name) for record in steps.records]
        alive = any(gradient is not None and bool(gradient.any()) for gradient in given)
        frozen = subject.declared.is_frozen(name) or not parameter.requires_grad
        if alive and not frozen and name not in steps.moved:
            still.append(name)
        if frozen and name in steps.moved:
            strayed.append(name)
    if rate == 0 and still and subject.declared.warmup_steps:
        raise Unavailable(f"the learning rate is 0 in the first {STEPS} steps")
    bad = [*still, *strayed]
    evidence = f"{len(steps.moved)} tensors moved in {STEPS} steps, learning rate up to {rate:.2g}"
    if still:
        evidence = f"alive but frozen, a gradient and no movement in {STEPS} steps: {named(still)}"
    elif strayed:
        evidence = f"frozen, and moved nevertheless: {named(strayed)}"
    return Check(
        name="movement",
        verdict=Verdict.FAIL if bad else Verdict.PASS,
        evidence=evidence,
        cause="not in the optimizer, or updates lost to the rounding of low-precision weights" if bad else "",
        findings=tuple(Finding(subject=name, verdict="FAIL") for name in bad),
    )
