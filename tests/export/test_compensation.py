import itertools
from typing import Any

import numpy as np
import pytest

from mothertongue_export.compensation import FARTHEST_STEPS, compensate, spread_of
from mothertongue_export.quantization import QuantizedMatrix, Storage, dequantize, quantize

Array = np.ndarray[Any, np.dtype[Any]]


def four(block_size: int) -> Storage:
    return Storage(bits=4, block_size=block_size)


def correlated(tokens: int, columns: int, seed: int = 0) -> Array:
    """Inputs (T, K) that go together: a few causes, and a little of their own."""
    generator = np.random.default_rng(seed)
    causes = generator.normal(size=(tokens, max(2, columns // 8))) @ generator.normal(
        size=(max(2, columns // 8), columns)
    )
    own = 0.3 * generator.normal(size=(tokens, columns))
    return (causes + own) * generator.gamma(1.0, size=columns)


def moments(x: Array) -> Array:
    return x.T @ x / len(x)


def output_error(matrix: QuantizedMatrix | Array, weight: Array, x: Array) -> float:
    stored = dequantize(matrix) if isinstance(matrix, QuantizedMatrix) else matrix
    return float(np.square(x @ (stored - weight).astype(np.float64).T).sum())


def random_weight(rows: int, columns: int, seed: int = 1) -> Array:
    return np.random.default_rng(seed).normal(size=(rows, columns)).astype(np.float32)


@pytest.mark.parametrize("columns", [96, 40])  # 40: the last block is not full
@pytest.mark.parametrize("storage", [four(32), four(16), Storage(bits=8, block_size=32)], ids=str)
def test_inputs_that_do_not_go_together_leave_rounding_to_nearest(storage: Storage, columns: int) -> None:
    weight = random_weight(12, columns)
    found = compensate(weight, storage, spread_of(2.5 * np.eye(columns)))
    expected = quantize(weight, storage, np.ones(columns, np.float32))
    np.testing.assert_array_equal(found.steps, expected.steps)
    np.testing.assert_array_equal(found.scales, expected.scales)


def by_the_paper(weight: Array, storage: Storage, x: Array) -> Array:
    """Optimal brain quantization as its equations stand: the inverse is computed anew for each column."""
    h = moments(x) + 0.01 * np.diag(moments(x)).mean() * np.eye(weight.shape[1])
    scales = quantize(weight, storage, np.diag(moments(x)).astype(np.float32)).scales.astype(np.float64)
    left, rounded = weight.astype(np.float64), np.zeros(weight.shape)
    remaining = sorted(range(weight.shape[1]), key=lambda column: -h[column, column])
    while remaining:
        inverse = np.linalg.inv(h[np.ix_(remaining, remaining)])
        column, *others = remaining
        size = scales[:, column // storage.block_size]
        own = weight[:, column] / size
        step = np.clip(np.rint(left[:, column] / size), np.ceil(own - 1.5), np.floor(own + 1.5)).clip(-7, 7)
        rounded[:, column] = step * size
        error = (left[:, column] - rounded[:, column]) / inverse[0, 0]
        left[:, others] -= np.outer(error, inverse[0, 1:])
        remaining = others
    return rounded


@pytest.mark.parametrize("columns", [48, 100])
def test_the_steps_are_those_of_the_equations_of_the_paper(columns: int) -> None:
    """In float64, without the factor and without spans; a value or two may round to the other side."""
    x, weight = correlated(400, columns), random_weight(16, columns)
    found = dequantize(compensate(weight, four(32), spread_of(moments(x))))
    expected = by_the_paper(weight, four(32), x)
    assert (np.abs(found - expected) > 1e-5).mean() < 0.005


@pytest.mark.parametrize("block_size", [16, 128])
def test_on_correlated_inputs_the_output_error_is_well_below_that_of_rounding(block_size: int) -> None:
    x, unseen = np.split(correlated(4000, 128), 2)
    weight = random_weight(32, 128)
    importance = np.diag(moments(x)).astype(np.float32)
    found = compensate(weight, four(block_size), spread_of(moments(x)))
    for text in (x, unseen):
        nearest = output_error(quantize(weight, four(block_size)), weight, text)
        searched = output_error(quantize(weight, four(block_size), importance), weight, text)
        assert output_error(found, weight, text) < 0.6 * min(nearest, searched)


def best_of_all(weight: Array, scales: Array, x: Array) -> float:
    """The least output error of one row (1, K) over every choice of three steps at each column."""
    nearest = np.rint(weight[0] / scales[0, 0])
    choices = [sorted({float(np.clip(step + move, -7, 7)) for move in (-1, 0, 1)}) for step in nearest]
    combinations = np.array(list(itertools.product(*choices)))
    return float(np.square((combinations * scales[0, 0] - weight) @ x.T).sum(axis=1).min())


def test_a_small_problem_comes_near_the_best_of_all_choices_and_never_below() -> None:
    x = correlated(300, 8, seed=3)
    ours, nearest, best = 0.0, 0.0, 0.0
    for seed in range(12):
        weight = random_weight(1, 8, seed)
        found = compensate(weight, four(16), spread_of(moments(x)))
        least, error = best_of_all(weight, found.scales, x), output_error(found, weight, x)
        assert error >= 0.999 * least
        ours, best = ours + error, best + least
        nearest += output_error(quantize(weight, four(16), np.diag(moments(x)).astype(np.float32)), weight, x)
    assert best < nearest / 3
    assert ours < 0.5 * nearest


def test_wrong_moments_do_worse_so_the_comparison_can_fail() -> None:
    """The faults that this kind of code has: moments of other columns, and their inverse."""
    x, weight = correlated(2000, 64), random_weight(32, 64)
    right = moments(x)
    error = output_error(compensate(weight, four(32), spread_of(right)), weight, x)
    flipped = np.ascontiguousarray(right[::-1, ::-1])
    assert output_error(compensate(weight, four(32), spread_of(flipped)), weight, x) > 2 * error
    inverse = np.linalg.inv(right + 0.01 * np.diag(right).mean() * np.eye(64))
    assert output_error(compensate(weight, four(32), spread_of(inverse)), weight, x) > 2 * error


def test_no_value_goes_far_from_its_weight_but_where_the_format_ends() -> None:
    x, weight = correlated(500, 96), random_weight(64, 96)
    matrix = compensate(weight, four(32), spread_of(moments(x)))
    steps = np.repeat(matrix.scales, 32, axis=1)
    cut = np.abs(weight) > 7 * steps
    assert (np.abs(dequantize(matrix) - weight) / steps)[~cut].max() <= FARTHEST_STEPS + 1e-4


def test_columns_that_nothing_passes_and_blocks_of_zeros_are_no_trouble() -> None:
    x, weight = correlated(500, 64), random_weight(8, 64)
    x[:, 10:20], weight[:, 32:] = 0, 0
    matrix = compensate(weight, four(32), spread_of(moments(x)))
    assert np.isfinite(dequantize(matrix)).all()
    assert (dequantize(matrix)[:, 32:] == 0).all()
    silent = compensate(weight, four(32), spread_of(np.zeros((64, 64))))
    assert np.isfinite(dequantize(silent)).all()


def test_the_same_inputs_give_the_same_bytes_and_the_weight_stays() -> None:
    x, weight = correlated(500, 64), random_weight(8, 64)
    before = weight.copy()
    first, second = (compensate(weight, four(32), spread_of(moments(x))) for _ in range(2))
    assert first.steps.tobytes() == second.steps.tobytes()
    np.testing.assert_array_equal(weight, before)
