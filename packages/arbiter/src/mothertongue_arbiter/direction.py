"""Directions in parameter space that any language can regenerate, so that no tensor is ever sent.

Every element of a tensor gets a sign. With 64-bit arithmetic that wraps,

    mix(z):  z ^= z >> 30;  z *= 0xBF58476D1CE4E5B9
             z ^= z >> 27;  z *= 0x94D049BB133111EB
             return z ^ (z >> 31)
    key    = mix(seed) ^ crc32(name as UTF-8)
    sign_i = +1 if the top bit of mix(key + (i + 1) * 0x9E3779B97F4A7C15) is 0, else -1

where i counts the elements in row-major order from 0. This is the (i + 1)-th output of SplitMix64 (Steele,
Lea and Flood, 2014) seeded with `key`. Test vectors stand in docs/frame-format.md.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

GOLDEN = np.uint64(0x9E3779B97F4A7C15)
SMALLEST_SCALE = 2.0**-7  # a tensor that starts at zero must be pushed too


@dataclass(frozen=True, kw_only=True)
class Direction:
    """A step of each tensor in `scales`; tensors that are not named stay where they are.

    `along` says which way: `signs`, ±1 times the scale; `zeros`, the same but only where the gradient is
    exactly zero; `gradient`, the gradient itself, stretched to that root mean square.
    """

    seed: int
    scales: Mapping[str, float]
    along: Literal["signs", "zeros", "gradient"] = "signs"

    def only(self, names: list[str]) -> Direction:
        """Return the part of this direction that moves `names`."""
        return Direction(seed=self.seed, scales={name: self.scales[name] for name in names}, along=self.along)


def scale_of(root_mean_square: float) -> float:
    """Return the step, per unit of epsilon, of a tensor with that root mean square."""
    return max(root_mean_square, SMALLEST_SCALE)


def signs(seed: int, name: str, count: int, *, start: int = 0) -> NDArray[np.int8]:
    """Return the signs, +1 or -1, of the `count` elements of the tensor `name` from element `start` on."""
    return signs_at(seed, name, np.arange(start, start + count, dtype=np.uint64))


def signs_at(seed: int, name: str, elements: NDArray[np.uint64]) -> NDArray[np.int8]:
    """Return the signs of these elements of the tensor `name`."""
    with np.errstate(over="ignore"):
        key = _mix(np.array([seed], dtype=np.uint64)) ^ np.uint64(zlib.crc32(name.encode("utf-8")))
        outputs = _mix(key + (elements + np.uint64(1)) * GOLDEN)
    return np.where(outputs >> np.uint64(63), np.int8(-1), np.int8(1))


def _mix(z: NDArray[np.uint64]) -> NDArray[np.uint64]:
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))
