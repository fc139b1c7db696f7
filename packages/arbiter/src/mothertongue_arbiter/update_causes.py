"""Why an update is not the declared one: known mistakes, tried in turn until one explains the data."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import get_args

from mothertongue_arbiter.declared_optimizer import Adjustment, Algorithm, Group
from mothertongue_arbiter.update_history import History, judge, replay, with_group, with_rates
from mothertongue_arbiter.update_rules import bfloat16

Supposition = tuple[str, History]  # a cause, and the history that it would have made

NOT_FINITE = "a gradient or a weight that is not a finite number"
UNKNOWN = "none of the known mistakes explains it"
LOST = "updates are lost to the rounding of low-precision weights: keep float32 master weights"
STILL = "not updated at all: the optimizer holds an old copy, skips it or writes into a copy"
EPSILONS = (0.0, 1e-30, 1e-16, 1e-12, 1e-10, 1e-9, 1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3)
BETAS = ((0.9, 0.999), (0.9, 0.99), (0.9, 0.98), (0.9, 0.95), (0.95, 0.95), (0.8, 0.95), (0.95, 0.98))
MOMENTUMS = (0.0, 0.5, 0.8, 0.9, 0.95, 0.98, 0.99)
ADJUSTMENTS: tuple[Adjustment, ...] = get_args(Adjustment)
KINDS: tuple[Algorithm, ...] = ("adamw", "sgd", "lion")
SPEEDS = (2, 3, 4, 8)  # how often a scheduler may be stepped: once a micro-batch, or by each process
BFLOAT16_NOISE = 1e-3  # relative; half a spacing of bfloat16 is 4e-3 at most
MOSTLY = 0.03  # of the error is left by a mistake that explains it but for another one in its shadow
SAME_RATE = 1e-3  # relative; two learning rates that are one
SAME_MUON_RATE = 0.02  # the same, read off a step that bfloat16 has blurred
SAME_DECAY = 1e-2  # relative to the declared decay


def explain(history: History) -> str:
    """Return the first known mistake that explains `history` within rounding, or `UNKNOWN`."""
    found = judge(history)
    if found.lost and (found.still or found.ratio <= 1):
        return LOST
    if found.still:
        return STILL
    if not math.isfinite(found.off):
        return NOT_FINITE
    nearest, least = UNKNOWN, MOSTLY * found.ratio
    for cause, supposed in _suppositions(history):
        ratio = judge(supposed).ratio
        if ratio <= 1:
            return cause
        if ratio < least and supposed.gradient_error == history.gradient_error:
            nearest, least = f"nearly: {cause}", ratio
    return nearest


def _suppositions(history: History) -> Iterator[Supposition]:
    yield from _of_memory(history)
    yield from _of_decay(history)
    yield from _of_numbers(history)
    yield from _of_rate(history)
    yield from _of_kind(history)
    yield from _of_rounding(history)


def _of_memory(history: History) -> Iterator[Supposition]:
    """Moments, their correction and the gradient that is used."""
    adaptive = history.group.algorithm in ("adam", "adamw")
    if adaptive:
        yield "no bias correction of the moments", replace(history, bias_correction=False)
        wrong_count = replace(history, start=replace(history.start, steps=history.start.steps + 1))
        yield "the step counter is one ahead", wrong_count
    yield (
        "moments start afresh in each step, or the step counter is reset",
        replace(history, forgetful=True),
    )
    late = [None, *(event.gradient for event in history.events[:-1])]
    events = tuple(
        replace(event, gradient=gradient) for event, gradient in zip(history.events, late, strict=True)
    )
    yield "the update uses the gradient of the step before", replace(history, events=events)


def _of_rounding(history: History) -> Iterator[Supposition]:
    """Rounded moments explain any small error, so they are supposed last."""
    later = list(replay(history))[1:]  # rounded moments show in each step but the first
    shows = all(one.ratio > 1 for one in later if one.resolved)
    if shows and history.group.algorithm != "muon":  # whose own rounding is larger
        rough = max(history.gradient_error, BFLOAT16_NOISE)  # an implementation may round twice
        yield "the moments are kept in bfloat16", replace(history, stored=bfloat16, gradient_error=rough)


def _of_decay(history: History) -> Iterator[Supposition]:
    group = history.group
    if group.algorithm == "adamw":
        yield (
            "the decay goes onto the gradient (coupled, as in Adam), declared decoupled",
            with_group(history, replace(group, algorithm="adam")),
        )
    if group.algorithm == "adam":
        yield (
            "the decay is decoupled (as in AdamW), declared onto the gradient",
            with_group(history, replace(group, algorithm="adamw")),
        )
    for decay in _decays(history):
        declared = f"{group.weight_decay:.4g} is declared" if group.weight_decay else "none is declared"
        told = f"weight decay {decay:.4g} where {declared}" if decay else f"no weight decay where {declared}"
        yield told, with_group(history, replace(group, weight_decay=decay))


def _decays(history: History) -> Iterator[float]:
    """Read the decay off the residual along the weight, where it is linear; else try the usual ones."""
    group = history.group
    yield 0.0
    if group.algorithm != "adam":
        weights = rated = 0.0
        for one in replay(history):
            line = -one.event.rate * one.event.before
            rated += float(((one.actual - one.expected) * line).sum())
            weights += float((line * line).sum())
        decay = group.weight_decay + (rated / weights if weights else 0.0)
        rounded = float(f"{decay:.2g}")
        near = abs(rounded - decay) <= SAME_DECAY * max(abs(rounded), abs(group.weight_decay))
        yield rounded if near else decay
        yield decay
        return
    yield from (0.001, 0.01, 0.05, 0.1, 0.2)


def _of_numbers(history: History) -> Iterator[Supposition]:
    """Betas, eps, momentum, dampening, the size of a Muon step."""
    group = history.group
    for cause, other in _other_betas(group) if group.algorithm in ("adam", "adamw", "lion") else ():
        yield cause, with_group(history, other)
    for cause, other in _other_momentum(group) if group.algorithm in ("sgd", "muon") else ():
        yield cause, with_group(history, other)


def _other_betas(group: Group) -> Iterator[tuple[str, Group]]:
    one, two = group.betas
    yield "the betas are swapped", replace(group, betas=(two, one))
    for betas in BETAS:
        yield f"betas {betas} where {group.betas} are declared", replace(group, betas=betas)
    for eps in EPSILONS if group.algorithm != "lion" else ():
        yield f"eps {eps:g} where {group.eps:g} is declared", replace(group, eps=eps)


def _other_momentum(group: Group) -> Iterator[tuple[str, Group]]:
    kind = "plain" if group.nesterov else "Nesterov"
    yield f"the momentum is {kind}, declared otherwise", replace(group, nesterov=not group.nesterov)
    for momentum in MOMENTUMS:
        yield f"momentum {momentum} where {group.momentum} is declared", replace(group, momentum=momentum)
    for dampening in {0.0, group.momentum} - {group.dampening} if group.algorithm == "sgd" else ():
        cause = f"dampening {dampening} where {group.dampening} is declared"
        yield cause, replace(group, dampening=dampening)
    for adjust in ADJUSTMENTS if group.algorithm == "muon" else ():
        cause = f"steps of the size {adjust!r} where {group.adjust!r} is declared"
        yield cause, replace(group, adjust=adjust)


def _of_rate(history: History) -> Iterator[Supposition]:
    """A wrong learning rate scales the change of every rule, so it can be read off."""
    rates = []
    for one in replay(history):
        size = one.size**2
        rates.append(one.event.rate * float((one.actual * one.expected).sum()) / size if size else math.nan)
    known = [
        rate if math.isfinite(rate) else event.rate for rate, event in zip(rates, history.events, strict=True)
    ]
    yield _rate_cause(history, rates), with_rates(history, known)


def _rate_cause(history: History, rates: list[float]) -> str:
    """Name the schedule that gives `rates`; one is nan where the declared rate is 0."""
    group, events = history.group, history.events
    found = ", ".join(f"{rate:.3g}" for rate in rates if math.isfinite(rate))
    asked = ", ".join(f"{event.rate:.3g}" for event in events)

    same = SAME_MUON_RATE if group.algorithm == "muon" else SAME_RATE

    def are(others: list[float]) -> bool:
        pairs = [pair for pair in zip(rates, others, strict=True) if all(map(math.isfinite, pair))]
        return bool(pairs) and all(
            abs(one - other) <= same * max(abs(one), abs(other)) for one, other in pairs
        )

    if len({event.rate for event in events}) > 1 and are([rates[-1]] * len(rates)):
        return f"the schedule is not applied: the learning rate stays {rates[-1]:.3g}, declared {asked}"
    schedules = [pair for pair in _other_schedules(history) if are(pair[1])]
    ratios = [
        rate / event.rate if event.rate else math.nan for rate, event in zip(rates, events, strict=True)
    ]
    first = next((ratio for ratio in ratios if math.isfinite(ratio)), math.nan)
    if are([first * event.rate for event in events]):
        also = f", or {schedules[0][0]}" if schedules else ""
        return f"the learning rate is {first:.3g} times the declared one{also}"
    if schedules:
        return f"{schedules[0][0]}: learning rates {found}, declared {asked}"
    return f"learning rates {found}, declared {asked}"


def _other_schedules(history: History) -> Iterator[tuple[str, list[float]]]:
    """Yield a cause, and the rates that the declared schedule then gives; nan before its first step."""
    group = history.group
    if not callable(group.learning_rate):
        return
    known = [("the schedule is one step late", 1, -1), ("the schedule is one step early", 1, 1)]
    often = "the scheduler is stepped several times in each step"
    known += [(often, speed, shift) for speed in SPEEDS for shift in range(speed + 1)]
    for cause, speed, shift in known:
        steps = [speed * event.step + shift for event in history.events]
        yield cause, [group.rate(step) if step >= 0 else math.nan for step in steps]


def _of_kind(history: History) -> Iterator[Supposition]:
    """Another algorithm altogether, with the numbers of the declared group."""
    for algorithm in KINDS:
        if algorithm != history.group.algorithm:
            group = replace(history.group, algorithm=algorithm)
            cause = f"the update is that of {algorithm}, {history.group.algorithm} is declared"
            yield cause, with_group(history, group)
