"""Find the first place where a device graph computes another thing than the checkpoint says.

The graph runs on its own files in pieces, with its cache, and every value along the way is kept. Each one is
then computed again in NumPy from the values before it and from the checkpoint's weights: so an error is that
of the place itself, and not what came down to it. The first place in the order of computation is the fault.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from numpy.typing import NDArray
from onnx import helper

from mothertongue_export.checkpoint import Architecture, Checkpoint
from mothertongue_export.graph import GRAPH_FILE, KEEP

Values = dict[str, NDArray[Any]]

# Relative error of one place, by the bits of its weights. Measured on trained and random models: 0.015 and
# 0.15 at most; a matrix of other weights is off by 1, a rotation by the wrong angle by 0.3 and more.
LIMITS = {32: 1e-3, 8: 0.05, 4: 0.3}
QUIET_SHARE = 0.1  # a position with less than this share of the usual size is measured against that


@dataclass(frozen=True, kw_only=True)
class Place:
    """A value of the graph that is not what it should be."""

    node: str
    error: float  # relative, at its worst position
    limit: float
    position: int  # the first that is off
    boundaries: Sequence[int]  # where a new piece of the text began

    def __str__(self) -> str:
        after = [boundary for boundary in self.boundaries if boundary <= self.position]
        where = f", from position {self.position} on" if self.position else ""
        piece = f" (a piece began at {after[-1]})" if after else ""
        return f"{self.node}: first bad place; off by {self.error:.2g}, {self.limit:g} allowed{where}{piece}"


def first_bad_place(folder: Path, checkpoint: Checkpoint, ids: Sequence[int], *, bits: int) -> Place | None:
    """Return the first value of the graph in `folder` that is off on `ids` (T,); None if none is.

    `bits` are those that the matrices of the layers should have.
    """
    boundaries = sorted({len(ids) // 2, len(ids) // 2 + 1} - {0, len(ids)})
    values = run_in_pieces(folder, checkpoint.architecture, ids, boundaries)
    for node, kind, expected in expected_values(checkpoint, values, ids):
        limit = LIMITS[{"exact": 32, "head": 8 if bits < 32 else 32}.get(kind, bits)]
        errors = relative_errors(values[node], expected)
        if not (errors <= limit).all():  # NaN included
            position = int(np.argmin(errors <= limit))
            worst = float(np.nan_to_num(errors, nan=np.inf).max())
            return Place(node=node, error=worst, limit=limit, position=position, boundaries=boundaries)
    return None


def relative_errors(found: NDArray[Any], expected: NDArray[Any]) -> NDArray[np.float64]:
    """Return the error (T,) of each position of `found` (T, width) as a share of its size."""
    sizes = np.linalg.norm(expected.astype(np.float64), axis=1)
    usual = QUIET_SHARE * float(np.sqrt(np.square(sizes).mean())) or 1.0
    errors: NDArray[np.float64] = np.linalg.norm(found.astype(np.float64) - expected, axis=1)
    errors /= np.maximum(sizes, usual)
    return errors


def run_in_pieces(folder: Path, sizes: Architecture, ids: Sequence[int], boundaries: Sequence[int]) -> Values:
    """Return every value (T, width) that `expected_values` looks at, run in pieces with one shared cache."""
    model = onnx.load(folder / GRAPH_FILE, load_external_data=False)
    made = {name for node in model.graph.node for name in node.output}
    watched = [name for name in value_names(sizes) if name in made]
    for name in watched:
        if name != "logits":
            model.graph.output.append(helper.make_empty_tensor_value_info(name))
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.add_session_config_entry("session.model_external_initializers_file_folder_path", str(folder))
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    length = min(sizes.context, len(ids) + 8)
    cache = {
        value.name: np.zeros((1, sizes.kv_heads, length, sizes.head_width), np.float32)
        for value in session.get_inputs()
        if value.name.startswith("past_key_values.")
    }
    presents = [name.replace("past_key_values", "present") for name in cache]
    pieces: list[list[NDArray[Any]]] = []
    edges = [0, *boundaries, len(ids)]
    for begin, end in itertools.pairwise(edges):
        inputs: Values = {
            "input_ids": np.array([ids[begin:end]], np.int64),
            "attention_mask": np.ones((1, end), np.int64),
        }
        if any(value.name == KEEP for value in session.get_overridable_initializers()):
            inputs[KEEP] = np.zeros((), np.int64)
        found = session.run([*watched, *presents], inputs | cache)
        cache = dict(zip(cache, found[len(watched) :], strict=True))
        pieces.append([part.reshape(part.shape[1], -1) for part in found[: len(watched)]])
    joined = [np.concatenate(parts) for parts in zip(*pieces, strict=True)]
    return dict(zip(watched, joined, strict=True))


def value_names(sizes: Architecture) -> Iterator[str]:
    """Yield the values to look at, in the order of computation."""
    yield from ("embedded_width", "embedded", "model.layers.0.input_layernorm.normed")
    for layer in range(sizes.layers):
        prefix = f"model.layers.{layer}"
        last = layer == sizes.layers - 1
        following = "model.norm" if last else f"model.layers.{layer + 1}.input_layernorm"
        yield from (f"{prefix}.self_attn.{part}" for part in ("qkv", "q_norm.joined", "k_norm.joined"))
        yield from (f"{prefix}.self_attn.{part}" for part in ("attended", "o_proj"))
        yield from (f"{prefix}.post_attention_layernorm.{part}" for part in ("residual", "normed"))
        yield from (f"{prefix}.mlp.{part}" for part in ("gate_up", "product", "down_proj"))
        yield from (f"{following}.{part}" for part in ("residual", "normed"))
    yield "logits"


def expected_values(
    checkpoint: Checkpoint, values: Values, ids: Sequence[int]
) -> Iterator[tuple[str, str, NDArray[Any]]]:
    """Yield name, kind ("exact", "matrix" or "head") and expected value of each place, in order."""
    sizes, weights = checkpoint.architecture, checkpoint.weights

    def norm(x: NDArray[Any], name: str) -> NDArray[Any]:
        square = np.square(x, dtype=np.float64).mean(axis=-1, keepdims=True)
        normed: NDArray[Any] = x / np.sqrt(square + sizes.rms_norm_eps) * weights[f"{name}.weight"]
        return normed

    embedded = "embedded_width" if "embedded_width" in values else "embedded"
    yield embedded, "head", weights["model.embed_tokens.weight"][list(ids)]
    residual = values[embedded]
    first = "model.layers.0.input_layernorm"
    yield f"{first}.normed", "exact", norm(residual, first)
    hidden = values[f"{first}.normed"]
    for layer in range(sizes.layers):
        prefix = f"model.layers.{layer}"
        attention, after, mlp = f"{prefix}.self_attn", f"{prefix}.post_attention_layernorm", f"{prefix}.mlp"
        stacked = np.concatenate([hidden @ weights[f"{attention}.{part}_proj.weight"].T for part in "qkv"], 1)
        yield f"{attention}.qkv", "matrix", stacked
        query, key, value = split_heads(values[f"{attention}.qkv"], sizes)
        yield f"{attention}.q_norm.joined", "exact", flat(norm(query, f"{attention}.q_norm"))
        yield f"{attention}.k_norm.joined", "exact", flat(norm(key, f"{attention}.k_norm"))
        query = values[f"{attention}.q_norm.joined"].reshape(query.shape)
        key = values[f"{attention}.k_norm.joined"].reshape(key.shape)
        yield f"{attention}.attended", "exact", attend(query, key, value, sizes)
        attended = values[f"{attention}.attended"]
        yield f"{attention}.o_proj", "matrix", attended @ weights[f"{attention}.o_proj.weight"].T
        yield f"{after}.residual", "exact", residual + values[f"{attention}.o_proj"]
        residual = values[f"{after}.residual"]
        yield f"{after}.normed", "exact", norm(residual, after)
        hidden = values[f"{after}.normed"]
        gates = [hidden @ weights[f"{mlp}.{part}_proj.weight"].T for part in ("gate", "up")]
        yield f"{mlp}.gate_up", "matrix", np.concatenate(gates, 1)
        gate, up = np.split(values[f"{mlp}.gate_up"].astype(np.float64), 2, axis=1)
        yield f"{mlp}.product", "exact", gate / (1 + np.exp(-gate)) * up
        yield f"{mlp}.down_proj", "matrix", values[f"{mlp}.product"] @ weights[f"{mlp}.down_proj.weight"].T
        last = layer == sizes.layers - 1
        following = "model.norm" if last else f"model.layers.{layer + 1}.input_layernorm"
        yield f"{following}.residual", "exact", residual + values[f"{mlp}.down_proj"]
        residual = values[f"{following}.residual"]
        yield f"{following}.normed", "exact", norm(residual, following)
        hidden = values[f"{following}.normed"]
    head = "model.embed_tokens.weight" if sizes.tied_embeddings else "lm_head.weight"
    yield "logits", "head", hidden @ weights[head].T


def split_heads(packed: NDArray[Any], sizes: Architecture) -> list[NDArray[Any]]:
    """Return query (T, heads, head_width), key and value (T, kv_heads, head_width) of `packed` (T, all)."""
    queries, keys = sizes.heads * sizes.head_width, sizes.kv_heads * sizes.head_width
    parts = np.split(packed, [queries, queries + keys], axis=1)
    return [part.reshape(len(part), -1, sizes.head_width) for part in parts]


def flat(heads: NDArray[Any]) -> NDArray[Any]:
    """Return `heads` (T, heads, head_width) side by side: (T, heads * head_width)."""
    return heads.reshape(len(heads), -1)


def attend(
    query: NDArray[Any], key: NDArray[Any], value: NDArray[Any], sizes: Architecture
) -> NDArray[np.float64]:
    """Return causal attention (T, heads * head_width) in float64, half-split rotary positions included."""
    length, half = len(query), sizes.head_width // 2
    frequencies = sizes.rope_theta ** (-np.arange(half) / half)
    angles = np.outer(np.arange(length), frequencies)[:, None]

    def rotate(x: NDArray[Any]) -> NDArray[np.float64]:
        one, two = x[..., :half].astype(np.float64), x[..., half:].astype(np.float64)
        cos, sin = np.cos(angles), np.sin(angles)
        return np.concatenate([one * cos - two * sin, two * cos + one * sin], axis=-1)

    shared = sizes.heads // sizes.kv_heads
    keys, values_ = np.repeat(rotate(key), shared, axis=1), np.repeat(value, shared, axis=1)
    scores = np.einsum("qhd,khd->hqk", rotate(query), keys) / np.sqrt(sizes.head_width)
    scores = np.where(np.tri(length, dtype=bool), scores, -np.inf)
    shares = np.exp(scores - scores.max(axis=-1, keepdims=True))
    shares /= shares.sum(axis=-1, keepdims=True)
    return flat(np.einsum("hqk,khd->qhd", shares, values_))
