"""What one tensor went through in a few optimizer steps, and whether its rule explains it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from mothertongue_arbiter.declared_optimizer import Group
from mothertongue_arbiter.update_rules import Array, Moments, Stored, Update, update

FLOAT32_EPSILON, FLOAT64_EPSILON = 2.0**-23, 2.0**-52
# Operations between the gradient and the change, each rounded once. Those of torch (plain, foreach, fused)
# need less than 1; a program that keeps 1 - beta2 in float32 needs 50.
ROUNDINGS = 64.0
# Two bfloat16 iterations of Muon: how far one lies from the exact one, in typical distances of the other. Of
# 5600 between torch.optim.Muon, our own and the simulated one (8x8 to 64x128, rank 1 to full, momenta over
# twelve decades), the largest is 2.9.
ITERATIONS_APART = 4.0
# What the iteration adds is noise in the directions that the gradient leaves open, and a tilt of the step.
# Noise of norm n in N elements deviates by n / sqrt(N) along any line; the largest of the 5600
# is 5.9 of them along the weight, where decay shows, and 11 along the step, whose singular vectors it shares.
LARGEST_TILT = 0.015  # of a step, along itself
WEIGHT_DEVIATIONS, STEP_DEVIATIONS = 8.0, 15.0
RESOLVED = 0.5  # a limit above this share of the change says nothing
LOW_PRECISION = 2.0**-11  # spacing at 1 of float16; bfloat16 is coarser
LOST = 0.5  # of the declared change, what arrives of it where rounding takes the rest


@dataclass(frozen=True, kw_only=True)
class Event:
    """One optimizer step of one tensor; `gradient` is None where the optimizer was handed none."""

    step: int
    rate: float  # the learning rate that the rule asks for
    before: Array
    after: Array
    gradient: Array | None


@dataclass(frozen=True, kw_only=True)
class History:
    """The steps of one tensor, and how it is supposed to have been updated in them.

    A supposition about a fault is another history: the same weights, another rule.
    """

    name: str
    group: Group
    events: tuple[Event, ...]
    start: Moments
    epsilon: float  # spacing at 1 of the numbers in which the weight is kept
    gradient_error: float = 0.0  # of a gradient that was computed again, relative to its norm
    hidden_master: bool = False  # the weight is a rounded copy of what is really updated
    bias_correction: bool = True
    forgetful: bool = False  # every step starts with fresh moments
    stored: Stored = lambda moment: moment  # how moments are kept


@dataclass(frozen=True, kw_only=True)
class Residual:
    """What one event did beyond its rule. `ratio` compares it with what rounding explains."""

    event: Event
    expected: Array  # the change that the rule asks for
    actual: Array
    ratio: float
    limit: float  # the norm that rounding explains

    @property
    def size(self) -> float:
        return float(np.linalg.norm(self.expected))

    @property
    def resolved(self) -> bool:
        return self.limit <= RESOLVED * self.size


def replay(history: History) -> Iterator[Residual]:
    """Apply the rule of `history` to each of its events in turn."""
    moments, weight = history.start, history.events[0].before
    rng = np.random.default_rng(0)
    for event in history.events:
        if not history.hidden_master:
            weight = event.before
        if event.gradient is None:
            done = Update(change=np.zeros_like(weight), moments=moments, terms=np.zeros_like(weight))
        else:
            begin = Moments() if history.forgetful else moments
            done = _apply(history, weight, event.gradient, begin, event.rate)
        moments = done.moments
        drawn = 0.0
        if history.gradient_error and event.gradient is not None:
            noise = rng.standard_normal(weight.shape)
            noise *= history.gradient_error * np.linalg.norm(event.gradient) / np.linalg.norm(noise)
            nudged = _apply(history, weight, event.gradient + noise, begin, event.rate)
            drawn = 2 * float(np.linalg.norm(nudged.change - done.change))
        yield _residual(history, event, weight, done, drawn)
        weight = weight + done.change


def _apply(history: History, weight: Array, gradient: Array, moments: Moments, rate: float) -> Update:
    return update(
        history.group,
        weight,
        gradient,
        moments,
        rate=rate,
        bias_correction=history.bias_correction,
        stored=history.stored,
    )


def _residual(history: History, event: Event, weight: Array, done: Update, drawn: float) -> Residual:
    """Compare one event; `drawn` is the norm that the error of its gradient explains."""
    actual = event.after - weight
    over = actual - done.change
    arithmetic = FLOAT64_EPSILON if history.epsilon <= FLOAT64_EPSILON else FLOAT32_EPSILON
    # Decay and step are rounded one after the other, each by half a spacing at most.
    rounding = history.epsilon * float(np.linalg.norm(np.maximum(np.abs(weight), np.abs(event.after))))
    certain = rounding + ROUNDINGS * arithmetic * float(np.linalg.norm(done.terms)) + drawn
    limit = certain + ITERATIONS_APART * done.undecided
    ratio = _over(float(np.linalg.norm(over)), limit)
    if history.group.algorithm == "muon":
        tilt = LARGEST_TILT * float(np.linalg.norm(done.change))
        deviation = done.undecided / math.sqrt(over.size)
        shared = _along(done.change, weight) / (float(np.linalg.norm(done.change)) or 1.0)
        for line, allowed in (
            (done.change, tilt + STEP_DEVIATIONS * deviation),
            (weight, shared * tilt + WEIGHT_DEVIATIONS * deviation),
        ):
            ratio = max(ratio, _over(_along(over, line), certain + allowed))
    return Residual(event=event, expected=done.change, actual=actual, ratio=ratio, limit=limit)


def _along(over: Array, line: Array) -> float:
    length = float(np.linalg.norm(line))
    return abs(float((over * line).sum())) / length if length else 0.0


def _over(error: float, limit: float) -> float:
    """Return `error` in units of `limit`; not a number counts as infinitely far."""
    if error == 0:
        return 0.0
    return error / limit if limit > 0 and np.isfinite(error) else float("inf")


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """Whether the rule of a history explains what happened."""

    ratio: float  # the worst error, in units of what rounding explains
    step: int  # where that was
    off: float  # that error, relative to the change that the rule asks for
    resolved: bool  # at least one step is larger than its rounding
    lost: bool  # low-precision weights swallow the update
    still: bool  # the rule asks for a change, and nothing changes in any step
    asked: bool  # the rule asks for a change in some step

    @property
    def good(self) -> bool:
        return self.ratio <= 1 and not self.lost


def judge(history: History) -> Judgement:
    """Return whether the rule of `history` explains every one of its events, within rounding."""
    residuals = list(replay(history))
    worst = max(residuals, key=lambda one: one.ratio)
    asked = sum(one.size**2 for one in residuals)
    arrived = sum(float((one.actual * one.expected).sum()) for one in residuals)
    over = float(np.linalg.norm(worst.actual - worst.expected))
    coarse = history.epsilon >= LOW_PRECISION and not history.hidden_master
    return Judgement(
        ratio=worst.ratio,
        step=worst.event.step,
        off=over / worst.size if worst.size else float("inf"),
        resolved=any(one.resolved for one in residuals),
        lost=coarse and asked > 0 and arrived < LOST * asked,
        still=asked > 0 and not any(one.actual.any() for one in residuals),
        asked=asked > 0,
    )


def forgetting(history: History) -> tuple[int, int]:
    """Return how many elements show that a hidden master is read again from its copy, and how many do not.

    Kept, a master carries on what rounding left out. An element shows that it does not where only the
    rounded weight before the step explains the one after it; that the weight does not explain shows the
    opposite. A master whose beginning is not known speaks in both ways, as often.
    """
    kept, read_again = (_rounded_weights(replace(history, hidden_master=hidden)) for hidden in (True, False))
    found = [event.after for event in history.events]
    pairs = list(zip(found, kept, read_again, strict=True))
    forgotten = sum(int(((after == again) & (after != keep)).sum()) for after, keep, again in pairs)
    return forgotten, sum(int((after != again).sum()) for after, _, again in pairs)


def _rounded_weights(history: History) -> list[Array]:
    """Return the weight that the rule leaves after each event, in the numbers in which it is kept."""
    weights = [one.event.after - one.actual + one.expected for one in replay(history)]
    spacings = [history.epsilon * np.exp2(np.frexp(weight)[1] - 1.0) for weight in weights]
    return [np.rint(one / spacing) * spacing for one, spacing in zip(weights, spacings, strict=True)]


def with_group(history: History, group: Group) -> History:
    """Suppose that `group` is what was applied."""
    return replace(history, group=group)


def with_rates(history: History, rates: list[float]) -> History:
    """Suppose that these learning rates were used."""
    events = tuple(replace(event, rate=rate) for event, rate in zip(history.events, rates, strict=True))
    return replace(history, events=events)
