"""One step of a program, seen from outside: each call of an optimizer, what it was handed, what it did."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import wraps
from typing import Any

import torch
from torch import Tensor, nn

from mothertongue_arbiter.run import TrainingRun
from mothertongue_arbiter.torch.forward.modes import ModuleCall
from mothertongue_arbiter.torch.run.backward import real
from mothertongue_arbiter.torch.run.state import optimizers_of, parts_of
from mothertongue_arbiter.torch.run.xray import Xray

COMPARED = 8  # rows of a weight, which tell whether it was moved
WRAPPER = "module."  # of names in an averaged or a distributed model


@dataclass(frozen=True, kw_only=True)
class Applied:
    """One tensor in one call of `optimizer.step()`."""

    gradient: Tensor | None  # None where the optimizer passes over it
    before: Tensor
    after: Tensor
    kind: type  # of the optimizer
    numbers: Mapping[str, Any]  # of its parameter group at that time: lr, weight_decay, ...


@dataclass(kw_only=True)
class Recorded:
    """One step as it was seen from outside."""

    step: int = 0
    handed: dict[str, Tensor | None] | None = None  # gradients when the optimizer was first called
    learning_rate: float = 0.0  # the largest of all groups, then
    xrays: list[Xray] = field(default_factory=list)  # one a micro-batch, of the first step
    modules: list[ModuleCall] = field(default_factory=list)
    # Of loss() on batch(), before the step.
    reference: Mapping[str, Tensor | None] = field(default_factory=dict)
    calls: list[dict[str, Applied]] = field(default_factory=list)  # of any optimizer, in turn
    closure: bool = False  # the optimizer evaluates the loss itself
    moved: bool = False  # a forward saw other weights than those before the step, and no optimizer was called
    hidden: bool = False  # it moves weights by gradients that are kept elsewhere than at the weights
    before: dict[str, Tensor] = field(default_factory=dict)  # what is updated: weights, or their masters
    after: dict[str, Tensor] = field(default_factory=dict)
    weights_before: dict[str, Tensor] = field(default_factory=dict)  # of the model
    weights_after: dict[str, Tensor] = field(default_factory=dict)
    average_before: dict[str, Tensor] = field(default_factory=dict)  # `run.ema`, by the names of the model
    average_after: dict[str, Tensor] = field(default_factory=dict)


class Watch:
    """Knows which tensor each optimizer updates for which parameter, and copies what changes."""

    def __init__(self, run: TrainingRun) -> None:
        self.run = run
        self.optimizers = [one for one in optimizers_of(run) if hasattr(one, "step")]
        # A wrapper steps for the optimizers that it holds; they are the ones that remember, and some are
        # stepped without it, as from a hook of the backward pass.
        self.parts = [part for one in self.optimizers for part in parts_of(one) if hasattr(part, "step")]
        self.holders = [*self.optimizers, *self.parts]
        self._is_stepping = False
        self.masters = masters_of(run, self.optimizers)
        self.held: dict[str, Tensor] = {**dict(run.model.named_parameters()), **self.masters}
        self.state = {name: self._state_of(name) for name in self.held}
        # A torch AveragedModel takes over the weights whole in its first update.
        self.fresh_average = int(getattr(getattr(run, "ema", None), "n_averaged", 1)) == 0
        self._copies: dict[tuple[str, str], Tensor] = {}

    def _state_of(self, name: str) -> dict[str, Any] | None:
        """Return a copy of what the optimizer remembers of `name`; None where that cannot be read."""
        state = self.state_of(name)
        if state is None:
            return None
        return {
            key: real(value.detach()).clone() if isinstance(value, Tensor) else value
            for key, value in state.items()
        }

    def state_of(self, name: str) -> Mapping[str, Any] | None:
        """Return what the optimizer remembers of `name` now; None where that cannot be read."""
        tensor = self.held[name]
        for holder in self.holders:
            state = getattr(holder, "state", None)
            if not isinstance(state, Mapping):
                continue
            if any(one is tensor for group in _groups(holder) for one in group["params"]):
                found = state.get(tensor, {})
                return found if isinstance(found, Mapping) else None
        return None

    def copied(self, kind: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return copies of `tensors`; one that has not changed since its last copy is not copied again."""
        for name, tensor in tensors.items():
            last = self._copies.get((kind, name))
            now = real(tensor.detach())
            if last is None or last.dtype != now.dtype or not torch.equal(last, now):
                self._copies[kind, name] = now.clone()
        return {name: self._copies[kind, name] for name in tensors}

    def weights(self) -> dict[str, Tensor]:
        return self.copied("model", dict(self.run.model.named_parameters()))

    def updated(self) -> dict[str, Tensor]:
        """Return copies of the weights that are really updated: masters, where there are any."""
        return self.weights() | self.copied("master", self.masters)

    def average(self) -> dict[str, Tensor]:
        return self.copied("average", average_of(self.run))

    @contextmanager
    def watching(self, record: Recorded) -> Iterator[None]:
        """Write every call of an optimizer into `record`."""
        shadowed = [vars(optimizer).get("step") for optimizer in self.holders]
        for optimizer in self.holders:
            optimizer.step = self._watched(optimizer.step, optimizer, record)
        handle = nn.modules.module.register_module_forward_pre_hook(self._compares_weights(record))
        try:
            yield
        finally:
            handle.remove()
            for optimizer, step in zip(self.holders, shadowed, strict=True):
                if step is None:
                    del optimizer.step
                else:
                    optimizer.step = step

    def _compares_weights(self, record: Recorded) -> Callable[..., None]:
        """Return a hook that compares the beginning of each weight that a module uses with that before."""
        names = {id(parameter): name for name, parameter in self.run.model.named_parameters()}

        def compared(module: nn.Module, args: Any) -> None:
            if record.moved or record.handed is not None:
                return
            for parameter in module.parameters(recurse=False):
                before = record.weights_before.get(names.get(id(parameter), ""))
                if before is not None and parameter.shape[:1] == before.shape[:1]:
                    now = real(parameter.detach())
                    record.moved |= not torch.equal(now[:COMPARED], before[:COMPARED]) if now.dim() else False

        return compared

    def _watched(self, step: Callable[..., Any], optimizer: Any, record: Recorded) -> Callable[..., Any]:
        @wraps(step)  # a scheduler recognises the method that it wrapped
        def watched(*args: Any, **kwargs: Any) -> Any:
            if self._is_stepping:  # a part of the one that is watched already
                return step(*args, **kwargs)
            rates = [float(group.get("lr") or 0.0) for group in _groups(optimizer)]
            record.learning_rate = max([record.learning_rate, *rates])
            record.closure |= any(one is not None for one in (*args, *kwargs.values()))
            held = self._groups_of(optimizer)
            gradients = self._gradients(optimizer)
            seen = {name for call in record.calls for name in call}
            before = self._only(held)
            self._is_stepping = True
            try:
                answer = step(*args, **kwargs)
            finally:
                self._is_stepping = False
            after = self._only(held)
            if held and all(gradients[name] is None for name in held):
                if seen >= held.keys():  # its parts have stepped before
                    return answer
                if any(after[name] is not before[name] for name in held):
                    record.hidden = True
                    return answer
            if record.handed is None:
                record.handed = dict(gradients)
            record.handed |= {name: gradients[name] for name in held if name not in seen}
            record.calls.append(
                {
                    name: Applied(
                        gradient=gradients[name],
                        before=before[name],
                        after=after[name],
                        kind=type(optimizer),
                        numbers=numbers,
                    )
                    for name, numbers in held.items()
                }
            )
            return answer

        return watched

    def _groups_of(self, optimizer: Any) -> dict[str, dict[str, Any]]:
        """Return the numbers of the parameter group of each tensor that `optimizer` holds."""
        names = {id(tensor): name for name, tensor in self.held.items()}
        held: dict[str, dict[str, Any]] = {}
        for group in _groups(optimizer):
            numbers = {key: value for key, value in group.items() if key != "params"}
            held |= {names[id(one)]: numbers for one in group["params"] if id(one) in names}
        return held

    def _only(self, names: Mapping[str, Any]) -> dict[str, Tensor]:
        model = {name: self.held[name] for name in names if name not in self.masters}
        masters = {name: self.held[name] for name in names if name in self.masters}
        return self.copied("model", model) | self.copied("master", masters)

    def _gradients(self, optimizer: Any) -> dict[str, Tensor | None]:
        """Return the gradients of this moment as `optimizer` will use them."""
        scale = getattr(optimizer, "grad_scale", None)  # a GradScaler lets a fused step undo its scale
        if scale is not None and bool(getattr(optimizer, "found_inf", 0)):
            return dict.fromkeys(self.held)  # an overflow: it will do nothing
        found: dict[str, Tensor | None] = {}
        for name, parameter in self.run.model.named_parameters():
            gradient = getattr(parameter, "main_grad", None)  # of Megatron and Apex: summed in float32
            gradient = self.held[name].grad if gradient is None else gradient
            gradient = parameter.grad if gradient is None else gradient
            if gradient is not None:
                gradient = gradient.detach().to_dense() if gradient.is_sparse else gradient.detach()
                gradient = real(gradient)
                gradient = gradient.clone() if scale is None else gradient / scale
            found[name] = gradient
        return found


def average_of(run: TrainingRun) -> dict[str, Tensor]:
    """Return the averaged weights of the run by the names of its model; empty where it has none."""
    average: Any = getattr(run, "ema", None)
    if isinstance(average, nn.Module):
        average = dict(average.named_parameters())
    if not isinstance(average, Mapping):
        return {}
    names = dict(run.model.named_parameters())
    found = {str(name).removeprefix(WRAPPER): one for name, one in average.items()}
    return {name: one for name, one in found.items() if name in names and isinstance(one, Tensor)}


def _groups(optimizer: Any) -> list[dict[str, Any]]:
    return list(getattr(optimizer, "param_groups", []))


def masters_of(run: TrainingRun, optimizers: list[Any]) -> dict[str, Tensor]:
    """Return the tensors that an optimizer holds instead of the model's, by the name of what they copy.

    They are recognised by their shape and their value: rounded, a master is the weight.
    """
    parameters = dict(run.model.named_parameters())
    held = [one for optimizer in optimizers for group in _groups(optimizer) for one in group["params"]]
    known = {id(one) for one in held}
    trained = {name: weight for name, weight in parameters.items() if weight.requires_grad}
    missing = {name: weight for name, weight in trained.items() if id(weight) not in known}
    own = {id(weight) for weight in parameters.values()}
    found: dict[str, Tensor] = {}
    for tensor in held:
        if id(tensor) in own or not isinstance(tensor, Tensor):
            continue
        for name, weight in missing.items():
            if name not in found and tensor.shape == weight.shape and _rounds_to(tensor, weight):
                found[name] = tensor
                break
    return found


def _rounds_to(master: Tensor, weight: Tensor) -> bool:
    return torch.equal(master.detach().to(weight.device, weight.dtype), weight.detach())
