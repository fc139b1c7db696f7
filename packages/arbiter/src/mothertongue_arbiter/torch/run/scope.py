"""The scope of a torch run: its code, its weights' names and shapes, and what it says of itself."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from mothertongue_arbiter.run import TrainingRun
from mothertongue_arbiter.scope import arbiter_sha256, code_of, sha256_of
from mothertongue_arbiter.torch.run.state import optimizers_of


def scope_of(run: TrainingRun, modules: Sequence[str] = ()) -> Mapping[str, str]:
    """Return what a certificate of `run`, which `modules` made, depends on, each with its hash.

    The values of the weights are not part of it: they change with every step of a sound training.
    """
    tensors = [
        f"{name} {tuple(parameter.shape)} {parameter.dtype}"
        for name, parameter in run.model.named_parameters()
    ]
    stated: Mapping[str, str] = getattr(run, "scope", {})
    return {
        "the arbiter": arbiter_sha256(),
        "the version of torch": sha256_of(torch.__version__),
        "names, shapes or dtypes of weights": sha256_of(*tensors),
        **{f"code of {name}": sha256 for name, sha256 in code_of([*modules, *_modules(run)]).items()},
        **{name: sha256_of(text) for name, text in stated.items()},
    }


def _modules(run: Any) -> Iterator[str]:
    """Yield the Python modules that define the run, its model, its loss, its optimizers and its step."""
    things = [*optimizers_of(run), *run.model.modules(), run]
    yield from {type(thing).__module__ for thing in things}
    for name in ("loss", "forward", "batch", "train_step"):
        module = getattr(getattr(run, name, None), "__module__", None)
        if isinstance(module, str):
            yield module
