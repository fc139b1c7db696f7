"""The same questions inside a program of several processes: run it under torchrun, and ask on every rank.

loss.backward()                  # and whatever reduces the gradients
check = check_ranks(model, batch, optimizer)
if check.verdict != "PASS": raise SystemExit(f"{check.evidence}: {check.cause}")
optimizer.step()
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, distributed, nn

from mothertongue_arbiter.certificate import Check, Finding, Verdict
from mothertongue_arbiter.errors import ArbiterError
from mothertongue_arbiter.judgement import named
from mothertongue_arbiter.torch.data.likeness import LARGEST_CHANCE, Likeness, chance_of_as_many, equal_pairs
from mothertongue_arbiter.torch.data.rows import Rows
from mothertongue_arbiter.torch.run.batches import token_ids
from mothertongue_arbiter.torch.run.digest import digest, leaves


@dataclass(frozen=True, kw_only=True)
class Testimony:
    """What one rank has, small enough to be sent to all others."""

    weights: Mapping[str, bytes]
    gradients: Mapping[str, bytes]
    moments: Mapping[str, Any] = field(default_factory=dict)
    rows: tuple[bytes, ...] = ()
    chance: float = 0.0  # that two unrelated rows of this text are equal


def check_ranks(model: nn.Module, batch: Any = None, optimizer: Any = None, *, group: Any = None) -> Check:
    """Return whether all ranks hold the same weights, gradients and optimizer state, and different rows.

    Every rank of `group` must call it, after the gradients are reduced; all get the same answer. What is
    sharded on purpose (DTensor) is left out. It sends digests: about 20 bytes a tensor and a row.

    Raises:
        ArbiterError: there is no process group.
    """
    if not (distributed.is_available() and distributed.is_initialized()):
        raise ArbiterError("no process group; start the program with torchrun and call init_process_group()")
    ranks = distributed.get_world_size(group)
    told: list[Any] = [None] * ranks
    distributed.all_gather_object(told, _testimony(model, batch, optimizer), group=group)
    return _judged(told)


def _testimony(model: nn.Module, batch: Any, optimizer: Any) -> Testimony:
    parameters = {name: one for name, one in model.named_parameters() if not _is_sharded(one)}
    rows = () if batch is None or token_ids(batch) is None else Rows.of([batch])
    names = {id(one): name for name, one in parameters.items()}
    state = getattr(optimizer, "state", {})
    likeness = Likeness.of(row for _, row in rows.each()) if isinstance(rows, Rows) else None
    return Testimony(
        weights={name: digest(_local(one)) for name, one in parameters.items()},
        gradients={
            name: b"" if one.grad is None else digest(_local(one.grad)) for name, one in parameters.items()
        },
        moments={
            f"{names[id(one)]}/{key}": digest(_local(value)) if isinstance(value, Tensor) else value
            for one, entry in state.items()
            if id(one) in names
            for key, value in leaves(entry)
        },
        rows=rows.keys if isinstance(rows, Rows) else (),
        chance=likeness.chance(rows.ids[0].shape[1]) if likeness and isinstance(rows, Rows) else 0.0,
    )


def _is_sharded(tensor: Any) -> bool:
    return not all(place.is_replicate() for place in getattr(tensor, "placements", ()))


def _local(tensor: Any) -> Tensor:
    local: Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return local


def _judged(told: Sequence[Testimony]) -> Check:
    for kind, cause in (
        ("weights", "another seed without a broadcast, or updates that differed before"),
        ("gradients", "a bucket that is not reduced over the ranks, or clipping by a local norm"),
        ("moments", "optimizers that got different gradients before, or were loaded on one rank only"),
    ):
        unlike = _unlike([getattr(one, kind) for one in told])
        if unlike:
            rank, names = next(iter(unlike.items()))
            evidence = f"{kind} of rank {rank} differ from those of rank 0: {named(names)}"
            return _failed(evidence, cause, names)
    pairs = [(one, other) for one in range(len(told)) for other in range(one)]
    shared = {(one, other): equal_pairs(told[one].rows, told[other].rows) for one, other in pairs}
    found = sum(shared.values())
    possible = sum(len(told[one].rows) * len(told[other].rows) for one, other in pairs)
    chance = max(one.chance for one in told)
    if found and chance_of_as_many(found, possible * chance) <= LARGEST_CHANCE:
        one, other = max(shared, key=lambda pair: shared[pair])
        evidence = f"{shared[one, other]} rows of rank {one} are also rows of rank {other}"
        return _failed(evidence, "the rank is not in the sampler or in its seed", [])
    rows = sum(len(one.rows) for one in told)
    equal = f"{len(told[0].weights)} tensors equal bit for bit"
    evidence = f"{len(told)} ranks: {equal}, and {rows} rows on one rank each"
    return Check(name="ranks", verdict=Verdict.PASS, evidence=evidence)


def _unlike(told: Sequence[Mapping[str, Any]]) -> dict[int, list[str]]:
    first = told[0]
    unlike = {
        rank: [name for name in {**first, **other} if first.get(name) != other.get(name)]
        for rank, other in enumerate(told)
    }
    return {rank: names for rank, names in unlike.items() if names}


def _failed(evidence: str, cause: str, names: Sequence[str]) -> Check:
    findings = tuple(Finding(subject=name, verdict="DRIFT") for name in names)
    return Check(name="ranks", verdict=Verdict.FAIL, evidence=evidence, cause=cause, findings=findings)
