"""Read a checkpoint in the Hugging Face layout (`Qwen3ForCausalLM`) as NumPy arrays, strictly.

Nothing is skipped and nothing is guessed: a tensor too many, too few or of another shape is an error that
names it, because a weight that is silently left out is a different model.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from mothertongue.errors import CheckpointError

WEIGHTS_FILE = "model.safetensors"

# What the device graph computes. Another value would need another graph.
SUPPORTED_SETTINGS: dict[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"],
    "hidden_act": "silu",
    "attention_bias": False,
    "rope_scaling": None,
    "use_sliding_window": False,
}


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """The sizes of a Qwen3 decoder, as its config.json states them."""

    layers: int
    width: int
    heads: int
    kv_heads: int
    head_width: int
    ffn_width: int
    vocabulary: int
    context: int  # tokens
    tied_embeddings: bool
    rope_theta: float
    rms_norm_eps: float

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shape of every tensor that model.safetensors holds, by its Hugging Face name."""
        shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (self.vocabulary, self.width)}
        for layer in range(self.layers):
            for name, shape in self._layer_shapes():
                shapes[f"model.layers.{layer}.{name}.weight"] = shape
        shapes["model.norm.weight"] = (self.width,)
        if not self.tied_embeddings:
            shapes["lm_head.weight"] = (self.vocabulary, self.width)
        return shapes

    def _layer_shapes(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        queries, keys = self.heads * self.head_width, self.kv_heads * self.head_width
        yield "input_layernorm", (self.width,)
        yield "self_attn.q_proj", (queries, self.width)
        yield "self_attn.k_proj", (keys, self.width)
        yield "self_attn.v_proj", (keys, self.width)
        yield "self_attn.q_norm", (self.head_width,)
        yield "self_attn.k_norm", (self.head_width,)
        yield "self_attn.o_proj", (self.width, queries)
        yield "post_attention_layernorm", (self.width,)
        yield "mlp.gate_proj", (self.ffn_width, self.width)
        yield "mlp.up_proj", (self.ffn_width, self.width)
        yield "mlp.down_proj", (self.width, self.ffn_width)


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """One model: its sizes and its float32 weights by Hugging Face name."""

    folder: Path
    architecture: Architecture
    weights: dict[str, NDArray[np.float32]]

    @property
    def parameters(self) -> int:
        return sum(weight.size for weight in self.weights.values())


def read_checkpoint(folder: Path) -> Checkpoint:
    """Return the checkpoint in `folder` (config.json and model.safetensors).

    Raises:
        CheckpointError: a file is missing or unreadable, the architecture is another one, or a tensor is
            missing, unknown, of another shape or type, or not finite.
    """
    architecture = read_architecture(folder / "config.json")
    path = folder / WEIGHTS_FILE
    try:
        with safe_open(path, "numpy") as file:  # which checks that the file is as its header says
            kinds = {name: file.get_slice(name).get_dtype() for name in file.keys()}  # noqa: SIM118
    except FileNotFoundError:
        raise CheckpointError(f"{path}: no such file; a checkpoint keeps its weights there") from None
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{path}: not readable ({error}); float32 safetensors expected") from None
    for name, kind in kinds.items():
        if kind != "F32":
            raise CheckpointError(f"{path}: {name} is {kind}, float32 expected")
    if problem := _first_problem(architecture.shapes(), map_tensors(path)):
        raise CheckpointError(f"{path}: {problem}")
    # Mapped anew: the first map was read from end to end.
    return Checkpoint(folder=folder, architecture=architecture, weights=map_tensors(path))


def map_tensors(path: Path) -> dict[str, NDArray[np.float32]]:
    """Return the float32 tensors of a safetensors file, mapped: memory is taken where they are read."""
    data = np.memmap(path, np.uint8, mode="c")
    shapes = {name: entry["shape"] for name, entry in _header(path)[1].items()}
    return {
        name: np.asarray(data[begin:end]).view("<f4").reshape(shapes[name])
        for name, (begin, end) in tensor_places(path).items()
    }


def tensor_places(path: Path) -> dict[str, tuple[int, int]]:
    """Return where each tensor of a safetensors file begins and ends, in bytes from the file's beginning."""
    start, header = _header(path)
    offsets = {name: entry["data_offsets"] for name, entry in header.items()}
    return {name: (start + begin, start + end) for name, (begin, end) in offsets.items()}


def _header(path: Path) -> tuple[int, dict[str, Any]]:
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        header: dict[str, Any] = json.loads(file.read(length))
    header.pop("__metadata__", None)
    return 8 + length, header


def read_architecture(path: Path) -> Architecture:
    """Return the sizes in the config.json at `path`.

    Raises:
        CheckpointError: the file is missing, not JSON, lacks a key, or asks for what the graph cannot do.
    """
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CheckpointError(f"{path}: no such file; name a checkpoint folder with a config.json") from None
    except ValueError as error:
        raise CheckpointError(f"{path}: not JSON: {error}") from None
    for key, supported in SUPPORTED_SETTINGS.items():
        if config.get(key, supported) != supported:
            raise CheckpointError(f"{path}: {key} is {config[key]!r}; export knows {supported!r} only")
    rope_type = (config.get("rope_parameters") or {}).get(
        "rope_type", "default"
    )  # as transformers 5 writes it
    if rope_type != "default":
        raise CheckpointError(f"{path}: rope_type is {rope_type!r}; export knows 'default' only")
    try:
        return Architecture(
            layers=int(config["num_hidden_layers"]),
            width=int(config["hidden_size"]),
            heads=int(config["num_attention_heads"]),
            kv_heads=int(config["num_key_value_heads"]),
            head_width=int(config["head_dim"]),
            ffn_width=int(config["intermediate_size"]),
            vocabulary=int(config["vocab_size"]),
            context=int(config["max_position_embeddings"]),
            tied_embeddings=bool(config["tie_word_embeddings"]),
            rope_theta=float(config["rope_theta"]),
            rms_norm_eps=float(config["rms_norm_eps"]),
        )
    except KeyError as error:
        raise CheckpointError(f"{path}: the key {error} is missing; every size must be stated") from None


def _first_problem(shapes: dict[str, tuple[int, ...]], weights: dict[str, NDArray[Any]]) -> str | None:
    """Return what is wrong with `weights`, in one sentence, or None."""
    if missing := [name for name in shapes if name not in weights]:
        return f"{missing[0]} is missing ({len(missing)} of {len(shapes)} tensors are)"
    if unknown := sorted(set(weights) - set(shapes)):
        return f"{unknown[0]} is unknown to this architecture ({len(unknown)} tensors are)"
    for name, shape in shapes.items():
        weight = weights[name]
        if weight.shape != shape:
            return f"{name} has shape {weight.shape}, config.json says {shape}"
        if not np.isfinite(weight).all():
            return f"{name} holds a value that is not finite; train again from the last good checkpoint"
    return None
