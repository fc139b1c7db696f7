"""The operators of the device graph: nodes and initializers, collected as they are added.

Every method returns the name of the value that it computes. What is quantized, and how, is in the plan.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper

from mothertongue_export.quantization import FLOAT, Plan, QuantizedMatrix, quantize
from mothertongue_export.weights_file import WeightsFile, view

MICROSOFT = "com.microsoft"


class Operators:
    """A graph in the making. Weights go to the data file, small integers into the graph."""

    def __init__(
        self,
        tensors: Mapping[str, NDArray[np.float32]],
        weights: WeightsFile,
        plan: Plan,
        *,
        accuracy_level: int,
        epsilon: float,
    ) -> None:
        self.tensors = tensors  # of the checkpoint, by Hugging Face name
        self.weights = weights
        self.plan = plan
        self.accuracy_level = accuracy_level
        self.epsilon = epsilon  # of the norms
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: list[TensorProto] = []

    def node(self, operator: str, inputs: list[str], output: str, domain: str = "", **attributes: Any) -> str:
        """Append a node with one output, named after that output, and return the name."""
        self.nodes.append(
            helper.make_node(operator, inputs, [output], name=output, domain=domain, **attributes)
        )
        return output

    def split(self, packed: str, name: str, sizes: dict[str, int]) -> list[str]:
        """Return the parts of `packed` along its last axis."""
        lengths = self.integers("split_" + "_".join(map(str, sizes.values())), list(sizes.values()))
        parts = [f"{name}.{part}" for part in sizes]
        self.nodes.append(helper.make_node("Split", [packed, lengths], parts, name=f"{name}.split", axis=-1))
        return parts

    def norm(self, hidden: str, name: str) -> str:
        """Return RMSNorm of `hidden` along its last axis."""
        return self.node(
            "SimplifiedLayerNormalization", [hidden, self.norm_weight(name)], f"{name}.normed",
            axis=-1, epsilon=self.epsilon, stash_type=1,
        )  # fmt: skip

    def add_norm(self, branch: str, residual: str, name: str) -> tuple[str, str]:
        """Return RMSNorm of `branch + residual`, and that sum: the next residual."""
        normed, total = f"{name}.normed", f"{name}.residual"
        self.nodes.append(
            helper.make_node(
                "SkipSimplifiedLayerNormalization", [branch, residual, self.norm_weight(name)],
                [normed, "", "", total], name=normed, domain=MICROSOFT, epsilon=self.epsilon,
            )
        )  # fmt: skip
        return normed, total

    def linear(self, hidden: str, weight: NDArray[np.float32], name: str) -> str:
        """Return `hidden` times the transposed `weight` (N, K), stored as the plan says."""
        if self.plan.storage(name) == FLOAT:
            return self.multiply_float(hidden, self.weight(f"{name}.weight", weight), name)
        matrix = self.quantized(weight, name)
        steps = self.weights.append(f"{name}.steps", matrix.steps)
        self.initializers.append(steps)
        return self.multiply(hidden, matrix, steps.name, self.weight(f"{name}.scales", matrix.scales), name)

    def table(self, weight: NDArray[np.float32], ids: str, head: str | None) -> str:
        """Return the rows `ids` of `weight` (V, width); a tied `head` will multiply by the same bytes."""
        name = head or "embedded"
        if self.plan.storage(name) == FLOAT:
            return self.node("Gather", [self.weight("embedding.weight", weight), ids], "embedded", axis=0)
        matrix = self.quantized(weight, name)
        steps = self.weights.append("embedding.steps", matrix.steps)
        scales = self.weight("embedding.scales", matrix.scales)
        self._tied = (matrix, steps, scales)
        padded = steps.dims[1] * steps.dims[2]
        rows = view(steps, "embedding.rows", (matrix.rows, padded))
        self.initializers.append(rows)
        embedded = self.node(
            "GatherBlockQuantized", [rows.name, ids, scales], "embedded", domain=MICROSOFT,
            bits=8, block_size=matrix.block_size, gather_axis=0, quantize_axis=1,
        )  # fmt: skip
        if padded == matrix.columns:
            return embedded
        bounds = [self.integers("width_begin", [0]), self.integers("width_end", [matrix.columns])]
        return self.node("Slice", [embedded, *bounds, self.integers("width_axis", [2])], "embedded_width")

    def tied_head(self, hidden: str, name: str) -> str:
        """Return `hidden` times the transposed table of `table`: the same bytes under another shape."""
        if self.plan.storage(name) == FLOAT:
            return self.multiply_float(hidden, "embedding.weight", name)
        matrix, steps, scales = self._tied
        self.initializers.append(steps)
        return self.multiply(hidden, matrix, steps.name, scales, name)

    def quantized(self, weight: NDArray[np.float32], name: str) -> QuantizedMatrix:
        return self.plan.fitted.get(name) or quantize(weight, self.plan.storage(name))

    def multiply(self, hidden: str, matrix: QuantizedMatrix, steps: str, scales: str, name: str) -> str:
        """Return `hidden` times the stored matrix."""
        return self.node(
            "MatMulNBits", [hidden, steps, scales], name, domain=MICROSOFT,
            K=matrix.columns, N=matrix.rows, bits=matrix.storage.bits, block_size=matrix.block_size,
            accuracy_level=self.accuracy_level,
        )  # fmt: skip

    def multiply_float(self, hidden: str, weight: str, name: str) -> str:
        """Return `hidden` times a transposed float32 weight (N, K), which stays as the checkpoint has it."""
        return self.node("FusedMatMul", [hidden, weight], name, domain=MICROSOFT, transB=1)

    def weight(self, name: str, array: NDArray[np.float32]) -> str:
        """Write a float32 tensor to the data file and return its name."""
        self.initializers.append(self.weights.append(name, array))
        return name

    def norm_weight(self, name: str) -> str:
        return self.weight(f"{name}.weight", self.tensors[f"{name}.weight"])

    def integers(self, name: str, values: int | list[int]) -> str:
        """Return the name of an int64 constant, kept in the graph itself and made once."""
        if all(initializer.name != name for initializer in self.initializers):
            self.initializers.append(onnx.numpy_helper.from_array(np.array(values, np.int64), name))
        return name
