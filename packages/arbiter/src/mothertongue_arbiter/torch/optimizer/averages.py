"""The averaged weights: after each step, decay * average + (1 - decay) * weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from mothertongue_arbiter.certificate import Check, Finding, Verdict
from mothertongue_arbiter.judgement import named
from mothertongue_arbiter.torch.optimizer.steps import Steps
from mothertongue_arbiter.torch.optimizer.watching import average_of
from mothertongue_arbiter.torch.run.subject import Subject, Unavailable
from mothertongue_arbiter.update_history import FLOAT32_EPSILON, LOW_PRECISION, RESOLVED, ROUNDINGS

NAME = "moving average"
NEVER = "the average is never updated"


@dataclass(frozen=True, kw_only=True)
class Averaging:
    """One tensor in one step, in float64."""

    name: str
    step: int
    old: Tensor  # average before the step
    new: Tensor  # average after it
    stale: Tensor  # weights before the step
    weights: Tensor  # after it
    epsilon: float  # spacing at 1 of the average's numbers

    def error(self, expected: Tensor) -> float:
        """Return how far the new average is from `expected`, in units of its rounding."""
        size = float(torch.maximum(self.old.abs(), self.new.abs()).norm())
        change = float((expected - self.old).norm())
        limit = self.epsilon * size + ROUNDINGS * FLOAT32_EPSILON * change
        far = float((self.new - expected).norm())
        return far / limit if limit else (0.0 if far == 0 else float("inf"))

    def is_resolved(self, expected: Tensor) -> bool:
        return self.epsilon * float(self.old.norm()) <= RESOLVED * float((expected - self.old).norm())


def averaged_weights(subject: Subject, steps: Steps) -> Check:
    """`run.ema` follows the weights of each step with the declared decay."""
    subject.need("ema")
    decay = subject.declared.ema_decay
    if decay is None:
        raise Unavailable("`declared.ema_decay` is not given")
    averages = average_of(subject.run)
    if not averages:
        kind = type(subject.run.ema).__name__  # type: ignore[attr-defined]
        raise Unavailable(
            f"`ema` is a {kind}; a module, or a mapping, with tensors by the names of the model is expected"
        )
    weights = dict(subject.run.model.named_parameters())
    missing = [name for name, one in weights.items() if one.requires_grad and name not in averages]
    if missing:
        return _failed(f"not in the average: {named(missing)}", "it was made of another model", missing)
    aliased = [name for name, one in averages.items() if one.data_ptr() == weights[name].data_ptr()]
    if aliased:
        cause = "an alias: the average holds the weights themselves, copy them when it is made"
        return _failed(f"the average is the weights: {named(aliased)}", cause, aliased)
    seen = list(_averagings(steps))
    bad = list(dict.fromkeys(one.name for one in seen if one.error(_rule(one, decay)) > 1))
    on_ramp = bool(bad) and any(_follows_ramp(seen, decay, late) for late in (0, 1))
    bad = [] if on_ramp else bad
    resolved = [one for one in seen if one.is_resolved(_rule(one, decay))]
    if bad:
        cause = _cause([one for one in seen if one.name in bad], decay)
        if cause == NEVER and len(bad) < len(averages):
            cause = "these are left out of the average, by their names, their dimensions or their kind"
        return _failed(
            f"{len(bad)} of {len(averages)} tensors are not {decay:g} * average + {1 - decay:.4g} * "
            f"weights after each step: {named(bad)}",
            cause,
            bad,
        )
    lost = sorted({one.name for one in seen if _is_lost(one, decay)})
    if lost:
        cause = f"1 - {decay:g} is below the rounding of a low-precision average: keep it in float32"
        return _failed(f"the average does not follow the weights: {named(lost)}", cause, lost)
    if not resolved:
        raise Unavailable("the weights move too little in these steps for the average to show it")
    evidence = (
        f"{len(averages)} tensors follow the weights with decay {decay:g} in {len(steps.records)} steps"
    )
    evidence += ", still on its usual ramp (1 + n) / (10 + n)" if on_ramp else ""
    return Check(name=NAME, verdict=Verdict.PASS, evidence=evidence)


def _averagings(steps: Steps) -> Iterator[Averaging]:
    """Yield each tensor in each step, but the first of a fresh torch average, which is a copy."""
    for record in steps.records[1 if steps.watch.fresh_average else 0 :]:
        for name, old in record.average_before.items():
            yield Averaging(
                name=name,
                step=record.step,
                old=old.cpu().double(),
                new=record.average_after[name].cpu().double(),
                stale=record.weights_before[name].cpu().double(),
                weights=record.weights_after[name].cpu().double(),
                epsilon=torch.finfo(old.dtype).eps,
            )


def _rule(one: Averaging, decay: float) -> Tensor:
    return decay * one.old + (1 - decay) * one.weights


def _follows_ramp(seen: list[Averaging], decay: float, late: int) -> bool:
    """Return whether a young average begins with the usual ramp, of which `decay` is the end."""
    counts = [one.step + late for one in seen]
    ramp = [min(decay, (1 + n) / (10 + n)) for n in counts]
    return all(one.error(_rule(one, now)) <= 1 for one, now in zip(seen, ramp, strict=True))


def _stale_rule(one: Averaging, decay: float) -> Tensor:
    return decay * one.old + (1 - decay) * one.stale


def _is_lost(one: Averaging, decay: float) -> bool:
    """Return whether a coarse average stands still while it should move."""
    moves = not torch.equal(one.weights, one.old)
    return one.epsilon >= LOW_PRECISION and moves and torch.equal(one.new, one.old)


def _cause(seen: list[Averaging], decay: float) -> str:
    """Return the first known mistake that explains what was seen."""
    if all(torch.equal(one.new, one.old) for one in seen):
        return NEVER
    fitted = _fitted_decay(seen)
    known: list[tuple[str, Callable[[Averaging], Tensor]]] = [
        ("the average takes the weights of before the step", partial(_stale_rule, decay=decay)),
        (f"decay and 1 - decay are swapped: {1 - decay:.4g} * average", partial(_rule, decay=1 - decay)),
        ("the average is a copy of the weights", partial(_rule, decay=0.0)),
        (f"a decay of {fitted:.5g}, declared {decay:g}", partial(_rule, decay=fitted)),
    ]
    for cause, rule in known:
        if all(one.error(rule(one)) <= 1 for one in seen):
            return cause
    return "another rule, or an average of other tensors"


def _fitted_decay(seen: list[Averaging]) -> float:
    """Return the decay d that fits best: new - weights = d * (old - weights)."""
    over = sum(float(((one.new - one.weights) * (one.old - one.weights)).sum()) for one in seen)
    under = sum(float((one.old - one.weights).square().sum()) for one in seen)
    return over / under if under else 0.0


def _failed(evidence: str, cause: str, names: list[str]) -> Check:
    return Check(
        name=NAME,
        verdict=Verdict.FAIL,
        evidence=evidence,
        cause=cause,
        findings=tuple(Finding(subject=name, verdict="FAIL") for name in names),
    )
