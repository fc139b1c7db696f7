"""Positions that are declared must matter."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from mothertongue_arbiter.certificate import Check, Verdict
from mothertongue_arbiter.torch.forward.modes import evaluation
from mothertongue_arbiter.torch.forward.padding import real_positions
from mothertongue_arbiter.torch.run.batches import stretch_of, with_ids
from mothertongue_arbiter.torch.run.subject import SAME, ExactSubject, Unavailable

NUDGE = 1e-5  # of an embedding, in units of the largest; the error of a central difference is its square
ALIKE = 1e-6  # of what earlier positions contribute
COUNTED = 3  # positions 0, 1, 2 at the beginning of a row, by which a look-up of positions is known
LONGEST_ROW = 4  # of the constant row; each token costs two forward passes of it


def positions_used(subject: ExactSubject) -> Check:
    """The model tells positions apart.

    In a row of equal tokens a model that knows no positions averages evenly over what came before. How a
    nudge of token s moves the logits at t is then a polynomial in the matrix of running means, whatever the
    depth, and commutes with it. With rotary, additive or learned positions it does not.
    """
    subject.need("forward")
    if subject.declared.positions is None:
        raise Unavailable("`declared.positions` does not say that there are any")
    if not subject.declared.causal:
        raise Unavailable("declared as not causal")
    name = "positions used"
    with evaluation(subject.run.model):
        again = _looked_up_again(subject)
        if again is not None:
            evidence = f"from position {again} on, a position is looked up again that was already used"
            return _answer(name, Verdict.FAIL, evidence, "positions that are clamped, or a table too short")
        row = _constant_row(subject)
        logits = subject.logits(row)[0]
        spread = float((logits - logits[:1]).abs().max() / logits.abs().max().clamp(min=1e-30))
        if spread > SAME:
            return _answer(name, Verdict.PASS, "equal tokens have other logits at other positions")
        if subject.declared.positions == "absolute":
            evidence = "equal tokens have equal logits at all positions, and absolute ones are declared"
            return _answer(name, Verdict.FAIL, evidence, "position embeddings that are not added")
        moved = _moved_by_nudges(subject, row)
    length = len(moved)
    means = torch.ones(length, length, dtype=moved.dtype).tril() / torch.arange(1, length + 1)[:, None]
    means = means.to(moved.device)
    apart = torch.einsum("tsv,sj->tjv", moved, means) - torch.einsum("ts,sjv->tjv", means, moved)
    others = 1 - torch.eye(length, dtype=moved.dtype, device=moved.device)
    contributed = float((moved * others[:, :, None]).abs().max())
    if contributed < SAME * float(moved.abs().max()):
        raise Unavailable("no logit depends on an earlier token; see the token influence")
    relative = float(apart.abs().max()) / contributed
    if relative < ALIKE:
        evidence = "in a row of equal tokens every earlier one counts the same, wherever it stands"
        return _answer(name, Verdict.FAIL, evidence, "rotary positions that are not applied, or all alike")
    return _answer(name, Verdict.PASS, f"equal tokens count by their distance ({relative:.1e})")


def _looked_up_again(subject: ExactSubject) -> int | None:
    """Return the first position of a row whose index into a table is that of the position before.

    Only indices that count 0, 1, 2 at first are positions; those of a new document begin at 0 again.
    """
    real, documents = real_positions(subject), subject.documents
    together = real[:, 1:] & real[:, :-1]
    if documents is not None:
        together &= documents[:, 1:] == documents[:, :-1]
    with _LookUps(subject.ids.shape) as seen:
        subject.logits(subject.batch)
    for indices in seen.found:
        if torch.equal(indices, subject.ids.to(indices)):  # a row of tokens may count as well
            continue
        counts = bool((indices[:, :COUNTED] == torch.arange(COUNTED, device=indices.device)).all())
        stays = (indices[:, 1:] == indices[:, :-1]) & (indices[:, 1:] > 0) & together
        if counts and bool(stays.any()):
            return int(stays.any(0).nonzero()[0]) + 1
    return None


def _constant_row(subject: ExactSubject) -> Any:
    """Return the beginning of a document, no padding, with one token in all its places."""
    real, documents = real_positions(subject), subject.documents
    for row in range(len(real)):
        first = int(real[row].long().argmax())
        here = real[row, first:] if documents is None else documents[row, first:] == documents[row, first]
        length = min(LONGEST_ROW, int((here & real[row, first:]).long().cumprod(0).sum()))
        if length >= 3:
            part = stretch_of(subject.batch, row, slice(first, first + length))
            return with_ids(part, subject.ids[row : row + 1, first + 1 : first + 2].repeat(1, length))
    raise Unavailable("no row begins with a document of three tokens")


def _moved_by_nudges(subject: ExactSubject, row: Any) -> Tensor:
    """Return by how much a nudge of the embedding at s moves the logits at t: (T, T, V), as [t, s]."""
    columns = []
    length = subject.logits(row).shape[1]
    for source in range(length):
        ends = []
        for sign in (1.0, -1.0):
            with _NudgedEmbedding(length, source, sign * NUDGE, seed=subject.options.seed) as nudged:
                ends.append(subject.logits(row)[0])
            if not nudged.met:
                raise Unavailable("no embedding of the tokens was seen")
        columns.append((ends[0] - ends[1]) / (2 * NUDGE))
    return torch.stack(columns, dim=1)


class _LookUps(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Keeps the indices, one a position, with which rows of any table are looked up; not the token ids."""

    def __init__(self, shape: torch.Size) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.shape = shape
        self.found: list[Tensor] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = func(*args, **(kwargs or {}))
        indices = _indices(func, args)
        if indices is not None and not indices.is_floating_point() and indices.dtype != torch.bool:
            length = self.shape[-1]
            if tuple(indices.shape) in ((length,), (1, length), tuple(self.shape)) and length > COUNTED:
                self.found.append(indices.detach().reshape(-1, length).expand(self.shape).clone())
        return output


def _indices(func: Any, args: Any) -> Tensor | None:
    """Return the indices of a look-up of whole rows of a table; None for any other operation."""
    if func is torch.ops.aten.embedding.default:
        return args[1]  # type: ignore[no-any-return]
    if func is torch.ops.aten.index.Tensor and len(args[1]) == 1:
        return args[1][0]  # type: ignore[no-any-return]
    if func is torch.ops.aten.index_select.default and args[1] == 0:
        return args[2]  # type: ignore[no-any-return]
    return None


class _NudgedEmbedding(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Moves the embedding of one position along a fixed random direction."""

    def __init__(self, length: int, source: int, nudge: float, *, seed: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.shape, self.source, self.nudge, self.seed = (1, length), source, nudge, seed
        self.met = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = func(*args, **(kwargs or {}))
        if func is torch.ops.aten.embedding.default:
            indices = args[1]
        elif func is torch.ops.aten.index.Tensor and len(args[1]) == 1:
            indices = args[1][0]
        else:
            return output
        is_tokens = tuple(indices.shape) == self.shape and isinstance(args[0], nn.Parameter)
        if (
            is_tokens and not self.met
        ):  # the first is that of the tokens, and of whatever is looked up beside it
            self.met = True
            generator = torch.Generator().manual_seed(self.seed)
            direction = torch.rand(output.shape[-1], generator=generator).to(output) - 0.5
            output = output.clone()
            output[0, self.source] += self.nudge * output.abs().max() * direction
        return output


def _answer(name: str, verdict: Verdict, evidence: str, cause: str = "") -> Check:
    return Check(name=name, verdict=verdict, evidence=evidence, cause=cause)
