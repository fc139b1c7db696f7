"""Exact resume: after `checkpoint()` and `resume(state)` the same steps give the same run, bit for bit.

A resume inside the same process can live on what is still in memory, so the checkpoint is also loaded into
a fresh run, with other random numbers around it. Where the epoch has a declared length, the steps cross its
end: that is where a replayed or differently shuffled order shows.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from mothertongue_arbiter.certificate import Check, Finding, Verdict
from mothertongue_arbiter.judgement import named
from mothertongue_arbiter.run import TrainingRun
from mothertongue_arbiter.torch.data.reading import same_tokens, watched_reading
from mothertongue_arbiter.torch.program.snapshot import OUTCOMES, Snapshot, differences, snapshot
from mothertongue_arbiter.torch.run.backward import fix_random_numbers
from mothertongue_arbiter.torch.run.clock import seconds_of
from mothertongue_arbiter.torch.run.digest import digests, leaves
from mothertongue_arbiter.torch.run.fresh import fresh_run, replicas_of
from mothertongue_arbiter.torch.run.subject import Subject, Unavailable

STEPS_BEFORE, STEPS_AFTER = 2, 2  # of a checkpoint
LONGEST_WALK = (
    40  # steps to the end of an epoch that are really taken; beyond, the steps start just before it
)

Read = list[list[Tensor]]  # what each rank read in one step


@dataclass(kw_only=True)
class Walk:
    """An uninterrupted run: what each step read and left, and the checkpoints taken on the way."""

    read: dict[int, Read] = field(default_factory=dict)
    after: dict[int, Snapshot] = field(default_factory=dict)
    at: dict[int, Snapshot] = field(default_factory=dict)  # when the checkpoint before this step was taken
    saved: dict[int, Any] = field(default_factory=dict)
    is_live: bool = False  # a checkpoint changed with the steps after it
    end_of_epoch: int | None = None  # crossed


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One resume: from the checkpoint before `step`, in a fresh run or in the one that took it."""

    step: int
    is_fresh: bool

    def __str__(self) -> str:
        return f"resumed before step {self.step} in {'a fresh' if self.is_fresh else 'the same'} run"


@dataclass(frozen=True, kw_only=True)
class Lost:
    """What one resume did not bring back."""

    what: str
    cause: str
    names: tuple[str, ...] = ()
    is_certain: bool = False  # not to be explained by a device that sums in another order each time


DESCRIPTIONS = {
    "weights": (
        "weights not restored",
        "a tensor that is not saved, or renamed and passed over (strict=False)",
    ),
    "moments": (
        "moments of the optimizer not restored",
        "the state of the optimizer is not saved, or not loaded",
    ),
    "counters": ("step counters of the optimizer not restored", "the optimizer counts its steps anew"),
    "rates": ("", "the schedule of the learning rate begins anew, or a scheduler is not saved"),
    "ema": ("averaged weights not restored", "the averaged weights are not saved, or not loaded"),
}


def resume(subject: Subject) -> Check:
    """A resumed run takes the same steps as the uninterrupted one."""
    for member in ("train_step", "checkpoint", "resume"):
        subject.need(member)
    seed = subject.options.seed
    fresh = fresh_run(subject.run, seed=seed)
    walked = fresh or subject.run
    walk = _walk(subject, walked, is_fresh=fresh is not None)
    trials = [Trial(step=step, is_fresh=True) for step in walk.saved if fresh]
    trials += [Trial(step=step, is_fresh=False) for step in list(walk.saved)[-1 if fresh else 0 :]]
    for trial in trials:
        lost = _tried(subject, walk, trial, walked)
        if lost:
            return Check(
                name="resume",
                verdict=Verdict.FAIL,
                evidence=f"{trial}: " + "; ".join(one.what for one in lost),
                cause="; ".join(dict.fromkeys(one.cause for one in lost if one.cause)),
                findings=tuple(Finding(subject=name, verdict="LOST") for one in lost for name in one.names),
            )
    return Check(name="resume", verdict=Verdict.PASS, evidence=_evidence(subject, walk, fresh is not None))


def _tried(subject: Subject, walk: Walk, trial: Trial, walked: TrainingRun) -> list[Lost]:
    """Return what this resume loses; an exception of the program counts as everything."""

    def target() -> TrainingRun:
        made = fresh_run(subject.run, seed=subject.options.seed) if trial.is_fresh else walked
        return made or walked

    try:
        lost, after = _compared(subject, walk, trial.step, target())
        if lost and not any(one.is_certain for one in lost):
            _, again = _compared(subject, walk, trial.step, target())
            if not subject.declared.deterministic or differences(after, again, "weights"):
                raise Unavailable("the same steps give other weights each time here")
    except Unavailable:
        raise
    except Exception as error:
        first_line = (str(error).splitlines() or [""])[0]
        what = f"{type(error).__name__}: {first_line}"
        return [Lost(what=what, cause="a checkpoint that does not fit, or lacks a part", is_certain=True)]
    return lost


def _evidence(subject: Subject, walk: Walk, is_fresh: bool) -> str:
    text = f"{STEPS_AFTER} steps after a checkpoint repeat bit for bit"
    text += ", also in a fresh run" if is_fresh else "; not tried in a fresh run, there is no `rebuild`"
    if walk.end_of_epoch is not None:
        text += f", across the end of the epoch at step {walk.end_of_epoch}"
    elif subject.declared.epoch_steps is None:
        text += "; no end of an epoch was crossed, `declared.epoch_steps` does not say where it lies"
    else:
        text += "; no end of an epoch was crossed, it is too far away"
    return text + ("; the checkpoint holds live tensors: write it at once" if walk.is_live else "")


def _walk(subject: Subject, run: TrainingRun, *, is_fresh: bool) -> Walk:
    first = 0 if is_fresh else subject.step
    epoch = subject.declared.epoch_steps
    end = None if epoch is None else (first // epoch + 1) * epoch
    if end is not None and end - first > LONGEST_WALK:
        first, end = (end - 2, end) if _follows_its_number(run, end - 2) else (first, None)
    points = [first + STEPS_BEFORE] if end is None else sorted({max(first + 1, end - 1), end + 1})
    walk, given = Walk(end_of_epoch=end), {}
    for step in range(first, points[-1] + STEPS_AFTER):
        if step in points:
            given[step] = run.checkpoint()  # type: ignore[attr-defined]
            # One that is a file's name says what the file holds, and that is overwritten by the next one.
            walk.at[step], walk.saved[step] = snapshot(run), _copied(given[step])
        try:
            walk.read[step] = _take_step(subject, run, step)
        except Exception:
            if len(walk.read) <= points[0] - first:
                raise
            break  # the data end here, after a step that can be compared
        if step >= points[0]:  # nothing is compared before the first checkpoint
            walk.after[step] = snapshot(run)
    walk.saved = {step: state for step, state in walk.saved.items() if step in walk.after}
    walk.is_live = any(digests(given[step]) != digests(state) for step, state in walk.saved.items())
    if end is not None and end not in walk.after:
        walk.end_of_epoch = None
    if any(not _holds_tensors(state) for state in walk.saved.values()):
        walk.saved = dict(list(walk.saved.items())[-1:])
    return walk


def _take_step(subject: Subject, run: TrainingRun, step: int) -> Read:
    """Take one step, which is undisturbed enough to be timed as well."""
    device = next(run.model.parameters()).device
    with watched_reading(replicas_of(run)) as reading:
        seconds = seconds_of(lambda: run.train_step(step), device)  # type: ignore[attr-defined]
    subject.step_seconds.append(seconds)
    return reading.ids


def _follows_its_number(run: TrainingRun, step: int) -> bool:
    """Return whether `batch(step)` can be asked for any step, twice, so that steps may begin there."""
    try:
        one, other = digests(run.batch(step)), digests(run.batch(step))
        return one == other and one != digests(run.batch(step - 1))
    except Exception:
        return False


def _compared(subject: Subject, walk: Walk, step: int, run: TrainingRun) -> tuple[list[Lost], Snapshot]:
    """Resume `run` before `step` and repeat the steps; return what differs, and where it ended."""
    fix_random_numbers(subject.options.seed + 1)  # a new process has others than those of the checkpoint
    run.resume(_copied(walk.saved[step]))  # type: ignore[attr-defined]
    begun = snapshot(run)
    steps = [one for one in range(step, step + STEPS_AFTER) if one in walk.after]
    for one in steps:
        read = _take_step(subject, run, one)
        if not _read_alike(read, walk.read[one]):
            missing = _missing(walk.at[step], begun, ("weights", "moments", "counters", "ema"))
            return [*missing, _data_lost(walk, step, one, read, begun)], snapshot(run)
    again, after = snapshot(run), walk.after[steps[-1]]
    return _state_lost(walk.at[step], begun, again, after), again


def _read_alike(one: Read, other: Read) -> bool:
    return len(one) == len(other) and all(map(same_tokens, one, other))


def _data_lost(walk: Walk, resumed: int, step: int, read: Read, begun: Snapshot) -> Lost:
    """Name the step whose data came again, if it is one of those before."""
    twin = next((one for one, earlier in walk.read.items() if _read_alike(read, earlier)), None)
    then = walk.at[resumed]
    moved = [
        f"run.{name} is {begun.own.get(name)}, was {then.own.get(name)}"
        for name in differences(then, begun, "own")
    ]
    cause = "the data position is not restored" + (f" ({named(moved)})" if moved else "")
    what = f"step {step} reads other rows"
    if twin is not None:
        what = f"step {step} {'replays' if twin < step else 'skips ahead to'} the data of step {twin}"
    elif walk.end_of_epoch is not None and step >= walk.end_of_epoch:
        what += f", after the end of the epoch at step {walk.end_of_epoch}"
        cause = (
            "the shuffle order of an epoch does not follow from what is saved: its number, or random numbers"
        )
    return Lost(what=what, cause=cause, is_certain=True)


def _missing(then: Snapshot, begun: Snapshot, kinds: Iterable[str]) -> list[Lost]:
    """Return the parts of the state that were not the same right after the resume."""
    lost = []
    for kind in kinds:
        names = differences(then, begun, kind)
        if names:
            what, cause = DESCRIPTIONS[kind]
            lost.append(
                Lost(what=f"{what}: {named(names)}", cause=cause, names=tuple(names), is_certain=True)
            )
    return lost


def _state_lost(then: Snapshot, begun: Snapshot, again: Snapshot, after: Snapshot) -> list[Lost]:
    """Return which parts of the state differ after the steps, explained by what differed before them."""
    wrong = {kind: found for kind in OUTCOMES if (found := differences(after, again, kind))}
    if not wrong:
        return []
    lost = _missing(then, begun, [kind for kind in wrong if kind != "rates"])
    if "rates" in wrong:
        values = [
            f"{name} is {again.rates.get(name)}, was {after.rates.get(name)}" for name in wrong["rates"]
        ]
        lost.append(Lost(what=named(values), cause=DESCRIPTIONS["rates"][1], is_certain=True))
    if lost:
        return lost
    kind, names = next(iter(wrong.items()))
    used = differences(then, after, "random")  # what does not change in a step does not matter
    random = [name for name in differences(then, begun, "random") if name in used]
    what = f"everything was restored, and then {len(names)} {kind} differ: {named(names)}"
    cause = f"random numbers are not restored: {named(random)}" if random else "state outside the checkpoint"
    return [Lost(what=what, cause=cause, names=tuple(names))]


def _copied(state: Any) -> Any:
    try:
        return copy.deepcopy(state)
    except Exception:  # an open file, a lock: as it is, then
        return state


def _holds_tensors(state: Any) -> bool:
    return any(isinstance(value, Tensor) for _, value in leaves(state))
