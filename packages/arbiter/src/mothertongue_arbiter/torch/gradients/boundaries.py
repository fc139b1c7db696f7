"""The boundaries of module calls as a witness: each input and output of a module can be moved like a weight.

At a boundary autograd delivers a gradient, and moving the tensor there moves the loss. Where the two agree,
everything from there to the loss is right.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from mothertongue_arbiter.direction import Direction, scale_of, signs
from mothertongue_arbiter.run import TrainingRun
from mothertongue_arbiter.torch.run.backward import same_start, scalar

HUGE = 1e30  # a mask of very negative numbers cannot be moved in proportion


@dataclass(frozen=True, kw_only=True)
class Boundary:
    """A tensor on its way into or out of a module, which `parent` called; "" is the whole model."""

    module: str
    parent: str | None
    enters: bool


class BoundaryWitness:
    """Answers for the tensors that cross module boundaries in one forward, in the order of time."""

    def __init__(self, run: TrainingRun, batch: Any, *, seed: int) -> None:
        self.seed = seed
        self.boundaries: dict[str, Boundary] = {}
        self._run, self._batch = run, batch
        self._taps: dict[str, Tensor] = {}
        self._scales: dict[str, float] = {}
        self._record()

    def names(self) -> list[str]:
        return list(self._taps)

    def scale(self, name: str) -> float:
        return self._scales[name]

    def gradient_norm(self, name: str) -> float | None:
        gradient = self._taps[name].grad
        return None if gradient is None else float(gradient.norm())

    def slope(self, direction: Direction) -> tuple[float, float]:
        predicted, squares = 0.0, 0.0
        for name in direction.scales:
            gradient = self._taps[name].grad
            if gradient is not None:
                products = gradient * self._step(name, direction)
                predicted += float(products.sum())
                squares += float(products.square().sum())
        return predicted, squares**0.5

    def loss_at(self, direction: Direction, epsilon: float) -> float:
        def moved(name: str, boundary: Boundary, tensor: Tensor) -> Tensor:
            return tensor + epsilon * self._step(name, direction) if name in direction.scales else tensor

        start = same_start(self._run.model, self.seed)
        with torch.no_grad(), start, _crossed(self._run.model, moved):
            return float(scalar(self._run.loss(self._run.model, self._batch)))

    def _step(self, name: str, direction: Direction) -> Tensor:
        tap = self._taps[name]
        random = torch.from_numpy(signs(direction.seed, name, tap.numel())).to(tap)
        return random.reshape(tap.shape) * direction.scales[name]

    def _record(self) -> None:
        """Add nothing to every tensor that crosses, so that its gradient stays."""

        def tapped(name: str, boundary: Boundary, tensor: Tensor) -> Tensor:
            if not tensor.requires_grad or not torch.is_grad_enabled():
                return tensor
            size = float(tensor.detach().abs().max()) if tensor.numel() else 0.0
            if not 0 < size < HUGE:
                return tensor
            self.boundaries[name] = boundary
            self._scales[name] = scale_of(float(tensor.detach().square().mean().sqrt()))
            self._taps[name] = torch.zeros_like(tensor, requires_grad=True)
            return tensor + self._taps[name]

        with same_start(self._run.model, self.seed), torch.enable_grad():
            with _crossed(self._run.model, tapped):
                loss = scalar(self._run.loss(self._run.model, self._batch))
            loss.backward()  # type: ignore[no-untyped-call]
        for parameter in self._run.model.parameters():
            parameter.grad = None


@contextmanager
def _crossed(model: nn.Module, change: Callable[[str, Boundary, Tensor], Tensor]) -> Iterator[None]:
    """Replace every floating-point tensor that enters or leaves a module inside by what `change` returns."""
    names = {id(module): name for name, module in reversed(list(model.named_modules()))}
    stack: list[str] = []
    count = 0

    def crossing(module: nn.Module, value: Any, *, enters: bool) -> Any:
        parent = stack[-1] if stack else None
        boundary = Boundary(module=names[id(module)], parent=parent, enters=enters)

        def one(tensor: Tensor) -> Tensor:
            nonlocal count
            count += 1
            return change(f"{count} {boundary.module}", boundary, tensor)

        return _mapped(value, one)

    def enter(module: nn.Module, args: Any, kwargs: Any) -> Any:
        args, kwargs = crossing(module, (args, kwargs), enters=True)
        stack.append(names[id(module)])
        return args, kwargs

    def leave(module: nn.Module, args: Any, output: Any) -> Any:
        stack.pop()
        return crossing(module, output, enters=False)

    handles = []
    for module in model.modules():
        handles.append(module.register_forward_pre_hook(enter, with_kwargs=True))
        handles.append(module.register_forward_hook(leave))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _mapped(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """Return `value` with `change` applied to its floating-point tensors; what is unknown stays as it is."""
    if isinstance(value, Tensor):
        is_number = value.is_floating_point() and not isinstance(value, nn.Parameter)
        return change(value) if is_number else value
    if isinstance(value, dict):  # a transformers output is one, and has attributes besides
        changed = copy.copy(value)
        for name, part in value.items():
            changed[name] = _mapped(part, change)
        return changed
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(_mapped(part, change) for part in value))
    if type(value) in (list, tuple):
        return type(value)(_mapped(part, change) for part in value)
    return value
