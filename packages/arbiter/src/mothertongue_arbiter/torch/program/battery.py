"""The checks of the program around the model: its resume, its ranks, its data, its evaluation, its speed."""

from __future__ import annotations

from collections.abc import Callable

from mothertongue_arbiter.certificate import Check
from mothertongue_arbiter.torch.data.documents import documents_held
from mothertongue_arbiter.torch.data.heldout import evaluation, overlap
from mothertongue_arbiter.torch.data.repetition import repetition
from mothertongue_arbiter.torch.data.vocabulary import vocabulary
from mothertongue_arbiter.torch.program.ranks import rank_data, replicas
from mothertongue_arbiter.torch.program.resume import resume
from mothertongue_arbiter.torch.program.sameness import rebuild
from mothertongue_arbiter.torch.program.throughput import throughput
from mothertongue_arbiter.torch.run.state import preserved
from mothertongue_arbiter.torch.run.subject import Subject

Checks = dict[str, Callable[[Subject], Check]]

READING: Checks = {
    "rank data": rank_data,
    "documents": documents_held,
    "vocabulary": vocabulary,
    "repetition": repetition,
    "held-out overlap": overlap,
    "rebuild": rebuild,
}
MOVING: Checks = {
    "evaluation": evaluation,
    "replicas": replicas,
    "resume": resume,
    "throughput": throughput,
}
CHECKS = READING | MOVING


def check_program(subject: Subject, ask: Callable[[str, Callable[[], Check]], None]) -> None:
    """Ask every check by `ask(name, check)`. The run is left as it was; one that moves it finds it so."""
    with preserved(subject.run):
        for name, check in READING.items():
            ask(name, lambda check=check: check(subject))  # type: ignore[misc]
    for name, check in MOVING.items():
        with preserved(subject.run):
            ask(name, lambda check=check: check(subject))  # type: ignore[misc]
