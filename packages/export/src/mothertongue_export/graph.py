"""The device graph: a Qwen3 checkpoint as one quantized ONNX graph for the CPU provider of onnxruntime.

    input_ids (batch, seq) ──► embedding ──► layers ──► last positions ──► head ──► logits (batch, kept, V)
    attention_mask (batch, total) ──► the two lengths of GroupQueryAttention
    num_logits_to_keep (), 1 unless it is given ──► how many last positions; 0: all
    logits ──► last_logits (batch, 1, V), for programs that must know the shape before they run
    past_key_values.N.key/value (batch, kv_heads, past, head_width) ──► present.N.key/value, the same buffers

What makes it fast, each measured: weights in 8 bits with `accuracy_level` 4 (int8 activations; without it 30
times slower), one matrix for query, key and value and one for gate and up, rotary and cache inside the
attention operator, residual sum and norm in one operator, one table for embedding and head, stored once.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from onnx import GraphProto, TensorProto, helper

from mothertongue_export.checkpoint import Architecture, Checkpoint
from mothertongue_export.operators import MICROSOFT, Operators
from mothertongue_export.quantization import Plan, Storage
from mothertongue_export.weights_file import WeightsFile

GRAPH_FILE, WEIGHTS_FILE = "model.onnx", "model.onnx.data"
OPSET, MICROSOFT_OPSET, IR_VERSION = 21, 1, 10
INT8_ACTIVATIONS = 4  # accuracy_level of MatMulNBits; its only fast 8-bit kernels
KEEP = "num_logits_to_keep"  # the name that transformers.js knows
LAST_LOGITS = "last_logits"  # onnxruntime-genai computes one position only where the shape says 1
TO_THE_END = (1 << 31) - 1


def write_device_graph(
    checkpoint: Checkpoint,
    folder: Path,
    *,
    plan: Plan | None = None,
    block_size: int = 128,
    accuracy_level: int = INT8_ACTIVATIONS,
) -> None:
    """Write model.onnx and model.onnx.data for `checkpoint` into `folder`: always the same bytes.

    Without a `plan` every matrix has 8 bits in blocks of `block_size`. `accuracy_level` 0 computes with
    float32 activations: slow, and the way to tell an error of the graph from one of quantization.
    """
    plan = plan or Plan(default=Storage(bits=8, block_size=block_size))
    with WeightsFile(folder / WEIGHTS_FILE) as weights:
        operators = Operators(
            checkpoint.weights,
            weights,
            plan,
            accuracy_level=accuracy_level,
            epsilon=checkpoint.architecture.rms_norm_eps,
        )
        graph = _DeviceGraph(checkpoint.architecture, operators).build()
    model = helper.make_model(
        graph,
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
    """Lays out the model; every method returns the name of the value that it computes."""

    def __init__(self, sizes: Architecture, operators: Operators) -> None:
        self.sizes = sizes
        self.add = operators

    def build(self) -> GraphProto:
        """Return the whole model, from input_ids to logits."""
        add, tensors = self.add, self.add.tensors
        tied = self.sizes.tied_embeddings
        residual = add.table(tensors["model.embed_tokens.weight"], "input_ids", "logits" if tied else None)
        lengths = self.lengths()
        cos, sin = rotary_caches(self.sizes)
        caches = [add.weight("rotary.cos", cos), add.weight("rotary.sin", sin)]
        normed = add.norm(residual, "model.layers.0.input_layernorm")
        for layer in range(self.sizes.layers):
            attended = self.attention(layer, normed, lengths, caches)
            normed, residual = add.add_norm(
                attended, residual, f"model.layers.{layer}.post_attention_layernorm"
            )
            widened = self.feed_forward(layer, normed)
            last = layer == self.sizes.layers - 1
            following = "model.norm" if last else f"model.layers.{layer + 1}.input_layernorm"
            normed, residual = add.add_norm(widened, residual, following)
        final = self.last_positions(normed)
        if tied:
            add.tied_head(final, "logits")
        else:
            add.linear(final, tensors["lm_head.weight"], "logits")
        self.last_logits()
        return self.proto()

    def proto(self) -> GraphProto:
        """Return the collected graph, with its inputs and outputs."""
        kv_heads, head_width = self.sizes.kv_heads, self.sizes.head_width
        past_shape: list[str | int | None] = ["batch", kv_heads, "past", head_width]
        present_shape: list[str | int | None] = ["batch", kv_heads, "present", head_width]
        inputs = [
            helper.make_tensor_value_info("input_ids", TensorProto.INT64, ["batch", "seq"]),
            helper.make_tensor_value_info("attention_mask", TensorProto.INT64, ["batch", "total"]),
        ]
        outputs = [
            helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", kept, self.sizes.vocabulary])
            for name, kept in (("logits", "kept"), (LAST_LOGITS, 1))
        ]
        for layer in range(self.sizes.layers):
            for kind in ("key", "value"):
                past, present = f"past_key_values.{layer}.{kind}", f"present.{layer}.{kind}"
                inputs.append(helper.make_tensor_value_info(past, TensorProto.FLOAT, past_shape))
                outputs.append(helper.make_tensor_value_info(present, TensorProto.FLOAT, present_shape))
        # An input with an initializer of its name: who does not give it gets 1.
        inputs.append(helper.make_tensor_value_info(KEEP, TensorProto.INT64, []))
        self.add.integers(KEEP, 1)
        return helper.make_graph(self.add.nodes, "mothertongue", inputs, outputs, self.add.initializers)

    def lengths(self) -> list[str]:
        """Return seqlens_k (batch,) and total_sequence_length (scalar), as GroupQueryAttention asks."""
        axis = self.add.integers("mask_axis", [1])
        tokens = self.add.node("ReduceSum", ["attention_mask", axis], "mask_tokens", keepdims=0)
        last = self.add.node("Sub", [tokens, self.add.integers("one", [1])], "last_token")
        shape = self.add.node("Shape", ["attention_mask"], "mask_shape")
        total = self.add.node("Gather", [shape, self.add.integers("total_axis", 1)], "total_tokens")
        return [
            self.add.node("Cast", [last], "seqlens_k", to=TensorProto.INT32),
            self.add.node("Cast", [total], "total_sequence_length", to=TensorProto.INT32),
        ]

    def attention(self, layer: int, normed: str, lengths: list[str], caches: list[str]) -> str:
        """Return the attention output (batch, seq, width) of one layer, its cache appended."""
        prefix = f"model.layers.{layer}.self_attn"
        queries, keys = self.sizes.heads * self.sizes.head_width, self.sizes.kv_heads * self.sizes.head_width
        projections = [self.add.tensors[f"{prefix}.{part}_proj.weight"] for part in "qkv"]
        packed = self.add.linear(normed, np.concatenate(projections), f"{prefix}.qkv")
        query, key, value = self.add.split(packed, f"{prefix}.qkv", {"q": queries, "k": keys, "v": keys})
        query = self.head_norm(query, f"{prefix}.q_norm", self.sizes.heads)
        key = self.head_norm(key, f"{prefix}.k_norm", self.sizes.kv_heads)
        past = [f"past_key_values.{layer}.{kind}" for kind in ("key", "value")]
        attended = f"{prefix}.attended"
        self.add.nodes.append(
            helper.make_node(
                "GroupQueryAttention", [query, key, value, *past, *lengths, *caches],
                [attended, f"present.{layer}.key", f"present.{layer}.value"], name=attended, domain=MICROSOFT,
                num_heads=self.sizes.heads, kv_num_heads=self.sizes.kv_heads,
                do_rotary=1, rotary_interleaved=0,
            )
        )  # fmt: skip
        return self.add.linear(attended, self.add.tensors[f"{prefix}.o_proj.weight"], f"{prefix}.o_proj")

    def head_norm(self, heads: str, name: str, count: int) -> str:
        """Return `heads` (batch, seq, count * head_width) with each head normed. Reshapes copy nothing."""
        apart = self.add.integers(f"heads_{count}", [0, 0, count, self.sizes.head_width])
        together = self.add.integers(f"joined_{count}", [0, 0, count * self.sizes.head_width])
        split = self.add.node("Reshape", [heads, apart], f"{name}.heads")
        return self.add.node("Reshape", [self.add.norm(split, name), together], f"{name}.joined")

    def feed_forward(self, layer: int, normed: str) -> str:
        """Return the SwiGLU output (batch, seq, width) of one layer."""
        prefix = f"model.layers.{layer}.mlp"
        projections = [self.add.tensors[f"{prefix}.{part}_proj.weight"] for part in ("gate", "up")]
        packed = self.add.linear(normed, np.concatenate(projections), f"{prefix}.gate_up")
        halves = {"gate": self.sizes.ffn_width, "up": self.sizes.ffn_width}
        gate, up = self.add.split(packed, f"{prefix}.gate_up", halves)
        # With alpha 1 it is SiLU: x * sigmoid(x).
        silu = self.add.node("QuickGelu", [gate], f"{prefix}.silu", domain=MICROSOFT, alpha=1.0)
        product = self.add.node("Mul", [silu, up], f"{prefix}.product")
        return self.add.linear(product, self.add.tensors[f"{prefix}.down_proj.weight"], f"{prefix}.down_proj")

    def last_positions(self, hidden: str) -> str:
        """Return the last `num_logits_to_keep` positions of `hidden`: -0 begins at the first."""
        begin = self.add.node("Neg", [KEEP], "keep_from")
        axis = self.add.integers("keep_axis", [0])
        begin = self.add.node("Unsqueeze", [begin, axis], "keep_begin")
        bounds = [begin, self.add.integers("keep_end", [TO_THE_END]), self.add.integers("seq_axis", [1])]
        return self.add.node("Slice", [hidden, *bounds], "last_hidden")

    def last_logits(self) -> None:
        """Give the last of the kept positions an output of its own, whose shape is known."""
        begin, end = self.add.integers("last_begin", [-1]), self.add.integers("keep_end", [TO_THE_END])
        self.add.node("Slice", ["logits", begin, end, self.add.integers("seq_axis", [1])], LAST_LOGITS)
