"""Block-wise symmetric quantization to 8 or 4 bits, in the layout of onnxruntime's MatMulNBits.

A row of a weight (N, K) is cut into blocks of `block_size` values along K. Each block has one float32 scale,
and stores round(w / scale) + zero point as an unsigned number, two of them in a byte at 4 bits. The zero
point is the middle, which the operator assumes when none is given. A last block that K does not fill is
padded with zeros.

The scale is max|w| / largest step (round to nearest), or a smaller one that cuts the largest values off where
this lowers the error of the block: each column weighs as much as the mean square of what it is multiplied by.
`compensation` finds other steps on the same scales.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

BLOCK_SIZES = (16, 32, 64, 128, 256)  # what the operator accepts
ZERO_POINTS = {8: 128, 4: 8}
LARGEST_STEPS = {8: 127, 4: 7}  # symmetric: -128 and -8 stay unused, so that w and -w have the same error
# Shares of max|w| that a searched scale may represent. Below, no block of a trained matrix gained.
SHARES = {8: (1.0, 0.98, 0.95), 4: (1.0, 0.95, 0.9, 0.85, 0.8, 0.75, 0.7)}
CHUNK_VALUES = 1 << 22  # quantized at once, so that a table of 60 M values needs no second copy of itself


@dataclass(frozen=True, kw_only=True)
class Storage:
    """How one matrix is stored: 8, 4 or 32 bits a value. 32 are floats, in one block."""

    bits: Literal[4, 8, 32]
    block_size: int = 0

    @property
    def bytes_per_value(self) -> float:
        """Bytes for a value and its share of the scale."""
        return self.bits / 8 + (4 / self.block_size if self.block_size else 0)

    def __str__(self) -> str:
        return f"{self.bits} bits, block {self.block_size}" if self.block_size else "float32"


FLOAT = Storage(bits=32)


@dataclass(frozen=True, kw_only=True)
class QuantizedMatrix:
    """A weight (N, K) in 8 or 4 bits."""

    steps: NDArray[np.uint8]  # (N, blocks, block_size * bits / 8)
    scales: NDArray[np.float32]  # (N, blocks)
    columns: int  # K, without the padding
    storage: Storage

    @property
    def rows(self) -> int:
        return int(self.steps.shape[0])

    @property
    def block_size(self) -> int:
        return self.storage.block_size


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How every matrix of a device graph is stored, by the name of its node.

    `fitted` matrices are stored as they are, all others rounded to nearest. The embedding shares the table of
    a tied head and so has no entry of its own.
    """

    default: Storage
    exceptions: Mapping[str, Storage] = field(default_factory=dict)
    fitted: Mapping[str, QuantizedMatrix] = field(default_factory=dict)

    def storage(self, node: str) -> Storage:
        return self.exceptions.get(node, self.default)


def quantize(
    weight: NDArray[np.float32], storage: Storage, importance: NDArray[np.float32] | None = None
) -> QuantizedMatrix:
    """Return `weight` (N, K) in blocks along K; with `importance` (K,), at the scales of least error.

    Raises:
        ValueError: the block size is none of `BLOCK_SIZES`, or the bits are none of 8 and 4.
    """
    if storage.block_size not in BLOCK_SIZES or storage.bits not in ZERO_POINTS:
        raise ValueError(f"{storage}: 8 or 4 bits and a block size of {BLOCK_SIZES} expected")
    rows, columns = weight.shape
    blocks = -(-columns // storage.block_size)
    steps = np.empty((rows, blocks, storage.block_size * storage.bits // 8), np.uint8)
    scales = np.empty((rows, blocks), np.float32)
    chunk = max(1, CHUNK_VALUES // columns)
    for begin in range(0, rows, chunk):
        part = slice(begin, begin + chunk)
        cut = _blocks(weight[part].astype(np.float32), storage.block_size)
        scales[part] = _scales(cut, storage.bits, _weights(importance, storage.block_size))
        steps[part] = _pack(_round(cut, scales[part], storage.bits), storage.bits)
    return QuantizedMatrix(steps=steps, scales=scales, columns=columns, storage=storage)


def block_scales(
    weight: NDArray[np.float32], storage: Storage, importance: NDArray[np.float32]
) -> NDArray[np.float32]:
    """Return the scales of least error (N, blocks) for `weight` (N, K), as `quantize` finds them."""
    weights = _weights(importance, storage.block_size)
    return _scales(_blocks(weight.astype(np.float32), storage.block_size), storage.bits, weights)


def from_steps(signed: NDArray[np.float32], scales: NDArray[np.float32], storage: Storage) -> QuantizedMatrix:
    """Return the matrix of whole numbers `signed` (N, K) times the `scales` (N, blocks) of their blocks."""
    steps = _pack(_blocks(signed, storage.block_size), storage.bits)
    return QuantizedMatrix(steps=steps, scales=scales, columns=signed.shape[1], storage=storage)


def dequantize(matrix: QuantizedMatrix) -> NDArray[np.float32]:
    """Return the weight (N, K) that `matrix` stands for: what the kernels multiply by."""
    signed = unpack(matrix.steps, matrix.storage.bits).astype(np.float32) - ZERO_POINTS[matrix.storage.bits]
    return (signed * matrix.scales[:, :, None]).reshape(matrix.rows, -1)[:, : matrix.columns]


def unpack(steps: NDArray[np.uint8], bits: int) -> NDArray[np.uint8]:
    """Return one number for each value of packed `steps`, whose last axis is that of a block."""
    if bits == 8:
        return steps
    halves: NDArray[np.uint8] = np.stack([steps & np.uint8(15), steps >> np.uint8(4)], axis=-1)
    return halves.reshape(*steps.shape[:-1], -1)


def _pack(signed: NDArray[np.float32], bits: int) -> NDArray[np.uint8]:
    whole = (signed + ZERO_POINTS[bits]).astype(np.uint8)
    if bits == 8:
        return whole
    # The first of two is the lower half.
    packed: NDArray[np.uint8] = whole[..., ::2] | (whole[..., 1::2] << np.uint8(4))
    return packed


def _blocks(weight: NDArray[np.float32], block_size: int) -> NDArray[np.float32]:
    padded = np.pad(weight, ((0, 0), (0, -weight.shape[1] % block_size)))
    return padded.reshape(len(weight), -1, block_size)


def _weights(importance: NDArray[np.float32] | None, block_size: int) -> NDArray[np.float32] | None:
    return None if importance is None else _blocks(importance[None], block_size)[0]


def _scales(
    blocks: NDArray[np.float32], bits: int, weights: NDArray[np.float32] | None
) -> NDArray[np.float32]:
    """Return one scale for each of `blocks` (N, blocks, block_size)."""
    largest: NDArray[np.float32] = (np.abs(blocks).max(axis=2) / LARGEST_STEPS[bits]).astype(np.float32)
    if weights is None:
        return largest
    best, least = largest, np.full(largest.shape, np.inf, np.float32)
    for share in SHARES[bits]:
        scales = largest * np.float32(share)
        wrong = _round(blocks, scales, bits) * scales[:, :, None] - blocks
        error = np.einsum("rbk,rbk,bk->rb", wrong, wrong, weights)
        better = error < least
        best, least = np.where(better, scales, best), np.where(better, error, least)
    return best


def _round(blocks: NDArray[np.float32], scales: NDArray[np.float32], bits: int) -> NDArray[np.float32]:
    largest = LARGEST_STEPS[bits]
    divisors = np.where(scales > 0, scales, np.float32(1))[:, :, None]  # a block of zeros has scale 0
    rounded: NDArray[np.float32] = np.rint(blocks / divisors).clip(-largest, largest)
    return rounded
