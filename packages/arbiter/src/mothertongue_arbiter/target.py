"""What `mothertongue audit TARGET` can be given, and how it becomes something to audit."""

from __future__ import annotations

import importlib.util
import sys
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from mothertongue_arbiter.errors import ArbiterError
from mothertongue_arbiter.run import TrainingRun

GROUP = "mothertongue_arbiter.targets"  # entry points: file suffix -> function that returns a TrainingRun


def run_from_file(path: Path) -> TrainingRun:
    """Return the run that an installed package makes of `path`, by its suffix.

    Raises:
        ArbiterError: no such file, or no installed package reads it.
    """
    if not path.is_file():
        raise ArbiterError(
            f"{path}: no such file; a recipe .toml, a frame .safetensors or FILE.py:FUNCTION expected"
        )
    suffix = path.suffix.removeprefix(".")
    found = entry_points(group=GROUP, name=suffix)
    if not found and suffix == "toml":
        raise ArbiterError(f"{path}: recipes need another package: pip install mothertongue-trainer")
    if not found:
        raise ArbiterError(f"{path}: a recipe .toml, a frame .safetensors or FILE.py:FUNCTION expected")
    (entry_point,) = found
    return _checked(entry_point.load()(path), entry_point.value)


def run_from_model(path: Path, text: Path | None) -> TrainingRun:
    """Return the run of a causal language model of transformers: a folder or a config.json.

    Raises:
        ArbiterError: it is none, or torch or transformers is missing.
    """
    try:
        from mothertongue_arbiter.torch.causal_lm import causal_lm_run
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise ArbiterError(
            "auditing a model needs torch: pip install 'mothertongue-arbiter[torch]'"
        ) from None
    return causal_lm_run(path, text=text)


def run_from_function(target: str) -> TrainingRun:
    """Return what the function in `FILE.py:FUNCTION` returns.

    Raises:
        ArbiterError: no such file or function, or it returns no `TrainingRun`.
    """
    file, _, function = target.rpartition(":")
    path = Path(file)
    if not path.is_file() or path.suffix != ".py":
        raise ArbiterError(f"{target}: FILE.py:FUNCTION expected, and {file or 'the file'} is no Python file")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    sys.path.insert(0, str(path.parent))  # the user's file may import its neighbours
    try:
        spec.loader.exec_module(module)
        make = getattr(module, function, None)
        if not callable(make):
            raise ArbiterError(f"{path}: no function {function!r}")
        run = make()
    except (Exception, SystemExit) as error:  # whatever the user's file does wrong is the finding
        if isinstance(error, ArbiterError):
            raise
        raise ArbiterError(f"{target}: {type(error).__name__}: {error}") from error
    return _checked(run, target)


def _checked(run: Any, source: str) -> TrainingRun:
    if not isinstance(run, TrainingRun):
        raise ArbiterError(f"{source}: {type(run).__name__} returned, with model, loss and batch expected")
    return run
