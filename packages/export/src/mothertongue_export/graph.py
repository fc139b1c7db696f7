"""The device graph: a Qwen3 checkpoint as one int8 ONNX graph for the CPU provider of onnxruntime.

    input_ids (batch, seq) ──► embedding ──► layers ──► last position ──► head ──► logits (batch, 1, V)
    attention_mask (batch, total) ──► the two lengths of GroupQueryAttention
    past_key_values.N.key/value (batch, kv_heads, past, head_width) ──► present.N.key/value, the same buffers

What makes it fast, each measured: weights in 8 bits with `accuracy_level` 4 (int8 activations; without it 30
times slower), one matrix for query, key and value and one for gate and up, rotary and cache inside the
attention operator, residual sum and norm in one operator, one table for embedding and head, stored once.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper

from mothertongue_export.checkpoint import Architecture, Checkpoint
from mothertongue_export.quantization import QuantizedMatrix, quantize
from mothertongue_export.weights_file import WeightsFile, view

GRAPH_FILE, WEIGHTS_FILE = "model.onnx", "model.onnx.data"
OPSET, MICROSOFT_OPSET, IR_VERSION = 21, 1, 10
MICROSOFT = "com.microsoft"
INT8_ACTIVATIONS = 4  # accuracy_level of MatMulNBits; its only fast 8-bit kernels


def write_device_graph(
    checkpoint: Checkpoint, folder: Path, *, block_size: int = 128, accuracy_level: int = INT8_ACTIVATIONS
) -> None:
    """Write model.onnx and model.onnx.data for `checkpoint` into `folder`: always the same bytes.

    `accuracy_level` 0 computes with float32 activations: slow, and the way to tell an error of the graph from
    one of quantization.
    """
    with WeightsFile(folder / WEIGHTS_FILE) as weights:
        graph = _DeviceGraph(checkpoint, weights, block_size, accuracy_level)
        graph.build()
    model = helper.make_model(
        graph.proto(),
        opset_imports=[helper.make_opsetid("", OPSET), helper.make_opsetid(MICROSOFT, MICROSOFT_OPSET)],
        ir_version=IR_VERSION,
        producer_name="mothertongue",
    )
    (folder / GRAPH_FILE).write_bytes(model.SerializeToString(deterministic=True))


def rotary_caches(architecture: Architecture) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return cos and sin (context, head_width / 2), from float32 angles as PyTorch has them in training."""
    width = np.float32(architecture.head_width)
    exponents = np.arange(0, width, 2, dtype=np.float32) / width
    frequencies = np.float32(1) / np.float32(architecture.rope_theta) ** exponents
    angles = np.outer(np.arange(architecture.context, dtype=np.float32), frequencies)
    return np.cos(angles), np.sin(angles)


class _DeviceGraph:
    """Collects nodes and initializers; every method returns the name of the value that it computes."""

    def __init__(
        self, checkpoint: Checkpoint, weights: WeightsFile, block_size: int, accuracy_level: int
    ) -> None:
        self.sizes = checkpoint.architecture
        self.tensors = checkpoint.weights
        self.weights = weights
        self.block_size = block_size
        self.accuracy_level = accuracy_level
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: list[TensorProto] = []

    def build(self) -> None:
        """Add the whole model, from input_ids to logits."""
        table = quantize(self.tensors["model.embed_tokens.weight"], self.block_size)
        steps = self.weights.append("embedding.steps", table.steps)
        scales = self.weight("embedding.scales", table.scales)
        lengths = self.lengths()
        cos, sin = rotary_caches(self.sizes)
        caches = [self.weight("rotary.cos", cos), self.weight("rotary.sin", sin)]
        residual = self.embed(table, steps, scales)
        normed = self.norm(residual, "model.layers.0.input_layernorm")
        for layer in range(self.sizes.layers):
            attended = self.attention(layer, normed, lengths, caches)
            normed, residual = self.add_norm(
                attended, residual, f"model.layers.{layer}.post_attention_layernorm"
            )
            widened = self.feed_forward(layer, normed)
            last = layer == self.sizes.layers - 1
            following = "model.norm" if last else f"model.layers.{layer + 1}.input_layernorm"
            normed, residual = self.add_norm(widened, residual, following)
        final = self.node("Gather", [normed, self.integers("last_position", [-1])], "last_hidden", axis=1)
        if self.sizes.tied_embeddings:
            self.initializers.append(steps)
            self.multiply(final, table, steps.name, scales, "logits")
        else:
            self.linear(final, self.tensors["lm_head.weight"], "logits")

    def proto(self) -> onnx.GraphProto:
        """Return the collected graph, with its inputs and outputs."""
        kv_heads, head_width = self.sizes.kv_heads, self.sizes.head_width
        past_shape: list[str | int | None] = ["batch", kv_heads, "past", head_width]
        present_shape: list[str | int | None] = ["batch", kv_heads, "present", head_width]
        inputs = [
            helper.make_tensor_value_info("input_ids", TensorProto.INT64, ["batch", "seq"]),
            helper.make_tensor_value_info("attention_mask", TensorProto.INT64, ["batch", "total"]),
        ]
        outputs = [
            helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", 1, self.sizes.vocabulary])
        ]
        for layer in range(self.sizes.layers):
            for kind in ("key", "value"):
                past, present = f"past_key_values.{layer}.{kind}", f"present.{layer}.{kind}"
                inputs.append(helper.make_tensor_value_info(past, TensorProto.FLOAT, past_shape))
                outputs.append(helper.make_tensor_value_info(present, TensorProto.FLOAT, present_shape))
        return helper.make_graph(self.nodes, "mothertongue", inputs, outputs, self.initializers)

    # ── the model ──

    def lengths(self) -> list[str]:
        """Return seqlens_k (batch,) and total_sequence_length (scalar), as GroupQueryAttention asks."""
        axis = self.integers("mask_axis", [1])
        tokens = self.node("ReduceSum", ["attention_mask", axis], "mask_tokens", keepdims=0)
        last = self.node("Sub", [tokens, self.integers("one", [1])], "last_token")
        shape = self.node("Shape", ["attention_mask"], "mask_shape")
        total = self.node("Gather", [shape, self.integers("total_axis", 1)], "total_tokens")
        return [
            self.node("Cast", [last], "seqlens_k", to=TensorProto.INT32),
            self.node("Cast", [total], "total_sequence_length", to=TensorProto.INT32),
        ]

    def embed(self, table: QuantizedMatrix, steps: TensorProto, scales: str) -> str:
        """Return the embeddings (batch, seq, width), read from the bytes that a tied head multiplies by."""
        padded = steps.dims[1] * steps.dims[2]
        rows = view(steps, "embedding.rows", (table.rows, padded))
        self.initializers.append(rows)
        embedded = self.node(
            "GatherBlockQuantized", [rows.name, "input_ids", scales], "embedded", domain=MICROSOFT,
            bits=8, block_size=table.block_size, gather_axis=0, quantize_axis=1,
        )  # fmt: skip
        if padded == table.columns:
            return embedded
        bounds = [self.integers("width_begin", [0]), self.integers("width_end", [table.columns])]
        return self.node("Slice", [embedded, *bounds, self.integers("width_axis", [2])], "embedded_width")

    def attention(self, layer: int, normed: str, lengths: list[str], caches: list[str]) -> str:
        """Return the attention output (batch, seq, width) of one layer, its cache appended."""
        prefix = f"model.layers.{layer}.self_attn"
        queries, keys = self.sizes.heads * self.sizes.head_width, self.sizes.kv_heads * self.sizes.head_width
        projections = [self.tensors[f"{prefix}.{part}_proj.weight"] for part in "qkv"]
        packed = self.linear(normed, np.concatenate(projections), f"{prefix}.qkv")
        query, key, value = self.split(packed, f"{prefix}.qkv", {"q": queries, "k": keys, "v": keys})
        query = self.head_norm(query, f"{prefix}.q_norm", self.sizes.heads)
        key = self.head_norm(key, f"{prefix}.k_norm", self.sizes.kv_heads)
        past = [f"past_key_values.{layer}.{kind}" for kind in ("key", "value")]
        attended = f"{prefix}.attended"
        self.nodes.append(
            helper.make_node(
                "GroupQueryAttention", [query, key, value, *past, *lengths, *caches],
                [attended, f"present.{layer}.key", f"present.{layer}.value"], name=attended, domain=MICROSOFT,
                num_heads=self.sizes.heads, kv_num_heads=self.sizes.kv_heads,
                do_rotary=1, rotary_interleaved=0,
            )
        )  # fmt: skip
        return self.linear(attended, self.tensors[f"{prefix}.o_proj.weight"], f"{prefix}.o_proj")

    def head_norm(self, heads: str, name: str, count: int) -> str:
        """Return `heads` (batch, seq, count * head_width) with each head normed. Reshapes copy nothing."""
        apart = self.integers(f"heads_{count}", [0, 0, count, self.sizes.head_width])
        together = self.integers(f"joined_{count}", [0, 0, count * self.sizes.head_width])
        split = self.node("Reshape", [heads, apart], f"{name}.heads")
        return self.node("Reshape", [self.norm(split, name), together], f"{name}.joined")

    def feed_forward(self, layer: int, normed: str) -> str:
        """Return the SwiGLU output (batch, seq, width) of one layer."""
        prefix = f"model.layers.{layer}.mlp"
        projections = [self.tensors[f"{prefix}.{part}_proj.weight"] for part in ("gate", "up")]
        packed = self.linear(normed, np.concatenate(projections), f"{prefix}.gate_up")
        halves = {"gate": self.sizes.ffn_width, "up": self.sizes.ffn_width}
        gate, up = self.split(packed, f"{prefix}.gate_up", halves)
        silu = self.node("QuickGelu", [gate], f"{prefix}.silu", domain=MICROSOFT, alpha=1.0)  # x * sigmoid(x)
        product = self.node("Mul", [silu, up], f"{prefix}.product")
        return self.linear(product, self.tensors[f"{prefix}.down_proj.weight"], f"{prefix}.down_proj")

    # ── its operators ──

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
            axis=-1, epsilon=self.sizes.rms_norm_eps, stash_type=1,
        )  # fmt: skip

    def add_norm(self, branch: str, residual: str, name: str) -> tuple[str, str]:
        """Return RMSNorm of `branch + residual`, and that sum: the next residual."""
        normed, total = f"{name}.normed", f"{name}.residual"
        self.nodes.append(
            helper.make_node(
                "SkipSimplifiedLayerNormalization", [branch, residual, self.norm_weight(name)],
                [normed, "", "", total], name=normed, domain=MICROSOFT, epsilon=self.sizes.rms_norm_eps,
            )
        )  # fmt: skip
        return normed, total

    def linear(self, hidden: str, weight: NDArray[np.float32], name: str) -> str:
        """Return `hidden` times the transposed `weight` (N, K), in 8 bits."""
        matrix = quantize(weight, self.block_size)
        steps = self.weights.append(f"{name}.steps", matrix.steps)
        self.initializers.append(steps)
        return self.multiply(hidden, matrix, steps.name, self.weight(f"{name}.scales", matrix.scales), name)

    def multiply(self, hidden: str, matrix: QuantizedMatrix, steps: str, scales: str, name: str) -> str:
        """Return `hidden` times the stored matrix."""
        return self.node(
            "MatMulNBits", [hidden, steps, scales], name, domain=MICROSOFT,
            K=matrix.columns, N=matrix.rows, bits=8, block_size=matrix.block_size,
            accuracy_level=self.accuracy_level,
        )  # fmt: skip

    # ── its constants ──

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
