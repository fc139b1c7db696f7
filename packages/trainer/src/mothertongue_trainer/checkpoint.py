"""Checkpoints: what a run needs to continue exactly, in the layout of Hugging Face.

    checkpoints/step-000500/
      config.json  generation_config.json  model.safetensors     what transformers and its kin load
      tokenizer.json  tokenizer_config.json
      training_state.safetensors                                 the optimizer's moments
      training_state.json                                        written last: now it is complete

A checkpoint is written in a folder beside its own and renamed, so that none is ever half there.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from mothertongue.errors import CheckpointError
from mothertongue_trainer.identity import hash_tokenizer
from mothertongue_trainer.model import Qwen3, config_from_huggingface, huggingface_config
from mothertongue_trainer.optimizer import MuonAdamW
from mothertongue_trainer.recipe import Recipe
from mothertongue_trainer.writing import writing

STATE = "training_state.json"
WEIGHTS = "model.safetensors"
MOMENTS = "training_state.safetensors"
# Fields of a recipe that may change between two starts: none decides the weights.
FREE_FIELDS = (
    "name", "audit", "evaluation", "export", "training.checkpoint_every_steps", "training.keep_checkpoints",
    "training.audit_again_after_steps", "tokenizer.minimum_characters_per_token",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class TrainingState:
    """What is true of a run after `step` steps, apart from its tensors."""

    step: int
    tokens: int
    recipe: dict[str, Any]
    recipe_sha256: str
    tokenizer_sha256: str
    certificate_verdict: str  # of the audit before the first step
    certificate_sha256: str
    despite_audit: bool  # true: the audit failed and training went on
    compute_dtype: str
    device: str  # with the number of threads, on which the order of sums depends
    versions: dict[str, str]
    commit: str | None


def save_checkpoint(run_folder: Path, model: Qwen3, optimizer: MuonAdamW, state: TrainingState) -> Path:
    """Write a checkpoint of `run_folder` and return its folder, which appears when it is complete.

    Raises:
        CheckpointError: the tokenizer of `run_folder` is no longer the one that the run began with.
    """
    folder = run_folder / "checkpoints" / f"step-{state.step:06d}"
    partial = folder.with_name(f".{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(run_folder / "tokenizer" / name, partial / name)
    if hash_tokenizer(partial) != state.tokenizer_sha256:
        raise CheckpointError(
            f"{run_folder / 'tokenizer'}: replaced since the run began; restore it and start again"
        )
    config = huggingface_config(model.config, model.vocabulary)
    _write_json(partial / "config.json", config)
    ids = {name: config[name] for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
    _write_json(partial / "generation_config.json", {**ids, "max_length": model.config.context})
    _write_tensors(partial / WEIGHTS, model.state_dict())
    _write_tensors(partial / MOMENTS, moments_of(model, optimizer))
    files = {name: _sha256(partial / name) for name in (WEIGHTS, MOMENTS)}
    _write_json(partial / STATE, {**dataclasses.asdict(state), "sha256": files})
    for path in (*partial.iterdir(), partial):
        _synchronise(path)
    shutil.rmtree(folder, ignore_errors=True)
    os.replace(partial, folder)
    return folder


def find_checkpoint(run_folder: Path) -> Path | None:
    """Return the newest complete checkpoint of `run_folder`, or None."""
    return max(_complete_checkpoints(run_folder), default=None)


def newest_checkpoint(run_folder: Path) -> Path:
    """Return the newest complete checkpoint of a run.

    Raises:
        CheckpointError: there is none.
    """
    checkpoint = find_checkpoint(run_folder)
    if checkpoint is None:
        raise CheckpointError(f"{run_folder}: no checkpoint; run `mothertongue train` with this recipe first")
    return checkpoint


def prune_checkpoints(run_folder: Path, *, keep: int) -> None:
    """Delete all but the newest `keep` complete checkpoints, and what an interrupted save left."""
    for folder in sorted(_complete_checkpoints(run_folder))[:-keep]:
        shutil.rmtree(folder)
    for partial in (run_folder / "checkpoints").glob(".step-*.partial"):
        shutil.rmtree(partial)


def _complete_checkpoints(run_folder: Path) -> list[Path]:
    return [path.parent for path in (run_folder / "checkpoints").glob(f"step-*/{STATE}")]


def read_state(folder: Path) -> TrainingState:
    """Return the training state of the checkpoint `folder`, after comparing the hashes of its tensors.

    Raises:
        CheckpointError: the folder is missing, incomplete, altered or not one of ours.
    """
    if not folder.is_dir():
        raise CheckpointError(f"{folder}: no such checkpoint; `mothertongue train RECIPE` makes one")
    try:
        values = json.loads((folder / STATE).read_text(encoding="utf-8"))
        hashes = values.pop("sha256")
        state = TrainingState(**values)
    except FileNotFoundError:
        raise CheckpointError(
            f"{folder}: no {STATE}, so it is incomplete or not ours; name another"
        ) from None
    except (ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{folder / STATE}: not a training state of this version ({error})") from None
    for name, expected in hashes.items():
        path = folder / name
        if not path.is_file() or _sha256(path) != expected:
            raise CheckpointError(f"{path}: missing or altered since it was saved; name another checkpoint")
    return state


def load_model(folder: Path, *, compute_dtype: torch.dtype = torch.float32) -> Qwen3:
    """Return the model of the checkpoint `folder`.

    Raises:
        CheckpointError: config.json or model.safetensors is missing or does not fit the other.
    """
    try:
        values = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        config, vocabulary = config_from_huggingface(values)
        model = Qwen3(config, vocabulary, compute_dtype=compute_dtype)
        model.load_state_dict(load_file(folder / WEIGHTS))
    except (OSError, ValueError, KeyError, SafetensorError, RuntimeError) as error:
        reason = str(error).splitlines()[0]
        raise CheckpointError(f"{folder}: not a checkpoint of ours: {reason}; name another") from None
    return model


def resume(
    folder: Path, recipe: Recipe, tokenizer_sha256: str, model: Qwen3, optimizer: MuonAdamW
) -> TrainingState:
    """Put `model` and `optimizer` where the checkpoint `folder` left them, and return its state.

    Raises:
        CheckpointError: the checkpoint is unusable, or recipe or tokenizer changed since it was saved.
    """
    state = read_state(folder)
    remedy = f"restore it, or delete {folder.parent} to train anew"
    for field, (then, now) in differing_fields(state.recipe, recipe.as_dict()).items():
        raise CheckpointError(f"{folder}: {field} was {then!r}, the recipe says {now!r}; {remedy}")
    if state.tokenizer_sha256 != tokenizer_sha256:
        raise CheckpointError(f"{folder}: trained with another tokenizer than the run folder's; {remedy}")
    moments = load_file(folder / MOMENTS, device=str(model.head_weight.device))
    restore(model, optimizer, weights=load_file(folder / WEIGHTS), moments=moments)
    return state


def restore(
    model: Qwen3, optimizer: MuonAdamW, *, weights: dict[str, Tensor], moments: dict[str, Tensor]
) -> None:
    """Put saved weights and moments back; a step needs nothing else, its number and rows follow from it."""
    model.load_state_dict(weights)
    parameters = dict(model.named_parameters())
    for key, tensor in moments.items():
        name, _, moment = key.rpartition("/")
        optimizer.state[parameters[name]][moment] = tensor


def differing_fields(
    then: dict[str, Any], now: dict[str, Any], place: str = ""
) -> dict[str, tuple[Any, Any]]:
    """Return {field: (then, now)} for each field that decides the weights and differs between two recipes."""
    differing: dict[str, tuple[Any, Any]] = {}
    for key in sorted(then.keys() | now.keys()):
        field = f"{place}{key}"
        old, new = then.get(key), now.get(key)
        if field in FREE_FIELDS or _plain(old) == _plain(new):
            continue
        if isinstance(old, dict) and isinstance(new, dict):
            differing |= differing_fields(old, new, f"{field}.")
        else:
            differing[field] = (_plain(old), _plain(new))
    return differing


def deciding_settings(recipe: Recipe, *, free: tuple[str, ...] = FREE_FIELDS) -> dict[str, Any]:
    """Return the settings of a recipe that decide the weights, all that are not `free`, table by table."""

    def deciding(values: dict[str, Any], place: str) -> dict[str, Any]:
        return {
            key: deciding(value, f"{place}{key}.") if isinstance(value, dict) else value
            for key, value in values.items()
            if f"{place}{key}" not in free
        }

    return deciding(recipe.as_dict(), "")


def _plain(value: Any) -> Any:
    """Return `value` as JSON gives it back: tuples become lists."""
    return json.loads(json.dumps(value))


def recipe_sha256(recipe: Recipe) -> str:
    """Return the hash of what decides the weights, defaults included: another audit is the same training."""
    return hashlib.sha256(json.dumps(deciding_settings(recipe), sort_keys=True).encode()).hexdigest()


def moments_of(model: Qwen3, optimizer: MuonAdamW) -> dict[str, Tensor]:
    """Return the optimizer's tensors as {parameter/moment: tensor}."""
    return {
        f"{name}/{moment}": tensor
        for name, parameter in model.named_parameters()
        for moment, tensor in optimizer.state.get(parameter, {}).items()
    }


def _write_tensors(path: Path, tensors: dict[str, Tensor]) -> None:
    contiguous = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    with writing(path):
        save_file(contiguous, path, metadata={"format": "pt"})


def _write_json(path: Path, values: dict[str, Any]) -> None:
    path.write_text(json.dumps(values, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _synchronise(path: Path) -> None:
    """Have the system put `path` on the disk, so that a power cut after the rename finds it whole."""
    if path.is_dir() and os.name == "nt":
        return  # Windows cannot open a folder
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
