"""8-bit block-wise symmetric quantization, in the layout of onnxruntime's MatMulNBits.

A row of a weight (N, K) is cut into blocks of `block_size` values along K. Each block has one float32 scale,
max|w| / 127, and stores round(w / scale) + 128 as one unsigned byte: 128 is the zero point that the operator
assumes when none is given. A last block that K does not fill is padded with zeros.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

BLOCK_SIZES = (16, 32, 64, 128, 256)  # what the operator accepts
ZERO_POINT = 128
LARGEST_STEP = 127  # symmetric: -128 stays unused, so that w and -w have the same error


@dataclass(frozen=True, kw_only=True)
class QuantizedMatrix:
    """A weight (N, K) in 8 bits: about 1 + 4 / block_size bytes a value."""

    steps: NDArray[np.uint8]  # (N, blocks, block_size)
    scales: NDArray[np.float32]  # (N, blocks)
    columns: int  # K, without the padding

    @property
    def rows(self) -> int:
        return int(self.steps.shape[0])

    @property
    def block_size(self) -> int:
        return int(self.steps.shape[2])


def quantize(weight: NDArray[np.float32], block_size: int) -> QuantizedMatrix:
    """Return `weight` (N, K), rounded to nearest in blocks along K.

    Raises:
        ValueError: the block size is none of `BLOCK_SIZES`.
    """
    if block_size not in BLOCK_SIZES:
        raise ValueError(f"block size {block_size}: one of {BLOCK_SIZES} expected")
    rows, columns = weight.shape
    padded = np.pad(weight.astype(np.float32), ((0, 0), (0, -columns % block_size)))
    blocks = padded.reshape(rows, -1, block_size)
    scales = (np.abs(blocks).max(axis=2) / LARGEST_STEP).astype(np.float32)
    divisors = np.where(scales > 0, scales, 1)[:, :, None]  # a block of zeros has scale 0
    steps = np.rint(blocks / divisors).clip(-LARGEST_STEP, LARGEST_STEP) + ZERO_POINT
    return QuantizedMatrix(steps=steps.astype(np.uint8), scales=scales, columns=columns)


def dequantize(matrix: QuantizedMatrix) -> NDArray[np.float32]:
    """Return the weight (N, K) that `matrix` stands for: what the kernels multiply by."""
    signed = matrix.steps.astype(np.float32) - ZERO_POINT
    return (signed * matrix.scales[:, :, None]).reshape(matrix.rows, -1)[:, : matrix.columns]
