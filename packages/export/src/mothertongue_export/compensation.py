"""Rounding whose errors make up for each other: GPTQ (Frantar et al. 2022, arXiv:2210.17323).

What counts is the error of the output, (Q - W) x over the text that passes. Where inputs go together, an
error in one column can be made up for in another. So the columns are rounded one after the other, the busiest
first, and what the rounding of one left is spread over those still to come, as the inverse of the inputs'
second moments says. The format stays as it is: each block has the scale that `quantization` finds for it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mothertongue_export.quantization import (
    LARGEST_STEPS,
    QuantizedMatrix,
    Storage,
    block_scales,
    from_steps,
)

# Of the mean of the diagonal, added to it as in the paper: columns that were never busy get no wild values.
DAMPING = 0.01
# No value moves further from its weight than this many steps; measured on nano, it costs nothing.
FARTHEST_STEPS = 1.5
SPAN = 32  # columns between two products with all that are left


@dataclass(frozen=True, kw_only=True)
class Spread:
    """How the error of each input column of a matrix is spread over those rounded after it."""

    order: NDArray[np.intp]  # (K,) columns, the busiest first
    factor: NDArray[np.float32]  # (K, K) upper, in that order; factor.T @ factor inverts the damped moments
    importance: NDArray[np.float32]  # (K,) mean square of each column, in its own place


def spread_of(moments: NDArray[np.float64]) -> Spread:
    """Return the spread for inputs with the second moments `moments` (K, K), the mean of x[:, None] * x."""
    busy = np.diag(moments)
    order = np.argsort(-busy, kind="stable")
    damped = moments[np.ix_(order, order)] + np.eye(len(busy)) * (DAMPING * busy.mean() or 1.0)
    factor = np.linalg.cholesky(np.linalg.inv(damped)).T
    return Spread(
        order=order,
        factor=np.ascontiguousarray(factor, np.float32),
        importance=busy.astype(np.float32),
    )


def compensate(weight: NDArray[np.float32], storage: Storage, spread: Spread) -> QuantizedMatrix:
    """Return `weight` (N, K) in blocks along K, each column rounded with the errors of those before it."""
    scales = block_scales(weight, storage, spread.importance)
    exact = np.ascontiguousarray(weight.T[spread.order], np.float32)  # (K, N), columns as rows from here on
    sizes = np.ascontiguousarray(scales.T)[spread.order // storage.block_size]
    left, factor = exact.copy(), spread.factor
    steps = np.empty_like(exact)
    for begin in range(0, len(exact), SPAN):
        end = min(begin + SPAN, len(exact))
        errors = np.empty_like(exact[begin:end])
        for column in range(begin, end):
            steps[column] = _round(left[column], exact[column], sizes[column], storage.bits)
            error = (left[column] - steps[column] * sizes[column]) / factor[column, column]
            left[column + 1 : end] -= factor[column, column + 1 : end, None] * error
            errors[column - begin] = error
        left[end:] -= factor[begin:end, end:].T @ errors
    signed = np.empty_like(weight, np.float32)
    signed[:, spread.order] = steps.T
    return from_steps(signed, scales, storage)


def _round(
    left: NDArray[np.float32], exact: NDArray[np.float32], sizes: NDArray[np.float32], bits: int
) -> NDArray[np.float32]:
    """Return the steps of one column (N,): nearest to `left`, near to `exact`, within the format."""
    divisors = np.where(sizes > 0, sizes, np.float32(1))  # a block of zeros has scale 0
    own = exact / divisors
    near = np.rint(left / divisors).clip(np.ceil(own - FARTHEST_STEPS), np.floor(own + FARTHEST_STEPS))
    steps: NDArray[np.float32] = near.clip(-LARGEST_STEPS[bits], LARGEST_STEPS[bits])
    return steps
