"""Whether a graph is one that `docs/bundle-format.md` allows, judged before onnxruntime sees it.

A bundle's hashes say that it arrived whole, not that it means well. So the inputs and outputs must be those
of the format with the sizes of config.json, and every stored tensor must lie within the bundle's own files
and be as long as its dimensions say. What nests (sub-graphs, functions) is refused where the graph is read.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from mothertongue.bundle import CONFIG_FILE, GRAPH_FILE, Manifest
from mothertongue.errors import BundleError
from mothertongue.graph import KEEP_INPUT, LAST_OUTPUT, Graph, Tensor, Value, read_graph

FLOAT, INT64 = 1, 7  # TensorProto.DataType
BITS = {
    **dict.fromkeys((21, 22), 4),
    **dict.fromkeys((2, 3, 9), 8),
    **dict.fromkeys((4, 5, 10, 16), 16),
    **dict.fromkeys((1, 6, 12), 32),
    **dict.fromkeys((7, 11, 13), 64),
}  # of one element, by type
MAXIMUM_CONTEXT = 1 << 20
MAXIMUM_CACHE_BYTES = 1 << 36  # of one full context: far above any model that this project trains

Expected: TypeAlias = tuple[int, tuple[int | None, ...]]  # type and shape; None is any size


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """The sizes in config.json that a graph must agree with."""

    layers: int
    kv_heads: int
    head_width: int
    vocabulary: int
    context: int


def check_graph(folder: Path, manifest: Manifest) -> None:
    """Raise BundleError unless the graph in `folder` is one that `docs/bundle-format.md` allows."""
    path = folder / GRAPH_FILE
    graph, sizes = read_graph(path), read_sizes(folder)
    for problem in problems(graph, sizes, manifest):
        raise BundleError(f"{path}: {problem}; do not use this bundle, export it again")


def read_sizes(folder: Path) -> Sizes:
    """Return the sizes in config.json; raise BundleError if one is missing or out of reason."""
    path = folder / CONFIG_FILE
    keys = {
        "layers": "num_hidden_layers",
        "kv_heads": "num_key_value_heads",
        "head_width": "head_dim",
        "vocabulary": "vocab_size",
        "context": "max_position_embeddings",
    }
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
        found = {name: config[key] for name, key in keys.items()}
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise BundleError(f"{path}: {error!r}; export the bundle again") from None
    for name, value in found.items():
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise BundleError(f"{path}: {keys[name]} is {value!r}, a positive integer was expected")
    sizes = Sizes(**found)
    cache_bytes = 2 * 4 * sizes.layers * sizes.kv_heads * sizes.head_width * sizes.context
    if sizes.context > MAXIMUM_CONTEXT or cache_bytes > MAXIMUM_CACHE_BYTES:
        raise BundleError(
            f"{path}: a context of {sizes.context} tokens needs a cache of {cache_bytes} bytes; at most "
            f"{MAXIMUM_CONTEXT} tokens and {MAXIMUM_CACHE_BYTES} bytes are allowed"
        )
    return sizes


def problems(graph: Graph, sizes: Sizes, manifest: Manifest) -> Iterator[str]:
    """Yield what is wrong with `graph`, each in a few words."""
    caches = [f"{layer}.{kind}" for layer in range(sizes.layers) for kind in ("key", "value")]
    cache: Expected = (FLOAT, (None, sizes.kv_heads, None, sizes.head_width))
    inputs = {f"past_key_values.{name}": cache for name in caches}
    outputs = {f"present.{name}": cache for name in caches}
    inputs["input_ids"] = inputs["attention_mask"] = (INT64, (None, None))
    if KEEP_INPUT in graph.tensors:  # it has a value of its own, so that a caller may leave it out
        inputs[KEEP_INPUT] = (INT64, ())
    outputs["logits"] = (FLOAT, (None, None, sizes.vocabulary))
    if LAST_OUTPUT in graph.outputs:
        outputs[LAST_OUTPUT] = (FLOAT, (None, 1, sizes.vocabulary))
    yield from differences("input", graph.inputs, inputs)
    yield from differences("output", graph.outputs, outputs)
    for name, tensor in graph.tensors.items():
        yield from tensor_problems(name, tensor, manifest)


def differences(kind: str, found: Mapping[str, Value], expected: Mapping[str, Expected]) -> Iterator[str]:
    """Yield each input or output that is missing, unknown, or of another type or shape."""
    for name in sorted(found.keys() - expected.keys()):
        yield f"the {kind} {name!r} is not in the format"
    for name, (type_, shape) in expected.items():
        if name not in found:
            yield f"the {kind} {name!r} is missing"
            continue
        value = found[name]
        fits = len(value.shape) == len(shape) and all(
            wanted is None or size == wanted for size, wanted in zip(value.shape, shape, strict=True)
        )
        if value.type != type_ or not fits:
            yield (
                f"the {kind} {name!r} has type {value.type} and shape {list(value.shape)}, "
                f"config.json asks for type {type_} and {[size or 'any' for size in shape]}"
            )


def tensor_problems(name: str, tensor: Tensor, manifest: Manifest) -> Iterator[str]:
    """Yield what is wrong with one stored tensor."""
    if tensor.type not in BITS or min(tensor.shape, default=1) < 0:
        yield f"the tensor {name!r} has type {tensor.type} and shape {list(tensor.shape)}"
        return
    expected = (math.prod(tensor.shape) * BITS[tensor.type] + 7) // 8
    if tensor.bytes != expected:
        yield f"the tensor {name!r} has {tensor.bytes} bytes, its shape {list(tensor.shape)} needs {expected}"
    if not tensor.location:
        return
    if tensor.location not in manifest.files:
        yield f"the tensor {name!r} lies in {tensor.location!r}, which is no file of the bundle"
    elif not 0 <= tensor.offset <= manifest.files[tensor.location].bytes - expected:
        yield f"the tensor {name!r} lies beyond the end of {tensor.location}"
