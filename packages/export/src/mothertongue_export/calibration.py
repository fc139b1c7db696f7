"""What each matrix of a model is multiplied by, and what each way to store it costs there.

One forward of PyTorch over a few hundred tokens of held-out text; each matrix is measured when its input
comes by, through the very kernel that will run it, so that rounded activations count as well.

A matrix of 4 bits is fitted first, to thousands of other tokens that pass in the same forward: with searched
scales, and with errors that make up for each other. What is stored is what had the smaller error. None of
these tokens is in the text of the proof. 8 bits are rounded to nearest: fitting bought them next to nothing.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import onnxruntime
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from mothertongue.tokenizer import BOS, END, Tokenizer
from mothertongue_export.compensation import Spread, compensate, spread_of
from mothertongue_export.graph import INT8_ACTIVATIONS, IR_VERSION, MICROSOFT_OPSET, OPSET
from mothertongue_export.operators import MICROSOFT
from mothertongue_export.pytorch import PyTorchModel
from mothertongue_export.quantization import FLOAT, QuantizedMatrix, Storage, quantize
from mothertongue_trainer.document import Document

CALIBRATION_TOKENS, FITTING_TOKENS, ROW_TOKENS = 512, 8192, 64
ERROR_ROWS = 128  # of these tokens, for the error of a matrix
TIMED_RUNS = 9


Rounding = Literal["to nearest", "searched scales", "compensated"]


@dataclass(frozen=True, kw_only=True)
class Cost:
    """One way to store one matrix. The error is |y' - y| / |y| of its output on the calibration text."""

    storage: Storage
    rounding: Rounding = "to nearest"
    error: float
    bytes: int
    microseconds: float  # for one token, on this machine, one thread; shown, and never decides

    def __str__(self) -> str:
        return str(self.storage) if self.rounding == "to nearest" else f"{self.storage}, {self.rounding}"


@dataclass(frozen=True, kw_only=True)
class MatrixCosts:
    """One matrix of the device graph, and each way to store it, the smallest first."""

    node: str
    costs: Sequence[Cost]


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """The measured table, and each matrix of 4 bits as it was measured, by node and storage."""

    matrices: Sequence[MatrixCosts]
    fitted: dict[tuple[str, Storage], QuantizedMatrix] = field(default_factory=dict)


def calibration_rows(heldout: Sequence[Document], tokenizer: Tokenizer, *, context: int) -> NDArray[np.int64]:
    """Return rows (B, T) of held-out prose from its end; the proof reads it from its beginning."""
    return _rows_from_the_end(heldout, tokenizer, CALIBRATION_TOKENS, context)


def fitting_rows(
    unread: Sequence[Document],
    tokenizer: Tokenizer,
    *,
    context: int,
    conversations: Sequence[Sequence[int]] = (),
) -> NDArray[np.int64]:
    """Return rows (B, T) of `unread`, the held-out prose that the proof leaves; none where it leaves little.

    They are those before the last `CALIBRATION_TOKENS`, from which `calibration_rows` come. The ids of
    `conversations` follow: fitted to prose alone, nano departs from PyTorch 1.6 times as far in its chats.
    """
    rows = _rows_from_the_end(unread, tokenizer, CALIBRATION_TOKENS + FITTING_TOKENS, context)
    length = rows.shape[1]
    prose = rows[CALIBRATION_TOKENS // length :]
    spoken = np.array([token for ids in conversations for token in ids], np.int64)
    spoken = spoken[: len(spoken) // length * length].reshape(-1, length)
    return np.concatenate([prose, spoken]) if len(prose) else prose


def _rows_from_the_end(
    documents: Sequence[Document], tokenizer: Tokenizer, tokens: int, context: int
) -> NDArray[np.int64]:
    ids: list[int] = []
    for document in reversed(documents):
        if document.text and len(ids) < tokens:
            ids += [tokenizer.special(BOS), *tokenizer.encode(document.text), tokenizer.special(END)]
    length = min(ROW_TOKENS, context, len(ids)) or 1
    rows = min(len(ids), tokens) // length
    return np.array(ids[: rows * length], np.int64).reshape(rows, length)


def calibrate(
    model: PyTorchModel,
    rows: NDArray[np.int64],
    ladder: Sequence[Storage],
    head_ladder: Sequence[Storage],
    *,
    fitting_rows: NDArray[np.int64] | None = None,
) -> Calibration:
    """Return what each matrix costs in each storage of its ladder, with `rows` (B, T) of ids as the input.

    Matrices of 4 bits are fitted to `fitting_rows` (B', T); without them they have scales searched on `rows`.
    """
    four_bits = any(storage.bits == 4 for storage in ladder)
    has_text = fitting_rows is not None and fitting_rows.size
    passing = np.concatenate([rows, fitting_rows]) if has_text and four_bits else rows
    matrices: list[MatrixCosts] = []
    fitted: dict[tuple[str, Storage], QuantizedMatrix] = {}
    times: dict[Any, float] = {}

    def measure(node: str, modules: Sequence[Any], hidden: Any) -> None:
        x = hidden.detach().reshape(-1, hidden.shape[-1]).float().numpy()
        weight = np.concatenate([module.weight.detach().float().numpy() for module in modules])
        fit = Fit.to(x[: rows.size], x[rows.size :]) if four_bits and node != "logits" else None
        shown = x[: rows.size : max(1, rows.size // ERROR_ROWS)]
        costs = []
        for storage in head_ladder if node == "logits" else ladder:
            cost, matrix = storage_cost(weight, storage, shown, fit, times)
            costs.append(cost)
            if matrix:
                fitted[node, storage] = matrix
        matrices.append(MatrixCosts(node=node, costs=costs))

    hooks = [
        modules[0].register_forward_pre_hook(
            lambda _module, inputs, node=node, modules=modules: measure(node, modules, inputs[0])
        )
        for node, modules in stacked_modules(model.network)
    ]
    try:
        model.pass_through(passing, head_rows=len(rows))
    finally:
        for hook in hooks:
            hook.remove()
    return Calibration(matrices=matrices, fitted=fitted)


def stacked_modules(network: Any) -> Iterator[tuple[str, list[Any]]]:
    """Yield each matrix of the device graph with the linear modules of transformers that it stacks."""
    for number, layer in enumerate(network.model.layers):
        attention, mlp, prefix = layer.self_attn, layer.mlp, f"model.layers.{number}"
        yield f"{prefix}.self_attn.qkv", [attention.q_proj, attention.k_proj, attention.v_proj]
        yield f"{prefix}.self_attn.o_proj", [attention.o_proj]
        yield f"{prefix}.mlp.gate_up", [mlp.gate_proj, mlp.up_proj]
        yield f"{prefix}.mlp.down_proj", [mlp.down_proj]
    yield "logits", [network.lm_head]


@dataclass(frozen=True, kw_only=True)
class Fit:
    """What a matrix of 4 bits is fitted to."""

    importance: NDArray[np.float32]  # (K,) mean square of each input column
    spread: Spread | None  # None where there is no text to fit to but that of the table

    @classmethod
    def to(cls, measured: NDArray[np.float32], passed: NDArray[np.float32]) -> Fit:
        """Return the fit to the inputs `passed` (T, K), or, if there are none, to those `measured`."""
        if len(passed):
            spread = spread_of((passed.T @ passed).astype(np.float64) / len(passed))
            return cls(importance=spread.importance, spread=spread)
        return cls(importance=np.square(measured, dtype=np.float32).mean(axis=0), spread=None)

    def candidates(
        self, weight: NDArray[np.float32], storage: Storage
    ) -> Iterator[tuple[Rounding, QuantizedMatrix]]:
        """Yield each way to store `weight` (N, K) in the same format, and how it rounds."""
        yield "searched scales", quantize(weight, storage, self.importance)
        if self.spread:
            yield "compensated", compensate(weight, storage, self.spread)


def storage_cost(
    weight: NDArray[np.float32],
    storage: Storage,
    x: NDArray[np.float32],
    fit: Fit | None,
    times: dict[Any, float],
) -> tuple[Cost, QuantizedMatrix | None]:
    """Return what `weight` (N, K) costs in `storage` when it multiplies `x` (T, K), and the fitted matrix.

    Only 4 bits are fitted. `times` remembers the microseconds of each shape and storage: layers are alike.
    """
    exact = x @ weight.T
    size = float(np.square(exact, dtype=np.float64).sum()) or 1.0

    def error(run: Any) -> float:
        return math.sqrt(float(np.square(run(x) - exact, dtype=np.float64).sum()) / size)

    rounding: Rounding = "to nearest"
    matrix: QuantizedMatrix | None = None
    if fit and storage.bits == 4:
        ways = list(fit.candidates(weight, storage))
        errors = [error(kernel(candidate)) for _, candidate in ways]
        rounding, matrix = ways[int(np.argmin(errors))]
    run = kernel(matrix or (weight if storage == FLOAT else quantize(weight, storage)))
    key = (weight.shape, storage)
    if key not in times:
        times[key] = microseconds(run, x[:1])
    stored = round(weight.size * storage.bytes_per_value)
    cost = Cost(storage=storage, rounding=rounding, error=error(run), bytes=stored, microseconds=times[key])
    return cost, matrix


def kernel(stored: QuantizedMatrix | NDArray[np.float32]) -> Any:
    """Return a function of x (T, K) that multiplies by `stored` (N, K) as the device graph will.

    It runs in one thread.
    """
    if isinstance(stored, QuantizedMatrix):
        rows, columns, storage = stored.rows, stored.columns, stored.storage
        constants: dict[str, NDArray[Any]] = {"steps": stored.steps, "scales": stored.scales}
        attributes: dict[str, Any] = {
            "N": rows, "K": columns, "bits": storage.bits, "block_size": storage.block_size,
            "accuracy_level": INT8_ACTIVATIONS,
        }  # fmt: skip
        operator = "MatMulNBits"
    else:
        rows, columns = stored.shape
        constants, attributes, operator = {"weight": stored}, {"transB": 1}, "FusedMatMul"
    graph = helper.make_graph(
        [helper.make_node(operator, ["x", *constants], ["y"], domain=MICROSOFT, **attributes)],
        "kernel",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["tokens", columns])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["tokens", rows])],
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
