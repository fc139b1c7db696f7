"""What each matrix of a model is multiplied by, and what each way to store it costs there.

One forward of PyTorch over a few hundred tokens of held-out text; each matrix is measured when its input
comes by, through the very kernel that will run it, so that rounded activations count as well.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnxruntime
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from mothertongue.tokenizer import BOS, END, Tokenizer
from mothertongue_export.graph import INT8_ACTIVATIONS, IR_VERSION, MICROSOFT_OPSET, OPSET
from mothertongue_export.operators import MICROSOFT
from mothertongue_export.pytorch import PyTorchModel
from mothertongue_export.quantization import FLOAT, Storage, quantize
from mothertongue_trainer.document import Document

CALIBRATION_TOKENS, ROW_TOKENS = 512, 64
ERROR_ROWS = 128  # of these tokens, for the error of a matrix
TIMED_RUNS = 9


@dataclass(frozen=True, kw_only=True)
class Cost:
    """One way to store one matrix. The error is |y' - y| / |y| of its output on the calibration text."""

    storage: Storage
    error: float
    bytes: int
    microseconds: float  # for one token, on this machine, one thread; shown, and never decides


@dataclass(frozen=True, kw_only=True)
class MatrixCosts:
    """One matrix of the device graph, and each way to store it, the smallest first."""

    node: str
    costs: Sequence[Cost]


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """The measured table, and how much each input column of a matrix weighs (its mean square)."""

    matrices: Sequence[MatrixCosts]
    importance: dict[str, NDArray[np.float32]] = field(default_factory=dict)
    tokens: int


def calibration_rows(heldout: Sequence[Document], tokenizer: Tokenizer, *, context: int) -> NDArray[np.int64]:
    """Return rows (B, T) of held-out prose from its end; the proof reads it from its beginning."""
    ids: list[int] = []
    for document in reversed(heldout):
        if document.text and len(ids) < CALIBRATION_TOKENS:
            ids += [tokenizer.special(BOS), *tokenizer.encode(document.text), tokenizer.special(END)]
    length = min(ROW_TOKENS, context, len(ids))
    rows = min(len(ids), CALIBRATION_TOKENS) // length
    return np.array(ids[: rows * length], np.int64).reshape(rows, length)


def calibrate(
    model: PyTorchModel, rows: NDArray[np.int64], ladder: Sequence[Storage], head_ladder: Sequence[Storage]
) -> Calibration:
    """Return what each matrix costs in each storage of its ladder, with `rows` (B, T) of ids as the input."""
    matrices: list[MatrixCosts] = []
    importance: dict[str, NDArray[np.float32]] = {}
    times: dict[Any, float] = {}

    def measure(node: str, modules: Sequence[Any], hidden: Any) -> None:
        x = hidden.detach().reshape(-1, hidden.shape[-1]).float().numpy()
        weight = np.concatenate([module.weight.detach().float().numpy() for module in modules])
        importance[node] = np.square(x, dtype=np.float32).mean(axis=0)
        shown = x[:: max(1, len(x) // ERROR_ROWS)]
        storages = head_ladder if node == "logits" else ladder
        matrices.append(matrix_costs(node, weight, shown, importance[node], storages, times))

    hooks = [
        modules[0].register_forward_pre_hook(
            lambda _module, inputs, node=node, modules=modules: measure(node, modules, inputs[0])
        )
        for node, modules in stacked_modules(model.network)
    ]
    try:
        PyTorchModel(model.network).logits(rows)  # computed, never remembered
    finally:
        for hook in hooks:
            hook.remove()
    return Calibration(matrices=matrices, importance=importance, tokens=rows.size)


def stacked_modules(network: Any) -> Iterator[tuple[str, list[Any]]]:
    """Yield each matrix of the device graph with the linear modules of transformers that it stacks."""
    for number, layer in enumerate(network.model.layers):
        attention, mlp, prefix = layer.self_attn, layer.mlp, f"model.layers.{number}"
        yield f"{prefix}.self_attn.qkv", [attention.q_proj, attention.k_proj, attention.v_proj]
        yield f"{prefix}.self_attn.o_proj", [attention.o_proj]
        yield f"{prefix}.mlp.gate_up", [mlp.gate_proj, mlp.up_proj]
        yield f"{prefix}.mlp.down_proj", [mlp.down_proj]
    yield "logits", [network.lm_head]


def matrix_costs(
    node: str,
    weight: NDArray[np.float32],
    x: NDArray[np.float32],
    importance: NDArray[np.float32],
    storages: Sequence[Storage],
    times: dict[Any, float],
) -> MatrixCosts:
    """Return what `weight` (N, K) costs in each of `storages` when it multiplies `x` (T, K).

    `times` remembers the microseconds of each shape and storage: layers are alike.
    """
    exact = x @ weight.T
    size = float(np.square(exact, dtype=np.float64).sum()) or 1.0
    costs = []
    for storage in storages:
        run = kernel(weight, storage, importance)
        error = float(np.square(run(x) - exact, dtype=np.float64).sum() / size) ** 0.5
        key = (weight.shape, storage)
        if key not in times:
            times[key] = microseconds(run, x[:1])
        stored = round(weight.size * storage.bytes_per_value)
        costs.append(Cost(storage=storage, error=error, bytes=stored, microseconds=times[key]))
    return MatrixCosts(node=node, costs=costs)


def kernel(weight: NDArray[np.float32], storage: Storage, importance: NDArray[np.float32] | None) -> Any:
    """Return a function of x (T, K) that multiplies as the device graph will, in one thread."""
    if storage == FLOAT:
        constants: dict[str, NDArray[Any]] = {"weight": weight}
        attributes: dict[str, Any] = {"transB": 1}
        operator = "FusedMatMul"
    else:
        matrix = quantize(weight, storage, importance)
        constants = {"steps": matrix.steps, "scales": matrix.scales}
        attributes = {
            "N": matrix.rows, "K": matrix.columns, "bits": storage.bits, "block_size": storage.block_size,
            "accuracy_level": INT8_ACTIVATIONS,
        }  # fmt: skip
        operator = "MatMulNBits"
    graph = helper.make_graph(
        [helper.make_node(operator, ["x", *constants], ["y"], domain=MICROSOFT, **attributes)],
        "kernel",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["tokens", weight.shape[1]])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["tokens", weight.shape[0]])],
        [numpy_helper.from_array(np.ascontiguousarray(array), name) for name, array in constants.items()],
    )
    opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid(MICROSOFT, MICROSOFT_OPSET)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=IR_VERSION)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return lambda x: session.run(None, {"x": np.ascontiguousarray(x, np.float32)})[0]


def microseconds(run: Any, x: NDArray[np.float32]) -> float:
    """Return the median time of `run(x)`, warmed up."""
    run(x)
    times_s = []
    for _ in range(TIMED_RUNS):
        start_s = time.perf_counter()
        run(x)
        times_s.append(time.perf_counter() - start_s)
    return 1e6 * statistics.median(times_s)
