"""A fresh run like the one under audit, by its `rebuild`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from mothertongue_arbiter.run import TrainingRun
from mothertongue_arbiter.torch.run.backward import fix_random_numbers


def fresh_run(run: TrainingRun, *, seed: int) -> TrainingRun | None:
    """Return a new run before its first step; None when `rebuild` is missing, or makes a bare module.

    The random numbers are fixed before, so that a program that does not seed its own gets the same ones.
    """
    made = rebuilt(run, None, seed=seed)
    return made if isinstance(made, TrainingRun) and made.model is not run.model else None


def rebuilt(run: TrainingRun, dtype: torch.dtype | None, *, seed: int) -> Any:
    """Return what `rebuild(dtype)` makes, a run or a module; None when the run cannot be rebuilt."""
    rebuild = getattr(run, "rebuild", None)
    if rebuild is None:
        return None
    fix_random_numbers(seed)
    if dtype is not None:
        return rebuild(dtype)
    try:
        return rebuild(None)
    except TypeError:  # it takes no argument, or no None
        fix_random_numbers(seed)
    try:
        return rebuild()
    except TypeError:
        fix_random_numbers(seed)
        return rebuild(next(run.model.parameters()).dtype)


def replicas_of(run: TrainingRun) -> list[nn.Module]:
    """Return the models of all ranks, `model` alone when the run has no `replicas`."""
    replicas = getattr(run, "replicas", None)
    replicas = replicas() if callable(replicas) else replicas
    if isinstance(replicas, dict):
        replicas = list(replicas.values())
    if not isinstance(replicas, Sequence) or not replicas:
        return [run.model]
    models = [one if isinstance(one, nn.Module) else getattr(one, "model", None) for one in replicas]
    return [model for model in models if isinstance(model, nn.Module)] or [run.model]
