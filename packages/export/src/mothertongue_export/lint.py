"""What can be said of a device graph without running it. A finding is one sentence that names its place."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from numpy.typing import NDArray
from onnx import TensorProto, helper

from mothertongue.bundle import PARITY_FILE
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
CPU_PROVIDER = "CPUExecutionProvider"


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


def lint(
    folder: Path, *, tied: bool, weights: str = "int8", declared: Mapping[str, int] | None = None
) -> list[str]:
    """Return what is wrong with the device graph in `folder`.

    `tied`: embedding and head are one table, which must be stored once. `weights` and `declared` (bits by the
    name of a node) say how the matrices are meant to be stored.
    """
    graph = DeviceGraph(folder)
    return [
        *_accuracy_findings(graph),
        *_bits_findings(graph, weights, declared or {}),
        *_float_findings(graph),
        *_placement_findings(graph),
        *(_table_findings(graph) if tied else ()),
        *provider_findings(folder),
    ]


def declared_in(folder: Path) -> dict[str, int]:
    """Return the bits of each matrix as parity.json declares them; none where it does not."""
    try:
        rows = json.loads((folder / PARITY_FILE).read_text(encoding="utf-8")).get("storage", [])
        return {str(row["node"]): int(row["bits"]) for row in rows}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}


def _accuracy_findings(graph: DeviceGraph) -> Iterator[str]:
    for node in graph.nodes("MatMulNBits"):
        attributes = {attribute.name: attribute.i for attribute in node.attribute}
        level = attributes.get("accuracy_level", 0)
        if level != INT8_ACTIVATIONS:
            yield f"{node.name}: accuracy_level is {level}, {INT8_ACTIVATIONS} expected"


def _bits_findings(graph: DeviceGraph, weights: str, declared: Mapping[str, int]) -> Iterator[str]:
    """Yield each matrix of other bits than declared; undeclared, those of `weights`, 8 in table and head."""
    usual = {"int8": 8, "int4": 4, "fp32": 32}[weights]
    for node in graph.proto.node:
        found = matrix_bits(node)
        if found is None:
            continue
        is_table = node.name in ("logits", "embedded")
        expected = declared.get(node.name, max(usual, 8) if is_table else usual)
        if found != expected:
            yield f"{node.name}: {found} bits, {expected} expected"


def matrix_bits(node: onnx.NodeProto) -> int | None:
    """Return the bits of the matrix of a node, None if it has none."""
    if node.op_type in ("MatMulNBits", "GatherBlockQuantized"):
        return int(next(attribute.i for attribute in node.attribute if attribute.name == "bits"))
    is_float = node.op_type == "FusedMatMul" or (node.op_type == "Gather" and node.name == "embedded")
    return 32 if is_float else None


def _float_findings(graph: DeviceGraph) -> Iterator[str]:
    uses = defaultdict(set)
    for node in graph.proto.node:
        matrix = matrix_bits(node) == 32  # judged by its bits
        for index, name in enumerate(node.input):
            uses[name].add(("matrix" if matrix else node.op_type, index))
    allowed = FLOAT_INPUTS | {("matrix", 0), ("matrix", 1)}
    for tensor in graph.proto.initializer:
        is_float = tensor.data_type in (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16)
        if is_float and not uses[tensor.name] <= allowed:
            yield f"{tensor.name}: a float weight of shape {tuple(tensor.dims)}, 8 bits expected"


def provider_findings(folder: Path) -> Iterator[str]:
    """Yield each node that the CPU provider of onnxruntime does not run itself."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    options.add_session_config_entry("session.disable_prepacking", "1")  # nothing will be run
    try:
        session = onnxruntime.InferenceSession(
            str(folder / GRAPH_FILE), options, providers=[CPU_PROVIDER], enable_fallback=0
        )
    except Exception as error:  # onnxruntime's own classes share no other base
        yield f"{GRAPH_FILE}: the CPU provider cannot load it: {' '.join(str(error).split())[:300]}"
        return
    # Older than 1.24 does not say; without a kernel the session would not have been made.
    for part in getattr(session, "get_provider_graph_assignment_info", list)():
        if part.ep_name != CPU_PROVIDER:
            names = ", ".join(node.name for node in part.get_nodes())
            yield f"{names}: run by {part.ep_name}, {CPU_PROVIDER} expected"


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
    """Yield a finding unless embedding and head name the same bytes."""
    by_name = {node.name: node for node in graph.proto.node}
    if "embedded" not in by_name or "logits" not in by_name:
        yield "the graph has no table called 'embedded' and head called 'logits'"
        return
    embedding, head = by_name["embedded"], by_name["logits"]
    if (
        graph.place(embedding.input[0]) != graph.place(head.input[1])
        or embedding.input[2:3] != head.input[2:3]
    ):
        if matrix_bits(head) == matrix_bits(embedding) == 32 and embedding.input[0] == head.input[1]:
            return
        yield f"{embedding.name} and {head.name}: two tables are stored, one that both share expected"


def quantization_table(folder: Path) -> list[dict[str, Any]]:
    """Return how the matrices in `folder` are stored: one row for each kind and storage, over all layers."""
    graph = DeviceGraph(folder)
    rows: dict[tuple[str, ...], dict[str, Any]] = {}
    for node in graph.proto.node:
        bits = matrix_bits(node)
        if bits is None or node.op_type in ("GatherBlockQuantized", "Gather"):
            continue
        kind = ".".join(node.name.split(".")[-2:])  # without the layer
        settings = {a.name: a.i for a in node.attribute if a.name in ("block_size", "accuracy_level")}
        key = (kind, str(bits), str(settings))
        row = rows.setdefault(key, {"weights": kind, "bits": bits, **settings, "matrices": 0, "bytes": 0})
        row["matrices"] += 1
        row["bytes"] += sum(graph.place(name)[2] for name in node.input[1:])
    return list(rows.values())
