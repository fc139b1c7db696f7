"""A few real training steps: how they weigh tokens, and what moves."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch

from mothertongue_arbiter.certificate import Check, Finding, Verdict
from mothertongue_arbiter.judgement import named
from mothertongue_arbiter.torch.data.rows import ranks_of, whole_batch
from mothertongue_arbiter.torch.forward.modes import acting_modules, failed, in_mode, passed, watched_modes
from mothertongue_arbiter.torch.optimizer.watching import Recorded, Watch
from mothertongue_arbiter.torch.run.backward import backward
from mothertongue_arbiter.torch.run.subject import Subject, Unavailable
from mothertongue_arbiter.torch.run.xray import Xray, captured_logits, xray

STEPS = 3  # with different batches: a missing zero_grad shows in the second
LARGEST_WEIGHT_SPREAD = 0.05  # bfloat16 logits carry weights to 1 %
LARGEST_XRAY_RESIDUAL = 0.05


@dataclass(frozen=True, kw_only=True)
class Steps:
    """A few whole steps, and which tensors they moved."""

    records: tuple[Recorded, ...]
    moved: frozenset[str]
    watch: Watch  # what is updated for each parameter, and what its optimizer remembered before


def take_steps(subject: Subject) -> Steps:
    """Let the program take `STEPS` real steps, and watch."""
    subject.need("train_step")
    watch = Watch(subject.run)
    before = watch.weights()
    records = [_take_step(subject, watch, subject.step + number) for number in range(STEPS)]
    after = watch.weights()
    moved = {name for name, weight in after.items() if not torch.equal(weight, before[name])}
    return Steps(records=tuple(records), moved=frozenset(moved), watch=watch)


def small_step(subject: Subject, steps: Steps, factor: float) -> Recorded:
    """Take one more step, in which each backward gives `factor` times its gradient."""
    handles = [
        parameter.register_hook(lambda gradient: gradient * factor)
        for parameter in subject.run.model.parameters()
        if parameter.requires_grad
    ]
    try:
        return _take_step(subject, steps.watch, steps.records[-1].step + 1)
    finally:
        for handle in handles:
            handle.remove()


def _take_step(subject: Subject, watch: Watch, step: int) -> Recorded:
    run: Any = subject.run
    record = Recorded(step=step)
    left = {name: parameter.grad for name, parameter in run.model.named_parameters()}
    if subject.is_still:
        with subject.stillness():
            whole = whole_batch(subject, step)
            record.reference = backward(run, whole, seed=subject.options.seed).gradients
    for name, parameter in run.model.named_parameters():  # what the program left there, a fault may need
        parameter.grad = left[name]
    record.before, record.weights_before = watch.updated(), watch.weights()
    record.average_before = watch.average()
    still = subject.stillness() if subject.is_still else nullcontext()
    logits_seen = captured_logits(subject.vocabulary, least=1 << 62)
    with watch.watching(record), still, logits_seen as captured, watched_modes(run.model) as record.modules:
        run.train_step(step)
    record.after, record.weights_after = watch.updated(), watch.weights()
    record.average_after = watch.average()
    if step == subject.step:  # how tokens are weighed, one step tells, and a vocabulary of logits is large
        record.xrays = [one for logits in captured if (one := xray(logits)).residual < LARGEST_XRAY_RESIDUAL]
    return record


def step_weights(subject: Subject, steps: Steps) -> Check:
    """In the real step every learned token weighs the same, whichever micro-batch it is in."""
    if getattr(subject.run, "declared", None) is None or subject.declared.normalisation == "other":
        raise Unavailable("`declared.normalisation` does not say how positions are weighed")
    xrays = steps.records[0].xrays
    if not xrays:
        raise Unavailable("no logits with the gradient of a cross-entropy were seen in `train_step`")
    means = [weight for one in xrays if (weight := _typical_weight(one)) is not None]
    declared = subject.declared.accumulation
    if declared > 1 and len(xrays) not in (declared, declared * ranks_of(subject)):
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


def training_mode(subject: Subject, steps: Steps) -> Check:
    """In the real step dropout and batch norm are in training mode, and gradients are on."""
    name, acting = "training mode", acting_modules(subject.run.model, subject)
    for record in steps.records:
        if not record.modules:
            raise Unavailable("`train_step` calls no module of this run's `model`")
        if not any(with_gradient for _, _, with_gradient in record.modules):
            return failed(name, "gradients are off in every forward of the step", "no_grad() left on")
        at_rest = in_mode(record.modules, acting, wanted=True)
        if at_rest:
            evidence = f"in evaluation mode during the training step: {named(at_rest)}"
            return failed(name, evidence, "model.eval() left on", at_rest)
    return passed(name, acting, "in training mode during the step")


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
