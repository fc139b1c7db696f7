"""Relative positions: all of them may be shifted alike."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from mothertongue_arbiter.certificate import Check, Verdict
from mothertongue_arbiter.torch.forward.padding import real_positions
from mothertongue_arbiter.torch.run.batches import (
    POSITION_NAMES,
    named_tensor,
    other_ids,
    with_ids,
    with_tensor,
)
from mothertongue_arbiter.torch.run.subject import SAME, ExactSubject, Unavailable

NAME = "position shift"
SHIFTS = (1, 7)
TABLE = re.compile(
    r"cos|sin|rope|rotary|freq|pos|cis", re.IGNORECASE
)  # names of tables with a row a position


def position_shift(subject: ExactSubject) -> Check:
    """With relative positions, the logits stay when all positions are shifted alike."""
    subject.need("forward")
    if subject.declared.positions != "relative":
        raise Unavailable("positions are not declared relative")
    before = subject.standing
    given = named_tensor(subject.batch, POSITION_NAMES)
    if given is not None and not _differs(subject, before, given, stretch=2, tolerance=SAME):
        if not _counts_on(subject, given):
            evidence = "the logits stay when the distances between all positions are doubled"
            return _failed(evidence, "the position ids are not used")
        given = None  # counted by the program itself they have the same distances
    if given is None and not _differs(subject, before, given, stretch=2, tolerance=SAME):
        raise Unavailable("the program makes its positions where they cannot be shifted")
    for shift in SHIFTS:
        apart = _differs(subject, before, given, shift=shift, tolerance=subject.same_at_other_positions)
        if apart:
            if _convolves(subject):
                raise Unavailable(
                    "the program counts lags for a convolution as long as the row, no positions"
                )
            if given is None and _looks_ahead(subject, shift):
                raise Unavailable("the program makes its positions and its mask of the same numbers")
            evidence = f"the logits change by {apart:.1e} when all positions are shifted by {shift}"
            cause = "queries and keys turned differently, rounded tables, or absolute positions"
            return _failed(evidence, cause)
    evidence = "the logits stay when all positions are shifted"
    return Check(name=NAME, verdict=Verdict.PASS, evidence=evidence)


def _counts_on(subject: ExactSubject, given: Tensor) -> bool:
    """Return whether the position ids of a row count on with its tokens, as a program's own count does.

    A new document may begin at 0 again where none sees another.
    """
    if given.shape != subject.ids.shape:
        return given.shape[-1] == subject.ids.shape[1] and bool((given.diff() == 1).all())
    real = real_positions(subject)
    steps = given.diff() == 1
    if subject.declared.isolated_documents:
        steps |= given[:, 1:] == 0
    return bool((steps | ~(real[:, 1:] & real[:, :-1])).all())


def _differs(
    subject: ExactSubject,
    before: Tensor,
    given: Tensor | None,
    *,
    tolerance: float,
    shift: int = 0,
    stretch: int = 1,
) -> float:
    """Return how far the logits move when position p becomes stretch * p + shift; 0 within the tolerance.

    The positions are those `given` in the batch, or those that the program counts.
    """
    batch = subject.batch
    if given is not None:
        batch = with_tensor(batch, given, given * stretch + shift)
    counted = nullcontext() if given is not None else _moved_tables(subject, shift=shift, stretch=stretch)
    try:
        with counted:
            after = subject.logits(batch)
    except Exception as error:  # a table that is too short, or an index that is no position
        reason = (str(error).splitlines() or [""])[0]
        raise Unavailable(f"the positions cannot be shifted: {reason}") from error
    if after.shape != before.shape:
        raise Unavailable("`forward` returns another shape when positions are shifted")
    apart = float((after - before).abs().max() / before.abs().max().clamp(min=1e-30))
    return apart if apart > tolerance else 0.0


def _looks_ahead(subject: ExactSubject, shift: int) -> bool:
    """Return whether shifted positions let a causal model see later tokens: its mask moved with them."""
    if not subject.declared.causal:
        return False
    ids = subject.ids
    last = torch.cat([ids[:, :-1], other_ids(ids)[:, -1:]], dim=1)
    with _moved_tables(subject, shift=shift, stretch=1):
        one, other = subject.logits(subject.batch), subject.logits(with_ids(subject.batch, last))
    return float((one - other)[:, :-1].abs().max()) > SAME * float(one.abs().max())


def _convolves(subject: ExactSubject) -> bool:
    """Return whether the program convolves by Fourier transforms; a kernel of lags counts as positions do."""
    with _Transforms() as seen:
        subject.logits(subject.batch)
    return bool(seen.met)


@contextmanager
def _moved_tables(subject: ExactSubject, *, shift: int, stretch: int) -> Iterator[None]:
    """Move positions that the program counts itself, and the rows of tables that it made before."""
    length = subject.ids.shape[1]
    used = torch.arange(length) * stretch + shift
    kept: list[tuple[Tensor, Tensor]] = []
    for name, table in subject.run.model.named_buffers():
        if TABLE.search(name) and table.dim() >= 2 and table.shape[-2] > int(used[-1]):
            kept.append((table, table.data))
            rows = torch.cat([used, torch.arange(length, table.shape[-2])]).to(table.device)
            table.data = table.data.index_select(-2, rows)
    try:
        with _MovedCount(length, shift=shift, stretch=stretch):
            yield
    finally:
        for table, data in kept:
            table.data = data


class _Transforms(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Sees whether anything is Fourier transformed."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.met = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.met |= func.name().startswith("aten::_fft")
        return func(*args, **(kwargs or {}))


class _MovedCount(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Lets every 0, 1, 2, ... of the length of a row begin and step otherwise."""

    def __init__(self, length: int, *, shift: int, stretch: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.length, self.shift, self.stretch = length, shift, stretch

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = func(*args, **(kwargs or {}))
        counts = func in (torch.ops.aten.arange.default, torch.ops.aten.arange.start)
        if counts and output.shape == (self.length,) and float(output[0]) == 0:
            return output * self.stretch + self.shift
        return output


def _failed(evidence: str, cause: str) -> Check:
    return Check(name=NAME, verdict=Verdict.FAIL, evidence=evidence, cause=cause)
