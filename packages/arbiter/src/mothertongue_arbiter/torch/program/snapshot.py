"""The whole state of a run as digests: what must be equal after an exact resume."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from mothertongue_arbiter.run import TrainingRun
from mothertongue_arbiter.torch.run.digest import digest, digests, leaves
from mothertongue_arbiter.torch.run.fresh import replicas_of
from mothertongue_arbiter.torch.run.state import optimizers_of, parts_of


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """Digests and numbers by name, in the kinds by which a loss is reported."""

    weights: Mapping[str, Any]
    moments: Mapping[str, Any]  # of the optimizer, as parameter/moment, without the counters
    counters: Mapping[str, Any]  # steps that the optimizer has counted
    rates: Mapping[str, Any]  # learning rates, and where schedulers and scalers stand
    ema: Mapping[str, Any]
    random: Mapping[str, Any]  # states of the generators
    own: Mapping[str, Any]  # numbers among the run's own attributes: they explain, and prove nothing


OUTCOMES = ("weights", "moments", "counters", "rates", "ema")  # what must be equal


def snapshot(run: TrainingRun) -> Snapshot:
    """Return the state of `run` now."""
    models = replicas_of(run)
    names: dict[int, str] = {}
    weights: dict[str, Any] = {}
    for rank, model in enumerate(models):
        prefix = f"rank {rank}: " if rank else ""
        names |= {id(parameter): f"{prefix}{name}" for name, parameter in model.named_parameters()}
        weights |= {f"{prefix}{name}": digest(tensor) for name, tensor in _tensors(model).items()}
    state = _optimizer_state(run, names)
    counters = {name: value for name, value in state.items() if isinstance(value, int | float)}
    return Snapshot(
        weights=weights,
        moments={name: value for name, value in state.items() if name not in counters},
        counters=counters,
        rates=_rates(run),
        ema=_ema(run),
        random=_random_numbers(run),
        own={name: value for name, value in vars_of(run).items() if isinstance(value, int | float)},
    )


def differences(one: Snapshot, other: Snapshot, kind: str) -> list[str]:
    """Return the names of one kind that are missing in either or not equal, in the order of `one`."""
    mine, others = getattr(one, kind), getattr(other, kind)
    names = [*mine, *(name for name in others if name not in mine)]
    return [name for name in names if not _equal(mine.get(name), others.get(name))]


def _equal(one: Any, other: Any) -> bool:
    return bool(one == other) or (one != one and other != other)  # two NaN are equal here


def _tensors(model: nn.Module) -> dict[str, Tensor]:
    """Return the parameters and the buffers that a checkpoint would hold."""
    kept = dict(model.named_parameters(remove_duplicate=False))
    saved = model.state_dict(keep_vars=True)
    return kept | {name: value for name, value in saved.items() if isinstance(value, Tensor)}


def _optimizer_state(run: TrainingRun, names: Mapping[int, str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for number, optimizer in enumerate(optimizers_of(run)):
        parts = [part for part in parts_of(optimizer) if hasattr(part, "state")]
        own = not parts or isinstance(getattr(optimizer, "state", None), Mapping)
        for one in [*parts, optimizer] if own else parts:
            state = getattr(one, "state", None)
            if isinstance(state, Mapping):
                for parameter, entry in state.items():
                    name = names.get(id(parameter)) or str(parameter)[:20]  # to print a tensor takes long
                    found |= {f"{name}/{key}": value for key, value in _numbers(entry).items()}
            else:  # an optimizer written by hand keeps its moments in attributes
                found |= _written_by_hand(vars(one) if hasattr(one, "__dict__") else {}, number)
    return found


def _written_by_hand(attributes: Mapping[str, Any], number: int) -> dict[str, Any]:
    return {
        f"optimizer {number}/{name}": digest(value) if isinstance(value, Tensor) else value
        for name, value in leaves({key: part for key, part in attributes.items() if key != "param_groups"})
        if not isinstance(value, nn.Parameter)
    }


def _numbers(entry: Any) -> dict[str, Any]:
    """Return the leaves of the optimizer's state of one parameter; a counter as a number, tensor or not."""
    found = {}
    for name, value in leaves(entry):
        single = isinstance(value, Tensor) and value.numel() == 1
        found[name] = float(value) if single else digest(value) if isinstance(value, Tensor) else value
    return found


def _rates(run: TrainingRun) -> dict[str, Any]:
    rates: dict[str, Any] = {}
    for number, optimizer in enumerate(optimizers_of(run)):
        for place, group in enumerate(getattr(optimizer, "param_groups", [])):
            rates[f"learning rate of group {place}" + (f" of rank {number}" if number else "")] = float(
                group.get("lr", 0.0)
            )
    for name, thing in vars_of(run).items():
        if isinstance(thing, torch.optim.lr_scheduler.LRScheduler):
            rates[f"step of {name}"] = thing.last_epoch
        elif isinstance(thing, torch.amp.GradScaler):
            rates[f"scale of {name}"] = thing.get_scale()
    return rates


def _ema(run: TrainingRun) -> dict[str, Any]:
    ema = getattr(run, "ema", None)
    if isinstance(ema, nn.Module):
        return {f"ema {name}": digest(tensor) for name, tensor in _tensors(ema).items()}
    if isinstance(ema, Mapping):
        return digests(ema, "ema")
    return {}


def _random_numbers(run: TrainingRun) -> dict[str, Any]:
    legacy: Any = np.random.get_state()  # noqa: NPY002 - the program may use the global state
    states: dict[str, Any] = {
        "torch": digest(torch.get_rng_state()),
        "random": hash(random.getstate()),
        "numpy": hash((legacy[1].tobytes(), *legacy[2:])),
    }
    for name, thing in vars_of(run).items():
        if isinstance(thing, torch.Generator):
            states[f"run.{name}"] = digest(thing.get_state())
        elif isinstance(thing, np.random.Generator):
            states[f"run.{name}"] = str(thing.bit_generator.state)
        elif isinstance(thing, random.Random):
            states[f"run.{name}"] = hash(thing.getstate())
    return states


def vars_of(run: TrainingRun) -> dict[str, Any]:
    """Return the attributes of the run itself."""
    return dict(getattr(run, "__dict__", {}))
