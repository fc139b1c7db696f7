"""Update parity: what the optimizer did to each tensor is what its rule says, within rounding."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

import torch

from mothertongue_arbiter.certificate import Check, Finding, Verdict
from mothertongue_arbiter.judgement import named
from mothertongue_arbiter.torch.gradients.rounding import OwnPrecision
from mothertongue_arbiter.torch.optimizer.steps import Steps
from mothertongue_arbiter.torch.optimizer.tracks import Track, claimed_tracks, declared_tracks
from mothertongue_arbiter.torch.run.subject import Subject, Unavailable
from mothertongue_arbiter.update_causes import explain
from mothertongue_arbiter.update_history import Judgement, forgetting, judge

NAME = "update parity"
EXPLAINED = 4  # tensors whose mistake is looked for; the smallest, since a mistake shows alike in all
LEAST_WARMUP_STEPS = 2  # a shorter warm-up may have the same rate in each step
OUTSIDE = "the weights also change outside of optimizer.step()"
LEAST_FORGOTTEN = 32  # elements which show that masters are lost, and at most so many of them that do not:
LARGEST_DOUBT = 0.05
COPY = "the optimizer updates a copy that is not written back to the model"


def update_parity(subject: Subject, steps: Steps, rounding: OwnPrecision) -> Check:
    """Each tensor changes in each step by what the rule of its group says.

    The rule is the declared one, judged over the whole step; without one, that which an optimizer of torch
    itself claims to follow, judged over its own calls.
    """
    optimizer = subject.declared.optimizer
    if optimizer is None:
        tracks, wrong = claimed_tracks(subject, steps), _constant_rate(subject, steps)
        if not tracks and wrong is None:
            raise Unavailable("`declared.optimizer` is not given, and no optimizer of torch was called")
    else:
        tracks, orphans = declared_tracks(subject, steps, optimizer, rounding)
        wrong = _orphaned(orphans) or _called_again(steps) or _not_written_back(steps)
    return wrong or _judged(subject, steps, tracks)


def _constant_rate(subject: Subject, steps: Steps) -> Check | None:
    """A declared warm-up moves the learning rate."""
    rates = {record.learning_rate for record in steps.records}
    warmup_steps = subject.declared.warmup_steps
    begins = warmup_steps >= LEAST_WARMUP_STEPS and subject.step + 1 < warmup_steps
    if not begins or len(rates) > 1 or rates <= {0.0}:
        return None
    evidence = f"the learning rate is {rates.pop():.3g} in {len(steps.records)} steps of a warm-up of "
    return _failed(f"{evidence}{warmup_steps} steps", "the schedule is never applied")


def _orphaned(orphans: list[str]) -> Check | None:
    if not orphans:
        return None
    evidence = f"no group of `declared.optimizer` owns {named(orphans)}"
    return _failed(evidence, "a declaration that misses parameters which are trained", orphans)


def _called_again(steps: Steps) -> Check | None:
    """One declared optimizer step updates each tensor once."""
    for record in steps.records:
        times = Counter(name for call in record.calls for name in call)
        again = [name for name, count in times.items() if count > 1]
        if again:
            evidence = f"step {record.step}: updated {times[again[0]]} times in one step: {named(again)}"
            return _failed(evidence, "optimizer.step() is called for each micro-batch, or twice", again)
    return None


def _not_written_back(steps: Steps) -> Check | None:
    """A weight is the rounded copy of its master after each step."""
    for record in steps.records:
        stale = [
            name
            for name in steps.watch.masters
            if not torch.equal(record.weights_after[name], record.after[name].to(record.weights_after[name]))
        ]
        if stale:
            evidence = f"step {record.step}: the model has other weights than the optimizer: {named(stale)}"
            return _failed(evidence, COPY, stale)
    return None


@dataclass(frozen=True, kw_only=True)
class Judged:
    """A tensor and the worst answer of its pieces."""

    track: Track
    judgement: Judgement

    @property
    def name(self) -> str:
        return self.track.name


def _judged(subject: Subject, steps: Steps, tracks: list[Track]) -> Check:
    """Judge every tensor and say what went wrong, or how well it agrees."""
    known = [track for track in tracks if track.start is not None]
    if not known:
        raise Unavailable("the moments of the optimizer at this step cannot be read; audit at step 0")
    judged = [Judged(track=track, judgement=_worst(track)) for track in known]
    bad = [one for one in judged if not one.judgement.good]
    if bad:
        return _disagreement(subject, steps, bad, judged)
    forgotten = _forgotten_masters(judged)
    if forgotten:
        return forgotten
    asked = [one for one in judged if one.judgement.asked]
    resolved = [one for one in asked if one.judgement.resolved]
    if not asked:
        raise Unavailable("the learning rate, or every gradient, is 0 in these steps")
    if not resolved:
        raise Unavailable("every change is smaller than the rounding of the weights that are seen")
    kinds = Counter(one.track.group.algorithm for one in asked)
    listed = ", ".join(f"{count} {kind}" for kind, count in kinds.items())
    evidence = f"{listed} tensors follow their rule in {len(steps.records)} steps"
    if subject.declared.optimizer is None:
        evidence += " (rates, decay and groups as the optimizer has them, none are declared)"
    if len(resolved) < len(asked):
        evidence += f"; {len(asked) - len(resolved)} change by less than their rounding"
    if len(known) < len(tracks):
        evidence += f"; {len(tracks) - len(known)} whose moments cannot be read"
    return Check(name=NAME, verdict=Verdict.PASS, evidence=evidence)


def _forgotten_masters(judged: list[Judged]) -> Check | None:
    """Masters that nobody shows are kept between steps: the weights follow no rounded copy of themselves."""
    hidden = [one for one in judged if one.track.hidden_master and one.track.group.algorithm != "muon"]
    shown = {one.name: [forgetting(piece) for piece in one.track.pieces()] for one in hidden}
    forgotten = sum(count for counts in shown.values() for count, _ in counts)
    others = sum(count for counts in shown.values() for _, count in counts)
    if forgotten < LEAST_FORGOTTEN or others > LARGEST_DOUBT * forgotten:
        return None
    names = [name for name, counts in shown.items() if any(count for count, _ in counts)]
    evidence = f"{forgotten} elements start each step from the rounded weights, not from their masters"
    return _failed(f"{evidence}: {named(names)}", "masters that are read again from the weights", names)


def _worst(track: Track) -> Judgement:
    found = [judge(piece) for piece in track.pieces()]
    worst = max(found, key=lambda one: (not one.good, one.ratio))
    return replace(worst, resolved=any(one.resolved for one in found), asked=any(one.asked for one in found))


def _disagreement(subject: Subject, steps: Steps, bad: list[Judged], judged: list[Judged]) -> Check:
    worst = max(bad, key=lambda one: min(one.judgement.ratio, 1e30))
    explained = f"{worst.judgement.ratio:.1e} times what rounding explains"
    if worst.judgement.ratio <= 1:
        explained = "which is lost in the rounding of the weights"
    evidence = (
        f"{len(bad)} of {len(judged)} tensors do not follow their rule; {worst.name} is off by "
        f"{worst.judgement.off:.1e} of its change in step {worst.judgement.step}, {explained}: "
        f"{named([one.name for one in bad])}"
    )
    return _failed(evidence, _cause(subject, steps, bad), [one.name for one in bad])


def _cause(subject: Subject, steps: Steps, bad: list[Judged]) -> str:
    """Return the mistakes that explain most of a few tensors, one of each group first."""
    if subject.declared.optimizer is not None and _only_outside(steps, bad):
        return OUTSIDE
    small = sorted(bad, key=lambda one: one.track.count)
    firsts = list({id(one.track.group): one for one in reversed(small)}.values())
    chosen = [*firsts, *(one for one in small if one not in firsts)][: max(EXPLAINED, len(firsts))]
    pieces = [next(piece for piece in one.track.pieces() if not judge(piece).good) for one in chosen]
    causes = Counter(map(explain, pieces))
    return "; ".join(cause for cause, _ in causes.most_common(2))


def _only_outside(steps: Steps, bad: list[Judged]) -> bool:
    """Return whether the calls of the optimizer follow the rule, and something else moves the weights."""
    for one in bad:
        applied = [call[one.name] for record in steps.records for call in record.calls if one.name in call]
        if len(applied) != len(one.track.seen):
            return False
        seen = tuple(
            replace(seen, before=call.before, after=call.after)
            for seen, call in zip(one.track.seen, applied, strict=True)
        )
        if not _worst(replace(one.track, seen=seen)).good:
            return False
    return True


def _failed(evidence: str, cause: str, names: list[str] | None = None) -> Check:
    return Check(
        name=NAME,
        verdict=Verdict.FAIL,
        evidence=evidence,
        cause=cause,
        findings=tuple(Finding(subject=name, verdict="FAIL") for name in names or ()),
    )
