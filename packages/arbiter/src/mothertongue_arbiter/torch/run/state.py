"""Leave a training run exactly as it was: weights, gradients, optimizer, caches, modes, random numbers."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from mothertongue_arbiter.run import TrainingRun

Containers = (dict, list, deque, set)
MOST_PARTS = 10_000  # one optimizer a tensor; a longer list is a corpus


@contextmanager
def preserved(run: TrainingRun) -> Iterator[None]:
    """Restore everything that an audit changes, whatever happens inside.

    Objects keep their identity and tensors their storage: an optimizer, a scheduler or a hook that holds
    one of them holds the right one afterwards. Where the run has `checkpoint()` and `resume(state)`, they
    are used as well, for what lives outside the run.
    """
    memory = Memory()
    for module in run.model.modules():
        memory.keep_object(module)
    for parameter in run.model.parameters():
        memory.keep_parameter(parameter)
    for holder in _holders(run):
        memory.keep_object(holder)
    memory.keep_average(getattr(run, "ema", None))
    memory.keep_attributes(run)
    generators = _random_states(run)
    checkpoint = run.checkpoint() if _can_resume(run) else None  # type: ignore[attr-defined]
    try:
        yield
    finally:
        if checkpoint is not None:
            run.resume(checkpoint)  # type: ignore[attr-defined]
        memory.restore()
        _restore_random_states(generators)


class Memory:
    """Remembers the contents of containers and tensors, and puts them back into the same objects."""

    def __init__(self) -> None:
        self._containers: dict[int, tuple[Any, Any]] = {}
        self._tensors: dict[int, tuple[Tensor, Tensor, Tensor]] = {}
        self._gradients: list[tuple[nn.Parameter, bool, Tensor | None]] = []

    def keep_object(self, thing: Any) -> None:
        """Remember the attributes of `thing`, and all tensors and containers in them."""
        self._keep(vars(thing), tensors=True)

    def keep_attributes(self, thing: Any) -> None:
        """Remember the attributes of `thing` and the containers in them; no tensor, it may be a corpus."""
        if hasattr(thing, "__dict__"):
            self._keep(vars(thing), tensors=False)

    def keep_average(self, average: Any) -> None:
        """Remember averaged weights, a module or a mapping of name to tensor."""
        if isinstance(average, nn.Module):
            for module in average.modules():
                self.keep_object(module)
        elif isinstance(average, dict):
            self._keep(average, tensors=True)

    def keep_parameter(self, parameter: nn.Parameter) -> None:
        self._keep(parameter, tensors=True)
        self._gradients.append((parameter, parameter.requires_grad, parameter.grad))
        if parameter.grad is not None:
            self._keep(parameter.grad, tensors=True)

    def restore(self) -> None:
        with torch.no_grad():
            for tensor, data, copy in self._tensors.values():
                if tensor.layout != torch.strided:  # a sparse gradient has no memory of its own to fill
                    tensor.data = copy
                    continue
                data.copy_(copy)
                if tensor.data_ptr() != data.data_ptr() or tensor.dtype != data.dtype:
                    tensor.data = data
        for parameter, requires_grad, gradient in self._gradients:
            parameter.requires_grad_(requires_grad)
            parameter.grad = gradient
        for container, contents in self._containers.values():
            _refill(container, contents)

    def _keep(self, value: Any, *, tensors: bool) -> None:
        if isinstance(value, Tensor):
            if tensors and id(value) not in self._tensors:
                data = value.data
                self._tensors[id(value)] = (value, data, data.clone())
        elif isinstance(value, Containers) and id(value) not in self._containers:
            self._containers[id(value)] = (value, value.copy())
            children = list(value.values()) if isinstance(value, MutableMapping) else list(value)
            for child in children:
                self._keep(child, tensors=tensors)
        elif isinstance(value, tuple):
            for child in value:
                self._keep(child, tensors=tensors)


def _refill(container: Any, contents: Any) -> None:
    container.clear()
    if isinstance(container, MutableMapping | set):
        container.update(contents)
    else:
        container.extend(contents)


def optimizers_of(run: TrainingRun) -> list[Any]:
    """Return the optimizers of the run, as a list; empty when it has none."""
    optimizer = getattr(run, "optimizer", None)
    if optimizer is None:
        return []
    return list(optimizer) if isinstance(optimizer, list | tuple) else [optimizer]


def parts_of(optimizer: Any) -> list[Any]:
    """Return the optimizers that `optimizer` holds and steps, in any of its attributes."""
    found = {id(part): part for part in getattr(optimizer, "optimizers", ())}
    held = [vars(optimizer)] if hasattr(optimizer, "__dict__") else []
    for value in held + list(held[0].values() if held else ()):
        values = value.values() if isinstance(value, Mapping) else value
        if isinstance(value, Mapping | list | tuple) and len(value) <= MOST_PARTS:
            found |= {id(part): part for part in values if isinstance(part, torch.optim.Optimizer)}
    return list(found.values())


def _holders(run: TrainingRun) -> list[Any]:
    """Return the objects of the run whose state a step changes: optimizers, schedulers, scalers."""
    held = [*optimizers_of(run), *getattr(run, "__dict__", {}).values()]
    nested = [part for thing in held for part in parts_of(thing)]
    stateful = [
        thing for thing in [*held, *nested] if hasattr(thing, "state_dict") and hasattr(thing, "__dict__")
    ]
    return [thing for thing in stateful if not isinstance(thing, nn.Module)]


def _can_resume(run: TrainingRun) -> bool:
    return hasattr(run, "checkpoint") and hasattr(run, "resume")


def _random_states(run: TrainingRun) -> list[tuple[Any, Any]]:
    held = getattr(run, "__dict__", {}).values()
    states: list[tuple[Any, Any]] = [(torch.random, torch.get_rng_state()), (random, random.getstate())]
    states.append((np.random, np.random.get_state()))  # noqa: NPY002 - the program's global state, kept as it was
    if torch.cuda.is_available():
        states.append((torch.cuda, torch.cuda.get_rng_state_all()))
    for thing in held:
        if isinstance(thing, torch.Generator):
            states.append((thing, thing.get_state()))
        elif isinstance(thing, np.random.Generator):
            states.append((thing, thing.bit_generator.state))
        elif isinstance(thing, random.Random):
            states.append((thing, thing.getstate()))
    return states


def _restore_random_states(states: list[tuple[Any, Any]]) -> None:
    for thing, state in states:
        if thing is torch.random:
            torch.set_rng_state(state)
        elif thing is torch.cuda:
            torch.cuda.set_rng_state_all(state)
        elif isinstance(thing, np.random.Generator):
            thing.bit_generator.state = state
        elif isinstance(thing, torch.Generator) or thing is np.random:
            thing.set_state(state)
        else:
            thing.setstate(state)
