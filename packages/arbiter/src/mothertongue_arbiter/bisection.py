"""Find the few tensors at fault among many, with few questions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

QUESTIONS = 48  # a question costs a few forward passes; beyond this the nearest culprits are known anyway


@dataclass(frozen=True, kw_only=True)
class Culprits:
    """Names at fault, nearest the loss first; `complete` says whether the search had questions enough."""

    names: tuple[str, ...]
    complete: bool


def locate(
    names: Sequence[str], is_faulty: Callable[[list[str]], bool], *, questions: int = QUESTIONS
) -> Culprits:
    """Return the names at fault, given an oracle that judges a group.

    `names` is in forward order. The half nearer the loss is searched first: a broken operation makes every
    tensor upstream of it wrong, so the *last* wrong tensor in forward order sits right before the
    operation.
    """
    found: list[str] = []
    pending = [list(names)]
    while pending and questions > 0:
        group = pending.pop()
        questions -= 1
        if not is_faulty(group):
            continue
        if len(group) == 1:
            found += group
            continue
        middle = len(group) // 2
        pending += [group[:middle], group[middle:]]
    return Culprits(names=tuple(found), complete=not pending)
