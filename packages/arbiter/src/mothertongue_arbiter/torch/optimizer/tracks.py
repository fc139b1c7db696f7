"""What each tensor went through in the watched steps, and the rule that it should have followed."""

from __future__ import annotations

import glob
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from mothertongue_arbiter.declared_optimizer import Adjustment, Group, Optimizer
from mothertongue_arbiter.run import matches
from mothertongue_arbiter.torch.gradients.rounding import OwnPrecision
from mothertongue_arbiter.torch.optimizer.steps import Steps
from mothertongue_arbiter.torch.optimizer.watching import Applied, Recorded
from mothertongue_arbiter.torch.run.subject import Subject, Unavailable
from mothertongue_arbiter.update_history import Event, History
from mothertongue_arbiter.update_rules import NEWTON_SCHULZ, NEWTON_SCHULZ_STEPS, Array, Moments

LARGEST_PIECE = 1 << 22  # elements judged at once, so that a large embedding costs no gigabytes of float64
FIRST = ("exp_avg", "momentum_buffer", "momentum")  # keys of optimizer.state
SECOND = ("exp_avg_sq",)
ADJUSTMENTS: dict[str | None, Adjustment] = {
    None: "keller",
    "original": "keller",
    "match_rms_adamw": "moonshot",
}


@dataclass(frozen=True, kw_only=True)
class Seen:
    """One optimizer step of one tensor."""

    step: int
    rate: float
    before: Tensor
    after: Tensor
    gradient: Tensor | None


@dataclass(frozen=True, kw_only=True)
class Track:
    """All steps of one tensor, as torch tensors; `pieces` are what is judged."""

    name: str
    group: Group
    seen: tuple[Seen, ...]
    start: Moments | None  # None where they cannot be known
    gradient_error: float = 0.0
    hidden_master: bool = False

    @property
    def count(self) -> int:
        return self.seen[0].before.numel()

    def pieces(self) -> Iterator[History]:
        """Yield the tensor in float64, in pieces where its rule allows it."""
        assert self.start is not None
        whole = self.group.algorithm == "muon" or self.count <= LARGEST_PIECE
        slices = (
            [None] if whole else [slice(at, at + LARGEST_PIECE) for at in range(0, self.count, LARGEST_PIECE)]
        )
        for part in slices:
            yield History(
                name=self.name,
                group=self.group,
                events=tuple(
                    Event(
                        step=one.step,
                        rate=one.rate,
                        before=_array(one.before, part),
                        after=_array(one.after, part),
                        gradient=None if one.gradient is None else _array(one.gradient, part),
                    )
                    for one in self.seen
                ),
                start=_part_of(self.start, part),
                epsilon=torch.finfo(self.seen[0].before.dtype).eps,
                gradient_error=self.gradient_error,
                hidden_master=self.hidden_master,
            )


def _array(tensor: Tensor, part: slice | None) -> Array:
    tensor = tensor.detach() if part is None else tensor.detach().reshape(-1)[part]
    found: Array = tensor.cpu().double().numpy()  # not every device has float64
    return found


def _part_of(moments: Moments, part: slice | None) -> Moments:
    if part is None:
        return moments
    first, second = moments.first, moments.second
    return replace(
        moments,
        first=None if first is None else first.reshape(-1)[part],
        second=None if second is None else second.reshape(-1)[part],
    )


def declared_tracks(
    subject: Subject, steps: Steps, optimizer: Optimizer, rounding: OwnPrecision
) -> tuple[list[Track], list[str]]:
    """Return a track for each tensor that a declared group owns, and the trainable ones that none owns."""
    tracks, orphans = [], []
    skipped = [record.handed is None and not _changed(record) for record in steps.records]
    by_hand = all(record.handed is None for record in steps.records)
    if any(record.closure for record in steps.records):
        raise Unavailable("`optimizer.step(closure)` computes its gradient itself")
    if by_hand and not subject.is_still:
        raise Unavailable("no optimizer was called, and the loss draws random numbers")
    for name, parameter in subject.run.model.named_parameters():
        group = next((one for one in optimizer.groups if matches(name, one.parameters)), None)
        if group is None:
            if parameter.requires_grad and not subject.declared.is_frozen(name):
                orphans.append(name)
            continue
        seen = []
        for record, is_skipped in zip(steps.records, skipped, strict=True):
            gradients = record.handed or ({} if is_skipped and not by_hand else clipped(record, optimizer))
            seen.append(
                Seen(
                    step=record.step,
                    rate=group.rate(record.step),
                    before=record.before[name],
                    after=record.after[name],
                    gradient=gradients.get(name),
                )
            )
        rough = optimizer.master_dtype is not None and name not in steps.watch.masters
        wide = getattr(torch, optimizer.master_dtype or "", parameter.dtype)
        tracks.append(
            Track(
                name=name,
                group=group,
                seen=tuple(seen),
                start=_start(steps.watch.state[name], fresh=subject.step == 0),
                gradient_error=rounding.tolerances[name] if by_hand else 0.0,
                hidden_master=rough and torch.finfo(wide).eps < torch.finfo(parameter.dtype).eps,
            )
        )
    return tracks, orphans


def _changed(record: Recorded) -> bool:
    return any(record.after[name] is not weight for name, weight in record.before.items())


def clipped(record: Recorded, optimizer: Optimizer) -> dict[str, Tensor | None]:
    """Return the gradient of the whole batch as the declaration clips it."""
    found = {name: None if one is None else one.double() for name, one in record.reference.items()}
    if (limit := optimizer.clip_value) is not None:
        found = {name: None if one is None else one.clamp(-limit, limit) for name, one in found.items()}
    if optimizer.clip_norm is not None:
        norm = math.sqrt(sum(float(one.square().sum()) for one in found.values() if one is not None))
        factor = min(1.0, optimizer.clip_norm / norm) if norm else 1.0
        found = {name: None if one is None else one * factor for name, one in found.items()}
    return found


def claimed_tracks(subject: Subject, steps: Steps) -> list[Track]:
    """Return a track for each tensor of an optimizer of torch, which follows its own parameter groups."""
    seen: dict[str, list[Seen]] = {}
    groups: dict[str, list[Group | None]] = {}
    for record in steps.records:
        for call in record.calls:
            for name, applied in call.items():
                group = claimed_group(name, applied)
                groups.setdefault(name, []).append(group)
                gradient = applied.gradient
                if gradient is not None and applied.numbers.get("maximize"):
                    gradient = -gradient
                seen.setdefault(name, []).append(
                    Seen(
                        step=record.step,
                        rate=float(applied.numbers.get("lr", 0.0)),
                        before=applied.before,
                        after=applied.after,
                        gradient=gradient,
                    )
                )
    return [
        Track(
            name=name,
            group=replace(group, learning_rate=_rates(seen[name])),
            seen=tuple(seen[name]),
            start=_start(steps.watch.state[name], fresh=subject.step == 0),
        )
        for name, found in groups.items()
        if (group := found[0]) is not None and all(one == group for one in found)
    ]


def _rates(seen: list[Seen]) -> Any:
    known = {one.step: one.rate for one in seen}
    return lambda step: known.get(step, seen[-1].rate)


def claimed_group(name: str, applied: Applied) -> Group | None:
    """Return the rule that an optimizer of torch claims for `name`; None where it is not one of ours."""
    numbers, kind = applied.numbers, applied.kind
    if kind.__module__.split(".")[:2] != ["torch", "optim"] or numbers.get("amsgrad"):
        return None
    known: dict[str, Any] = {
        "parameters": (glob.escape(name),),
        "learning_rate": 0.0,  # it is read off each call
        "weight_decay": float(numbers.get("weight_decay", 0.0)),
    }
    if kind in (torch.optim.Adam, torch.optim.AdamW):
        decoupled = kind is torch.optim.AdamW or numbers.get("decoupled_weight_decay")
        known |= {"betas": tuple(map(float, numbers["betas"])), "eps": float(numbers["eps"])}
        return Group(algorithm="adamw" if decoupled else "adam", **known)
    names = ("momentum", "dampening", "nesterov")
    known |= {key: numbers[key] for key in names if key in numbers}
    if kind is torch.optim.SGD:
        return Group(algorithm="sgd", **known)
    usual = numbers.get("ns_steps") == NEWTON_SCHULZ_STEPS and numbers.get("ns_coefficients") == NEWTON_SCHULZ
    adjust: Any = ADJUSTMENTS.get(numbers.get("adjust_lr_fn"))
    return Group(algorithm="muon", adjust=adjust, **known) if usual and adjust else None


def _start(state: Mapping[str, Any] | None, *, fresh: bool) -> Moments | None:
    """Return what the optimizer remembered before the first step; None where that cannot be read."""
    if state is None:
        return Moments() if fresh else None
    found = {
        key: value for key, value in state.items() if isinstance(value, Tensor) and value.is_floating_point()
    }
    first = next((_array(found[key], None) for key in FIRST if key in found), None)
    second = next((_array(found[key], None) for key in SECOND if key in found), None)
    if first is None and any(bool(value.any()) for key, value in found.items() if key != "step"):
        return None
    return Moments(steps=int(state.get("step", 0)), first=first, second=second)
