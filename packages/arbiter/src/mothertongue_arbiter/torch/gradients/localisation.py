"""Name the module that contains a wrong backward: the one nearest the loss that explains it.

Everything upstream of a wrong operation gets a wrong gradient, everything downstream a right one. The last
boundary of a module call, in the order of time, at which the gradient is wrong therefore lies right before
the operation: on the way into the module that contains it, or out of a module whose caller contains it. When
every boundary is right, only weights are wrong, and the module is theirs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from mothertongue_arbiter.certificate import Check, TensorVerdict, Verdict
from mothertongue_arbiter.difference import measure, measure_floor
from mothertongue_arbiter.direction import Direction
from mothertongue_arbiter.torch.gradients.boundaries import Boundary, BoundaryWitness
from mothertongue_arbiter.torch.run.backward import backward
from mothertongue_arbiter.torch.run.subject import ExactSubject

AT_FAULT = (TensorVerdict.SEVERED, TensorVerdict.WRONG, TensorVerdict.PARTLY_DEAD)
OUTSIDE = "the loss, outside the model"


def located(subject: ExactSubject, check: Check) -> Check:
    """Return `check` with the module that contains the fault, if gradients made it fail."""
    names = [finding.subject for finding in check.findings if finding.verdict in AT_FAULT]
    if check.verdict != Verdict.FAIL or not names:
        return check
    module = None
    declared = subject.declared
    if not declared.stop_gradients and not declared.straight_through:  # these disagree by design
        module = _by_boundaries(subject)
    return _with_module(check, module or owner(subject, names[0]))


def located_between(subject: ExactSubject, check: Check) -> Check:
    """The same by the tensors alone: the smallest module around the last wrong one and the next used."""
    names = [finding.subject for finding in check.findings if finding.verdict in AT_FAULT]
    if check.verdict != Verdict.FAIL or not names:
        return check
    used = list(subject.judge.witness.names())
    after = used[used.index(names[0]) + 1 :][:1]
    paths = [name.split(".")[:-1] for name in (names[0], *after)]
    shared = []
    for parts in zip(*paths, strict=False):
        if len(set(parts)) > 1:
            break
        shared.append(parts[0])
    return _with_module(check, _called(subject, ".".join(shared) if after else ""))


def owner(subject: ExactSubject, name: str) -> str:
    """Return the module whose tensor `name` is."""
    return _called(subject, name.rpartition(".")[0])


def _by_boundaries(subject: ExactSubject) -> str | None:
    """Return the module that contains the operation; None when all boundaries are right, or unknown."""
    try:
        backward(subject.run, subject.next_batch, seed=subject.options.seed)  # stale gradients show
        witness = BoundaryWitness(subject.run, subject.batch, seed=subject.options.seed)
        last = _last_wrong(witness)
    except Exception:  # a program that hooks disturb is localised by its weights
        return None
    if last is None:
        return None
    if last.enters:
        return _called(subject, last.module)
    return OUTSIDE if last.parent is None else _called(subject, last.parent)


def _last_wrong(witness: BoundaryWitness) -> Boundary | None:
    floor = measure_floor(witness)

    def is_wrong(names: Sequence[str]) -> bool:
        direction = Direction(seed=witness.seed, scales={name: witness.scale(name) for name in names})
        return bool(names) and measure(witness, direction, floor).verdict == "WRONG"

    names = witness.names()
    if not is_wrong(names):
        return None
    while len(names) > 1:
        earlier, later = names[: len(names) // 2], names[len(names) // 2 :]
        names = later if is_wrong(later) else earlier
    return witness.boundaries[names[0]]


def _called(subject: ExactSubject, module: str) -> str:
    return module or type(subject.run.model).__name__


def _with_module(check: Check, module: str) -> Check:
    return replace(
        check, module=module, cause=f"{check.cause}; in {module}" if check.cause else f"in {module}"
    )
