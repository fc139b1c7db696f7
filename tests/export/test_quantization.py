from typing import Any

import numpy as np
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from mothertongue_export.quantization import BLOCK_SIZES, QuantizedMatrix, Storage, dequantize, quantize
from mothertongue_trainer import contradictions

FLOAT32_SUM = 1e-5  # relative: sums of a few hundred products in another order
INT8_ACTIVATION_ERROR = 0.02  # relative: each block of the input is rounded to 8 bits as well


def random_matrix(rows: int, columns: int, seed: int = 0) -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.random.default_rng(seed).normal(size=(rows, columns)).astype(np.float32)


def eight(block_size: int) -> Storage:
    return Storage(bits=8, block_size=block_size)


def run_operator(node: Any, inputs: dict[str, Any], constants: dict[str, Any]) -> Any:
    (name, values), *_ = inputs.items()
    graph = helper.make_graph(
        [node],
        "one",
        [helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(values.dtype), values.shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    return onnxruntime.InferenceSession(model.SerializeToString()).run(None, inputs)[0]


def multiply(x: Any, matrix: QuantizedMatrix, accuracy_level: int) -> Any:
    node = helper.make_node(
        "MatMulNBits", ["x", "steps", "scales"], ["y"], domain="com.microsoft", bits=matrix.storage.bits,
        N=matrix.rows, K=matrix.columns, block_size=matrix.block_size, accuracy_level=accuracy_level,
    )  # fmt: skip
    return run_operator(node, {"x": x}, {"steps": matrix.steps, "scales": matrix.scales})


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("block_size", BLOCK_SIZES)
@pytest.mark.parametrize("columns", [256, 144, 17])
def test_onnxruntime_multiplies_by_the_dequantized_weight(bits: Any, block_size: int, columns: int) -> None:
    weight, x = random_matrix(24, columns), random_matrix(5, columns, seed=1)
    matrix = quantize(weight, Storage(bits=bits, block_size=block_size))
    expected = x.astype(np.float64) @ dequantize(matrix).T.astype(np.float64)
    scale = np.abs(expected).max()
    assert np.abs(multiply(x, matrix, 0) - expected).max() < FLOAT32_SUM * scale
    assert np.abs(multiply(x, matrix, 4) - expected).max() < INT8_ACTIVATION_ERROR * scale


def test_onnxruntime_gathers_rows_of_the_same_bytes() -> None:
    matrix = quantize(random_matrix(40, 128), eight(32))
    node = helper.make_node(
        "GatherBlockQuantized", ["rows", "x", "scales"], ["y"], domain="com.microsoft",
        bits=8, block_size=32, gather_axis=0, quantize_axis=1,
    )  # fmt: skip
    ids = np.array([[3, 39, 0]])
    found = run_operator(node, {"x": ids}, {"rows": matrix.steps.reshape(40, 128), "scales": matrix.scales})
    np.testing.assert_array_equal(found, dequantize(matrix)[ids])


@settings(deadline=None, max_examples=50)
@given(
    rows=st.integers(1, 5),
    columns=st.integers(1, 70),
    block_size=st.sampled_from(BLOCK_SIZES),
    exponent=st.integers(-30, 30),
    seed=st.integers(0, 1000),
)
def test_every_value_is_within_half_a_step(
    rows: int, columns: int, block_size: int, exponent: int, seed: int
) -> None:
    weight = np.ldexp(random_matrix(rows, columns, seed), exponent).astype(np.float32)
    matrix = quantize(weight, eight(block_size))
    for row in range(rows):
        for column in range(columns):
            begin = column - column % block_size
            step = np.abs(weight[row, begin : begin + block_size]).max() / 127
            error = abs(float(dequantize(matrix)[row, column]) - float(weight[row, column]))
            assert error <= 0.5001 * step


def test_values_on_the_grid_come_back_exactly() -> None:
    generator = np.random.default_rng(0)
    weight = (generator.integers(-127, 128, size=(6, 64)) * 0.25).astype(np.float32)
    weight[:, ::16] = 127 * 0.25  # each block reaches its largest step
    np.testing.assert_array_equal(dequantize(quantize(weight, eight(16))), weight)


def test_a_block_of_zeros_stays_zero() -> None:
    matrix = quantize(np.zeros((2, 32), np.float32), eight(16))
    assert (matrix.steps == 128).all()
    assert (dequantize(matrix) == 0).all()


def test_an_unknown_block_size_is_refused() -> None:
    with pytest.raises(ValueError, match="8 bits, block 48"):
        quantize(random_matrix(2, 96), eight(48))


@pytest.mark.parametrize("bits", [8, 4])
def test_searched_scales_never_raise_the_weighted_error(bits: Any) -> None:
    weight = random_matrix(16, 96) ** 3  # heavy tails: cutting the largest values off pays
    importance = np.random.default_rng(2).gamma(1.0, size=96).astype(np.float32)
    storage = Storage(bits=bits, block_size=32)

    def error(matrix: QuantizedMatrix) -> float:
        return float(((dequantize(matrix) - weight) ** 2 * importance).sum())

    nearest, searched = error(quantize(weight, storage)), error(quantize(weight, storage, importance))
    assert searched <= nearest * 1.0001
    if bits == 4:
        assert searched < 0.95 * nearest


def test_four_bits_are_two_numbers_in_a_byte_the_first_in_the_lower_half() -> None:
    weight = np.zeros((1, 16), np.float32)
    weight[0, :4] = [7, -7, 1, 0]
    steps = quantize(weight, Storage(bits=4, block_size=16)).steps
    assert steps.shape == (1, 1, 8)
    assert [int(byte) for byte in steps[0, 0, :2]] == [15 | 1 << 4, 9 | 8 << 4]


def test_a_recipe_may_ask_for_exactly_the_block_sizes_of_the_kernels() -> None:
    assert contradictions.BLOCK_SIZES == BLOCK_SIZES
