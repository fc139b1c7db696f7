"""Where the bytes of a device graph depart from the weights of its checkpoint. Nothing is run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
from numpy.typing import NDArray

from mothertongue_export.checkpoint import Checkpoint
from mothertongue_export.compensation import FARTHEST_STEPS
from mothertongue_export.lint import DeviceGraph
from mothertongue_export.quantization import LARGEST_STEPS, SHARES, ZERO_POINTS, unpack

# By bits. Rounding to nearest leaves half a step, and the division in float32 a little more.
MAXIMUM_STEPS = {8: 0.501, 4: FARTHEST_STEPS + 0.001}
CHUNK_VALUES = 1 << 22  # looked at once


def lint_weights(folder: Path, checkpoint: Checkpoint) -> list[str]:
    """Return where the device graph in `folder` departs from the weights of `checkpoint`.

    Every value of 8 bits must lie within half a step of its weight, and one of 4 bits as near as compensation
    leaves it, or be the largest step of its block for a weight that a searched scale cuts off. Float matrices
    and norms must be equal.
    """
    graph = DeviceGraph(folder)
    quantized = (*graph.nodes("MatMulNBits"), *graph.nodes("GatherBlockQuantized"))
    return [
        *(finding for node in quantized for finding in _matrix_findings(graph, node, checkpoint)),
        *_float_findings(graph, checkpoint),
        *_norm_findings(graph, checkpoint),
    ]


def _matrix_findings(graph: DeviceGraph, node: onnx.NodeProto, checkpoint: Checkpoint) -> Iterator[str]:
    data = 1 if node.op_type == "MatMulNBits" else 0
    bits = next(attribute.i for attribute in node.attribute if attribute.name == "bits")
    scales, steps = graph.array(node.input[2]), graph.array(node.input[data])
    weight = stacked_weight(node.name, checkpoint)
    values = steps.size * 8 // bits
    padding = values // len(steps) - weight.shape[1]
    if steps.shape[0] != weight.shape[0] or padding < 0:
        yield f"{node.name}: {values} values in blocks do not hold a weight of {weight.shape}"
        return
    chunk = max(1, CHUNK_VALUES // weight.shape[1])
    for begin in range(0, len(weight), chunk):
        part = slice(begin, begin + chunk)
        stored = unpack(np.asarray(steps[part]), bits).reshape(*scales[part].shape, -1)
        exact = np.pad(weight[part], ((0, 0), (0, padding))).reshape(stored.shape)
        signed = stored.astype(np.float32) - ZERO_POINTS[bits]
        sizes = np.asarray(scales[part])[:, :, None]
        error = np.abs(signed * sizes - exact)
        excess = error - _allowed(signed, sizes, exact, bits)
        if not excess.max() <= 0:  # NaN included
            row, block, _ = np.unravel_index(excess.argmax(), excess.shape)
            yield (
                f"{node.name}: row {begin + row}, block {block} is off by up to "
                f"{error[row, block].max():.3g}, at most {MAXIMUM_STEPS[bits]:.1f} steps of "
                f"{sizes[row, block, 0]:.3g} expected"
            )
            return


def _allowed(
    signed: NDArray[np.float32], sizes: NDArray[np.float32], exact: NDArray[np.float32], bits: int
) -> NDArray[np.float32]:
    """Return how far each stored value may be from its weight."""
    largest = LARGEST_STEPS[bits] * sizes
    cut = (np.abs(signed) == LARGEST_STEPS[bits]) & (exact * signed > 0)
    # A scale of the smallest share stands for weights that are so much larger than its largest step.
    beyond: NDArray[np.float32] = np.where(cut, largest / SHARES[bits][-1] - largest, 0)
    return MAXIMUM_STEPS[bits] * sizes + beyond


def stacked_weight(node: str, checkpoint: Checkpoint) -> NDArray[np.float32]:
    """Return the tensors of the checkpoint (N, K) that the matrix of `node` stacks, in order."""
    sources = _sources(node, checkpoint)
    tensors = [checkpoint.weights[name] for name in sources]
    return tensors[0] if len(tensors) == 1 else np.concatenate(tensors)


def _sources(node: str, checkpoint: Checkpoint) -> list[str]:
    if node == "embedded" or (node == "logits" and checkpoint.architecture.tied_embeddings):
        return ["model.embed_tokens.weight"]
    if node == "logits":
        return ["lm_head.weight"]
    module, _, packed = node.rpartition(".")
    stacked = {"qkv": ("q_proj", "k_proj", "v_proj"), "gate_up": ("gate_proj", "up_proj")}
    parts = stacked.get(packed, (packed,))
    return [f"{module}.{part}.weight" for part in parts]


def _float_findings(graph: DeviceGraph, checkpoint: Checkpoint) -> Iterator[str]:
    matrices = [(node.name, node.input[1]) for node in graph.nodes("FusedMatMul")]
    tables = [(node.name, node.input[0]) for node in graph.nodes("Gather") if node.name == "embedded"]
    for node, name in (*matrices, *tables):
        if not np.array_equal(graph.array(name), stacked_weight(node, checkpoint)):
            yield f"{node}: is not the float weight of the checkpoint"


def _norm_findings(graph: DeviceGraph, checkpoint: Checkpoint) -> Iterator[str]:
    for name, weight in checkpoint.weights.items():
        if weight.ndim == 1 and not np.array_equal(graph.array(name), weight):
            yield f"{name}: is not the norm weight of the checkpoint"
