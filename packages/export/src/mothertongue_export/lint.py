"""What can be said of a device graph without running it. A finding is one sentence that names its place."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper

from mothertongue_export.checkpoint import Checkpoint
from mothertongue_export.graph import GRAPH_FILE, INT8_ACTIVATIONS
from mothertongue_export.weights_file import PAGE_BYTES

# Inputs that stay float32, by (operator, input): scales, norms and rotary caches. Anything else float is a
# weight that was not quantized.
FLOAT_INPUTS = {
    ("MatMulNBits", 2),
    ("GatherBlockQuantized", 2),
    ("SimplifiedLayerNormalization", 1),
    ("SkipSimplifiedLayerNormalization", 2),
    ("GroupQueryAttention", 7),
    ("GroupQueryAttention", 8),
}
# Rounding to nearest leaves half a step, and the division in float32 a little more.
MAXIMUM_STEPS = 0.501


class DeviceGraph:
    """A device graph on disk: its nodes, and its tensors mapped from the data file."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.proto = onnx.load(folder / GRAPH_FILE, load_external_data=False).graph
        self.initializers = {tensor.name: tensor for tensor in self.proto.initializer}

    def nodes(self, operator: str) -> list[onnx.NodeProto]:
        return [node for node in self.proto.node if node.op_type == operator]

    def place(self, name: str) -> tuple[str, int, int]:
        """Return file name, offset and length in bytes of an external tensor."""
        entries = {entry.key: entry.value for entry in self.initializers[name].external_data}
        return entries["location"], int(entries["offset"]), int(entries["length"])

    def array(self, name: str) -> NDArray[Any]:
        """Return the values of an external tensor, mapped and not read."""
        tensor, (file, offset, _) = self.initializers[name], self.place(name)
        kind = helper.tensor_dtype_to_np_dtype(tensor.data_type)
        return np.memmap(self.folder / file, dtype=kind, mode="r", offset=offset, shape=tuple(tensor.dims))


def lint(folder: Path, *, tied: bool) -> list[str]:
    """Return what is wrong with the device graph in `folder`.

    `tied`: embedding and head are one table, which must be stored once.
    """
    graph = DeviceGraph(folder)
    return [
        *_accuracy_findings(graph),
        *_float_findings(graph),
        *_placement_findings(graph),
        *(_table_findings(graph) if tied else ()),
    ]


def _accuracy_findings(graph: DeviceGraph) -> Iterator[str]:
    for node in graph.nodes("MatMulNBits"):
        attributes = {attribute.name: attribute.i for attribute in node.attribute}
        level = attributes.get("accuracy_level", 0)
        if level != INT8_ACTIVATIONS:
            yield f"{node.name}: accuracy_level is {level}, {INT8_ACTIVATIONS} expected"


def _float_findings(graph: DeviceGraph) -> Iterator[str]:
    uses = defaultdict(set)
    for node in graph.proto.node:
        for index, name in enumerate(node.input):
            uses[name].add((node.op_type, index))
    for tensor in graph.proto.initializer:
        is_float = tensor.data_type in (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16)
        if is_float and not uses[tensor.name] <= FLOAT_INPUTS:
            yield f"{tensor.name}: a float weight of shape {tuple(tensor.dims)}, 8 bits expected"


def _placement_findings(graph: DeviceGraph) -> Iterator[str]:
    for tensor in graph.proto.initializer:
        if tensor.data_location != TensorProto.EXTERNAL:
            continue
        file, offset, length = graph.place(tensor.name)
        values = int(np.prod(tensor.dims)) * helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize
        path = graph.folder / file
        if Path(file).name != file or not path.is_file() or offset + length > path.stat().st_size:
            yield f"{tensor.name}: its bytes are not in {path}"
        elif offset % PAGE_BYTES or length != values:
            yield f"{tensor.name}: {length} bytes at {offset}; {values} at the start of a page expected"


def _table_findings(graph: DeviceGraph) -> Iterator[str]:
    (embedding,), head = graph.nodes("GatherBlockQuantized"), graph.nodes("MatMulNBits")[-1]
    if graph.place(embedding.input[0]) != graph.place(head.input[1]) or embedding.input[2] != head.input[2]:
        yield f"{embedding.name} and {head.name}: two tables are stored, one that both share expected"


def quantization_table(folder: Path) -> list[dict[str, Any]]:
    """Return how each kind of matrix in `folder` is stored: one row for all layers."""
    graph = DeviceGraph(folder)
    rows: dict[str, dict[str, Any]] = {}
    for node in graph.nodes("MatMulNBits"):
        kind = ".".join(node.name.split(".")[-2:])  # without the layer
        settings = {a.name: a.i for a in node.attribute if a.name in ("bits", "block_size", "accuracy_level")}
        row = rows.setdefault(kind, {"weights": kind, **settings, "matrices": 0, "bytes": 0})
        row["matrices"] += 1
        row["bytes"] += sum(graph.place(name)[2] for name in node.input[1:])
    return list(rows.values())


def lint_weights(folder: Path, checkpoint: Checkpoint) -> list[str]:
    """Return where the device graph in `folder` departs from the weights of `checkpoint`.

    Every quantized value must lie within half a step of its weight, and every norm must be equal.
    """
    graph = DeviceGraph(folder)
    return [*_matrix_findings(graph, checkpoint), *_norm_findings(graph, checkpoint)]


def _matrix_findings(graph: DeviceGraph, checkpoint: Checkpoint) -> Iterator[str]:
    for node in (*graph.nodes("MatMulNBits"), *graph.nodes("GatherBlockQuantized")):
        data = 1 if node.op_type == "MatMulNBits" else 0
        scales = graph.array(node.input[2])
        blocks = graph.array(node.input[data]).reshape(*scales.shape, -1)
        weight = np.concatenate([checkpoint.weights[name] for name in _sources(node.name, checkpoint)])
        padding = blocks.shape[1] * blocks.shape[2] - weight.shape[1]
        if blocks.shape[0] != weight.shape[0] or padding < 0:
            yield f"{node.name}: {blocks.shape} values in blocks do not hold a weight of {weight.shape}"
            continue
        exact = np.pad(weight, ((0, 0), (0, padding))).reshape(blocks.shape)
        steps = scales[:, :, None].astype(np.float64)
        error = np.abs((blocks.astype(np.float64) - 128) * steps - exact)
        excess = error - MAXIMUM_STEPS * steps
        row, block, _ = np.unravel_index(excess.argmax(), excess.shape)
        if not excess.max() <= 0:  # NaN included
            yield (
                f"{node.name}: row {row}, block {block} is off by up to {error[row, block].max():.3g}, "
                f"half a step of {steps[row, block, 0]:.3g} expected"
            )


def _sources(node: str, checkpoint: Checkpoint) -> list[str]:
    """Return the tensors of the checkpoint that the matrix of `node` stacks, in order."""
    if node == "embedded" or (node == "logits" and checkpoint.architecture.tied_embeddings):
        return ["model.embed_tokens.weight"]
    if node == "logits":
        return ["lm_head.weight"]
    module, _, packed = node.rpartition(".")
    stacked = {"qkv": ("q_proj", "k_proj", "v_proj"), "gate_up": ("gate_proj", "up_proj")}
    parts = stacked.get(packed, (packed,))
    return [f"{module}.{part}.weight" for part in parts]


def _norm_findings(graph: DeviceGraph, checkpoint: Checkpoint) -> Iterator[str]:
    for name, weight in checkpoint.weights.items():
        if weight.ndim == 1 and not np.array_equal(graph.array(name), weight):
            yield f"{name}: is not the norm weight of the checkpoint"
