"""A frame and its oracle as a witness: gradients from the file, in pieces, and losses from the process."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from mothertongue_arbiter.direction import Direction, scale_of, signs
from mothertongue_arbiter.frame import Frame
from mothertongue_arbiter.oracle import Ranges

MOST_RUNS = 2048  # of elements with gradient zero, the longest of a tensor; a question stays short


class Oracle(Protocol):
    """What a frame is judged by; `LossOracle` is one in another process."""

    def loss(self, seed: int, steps: Mapping[str, float], only: Ranges | None = None) -> float:
        """Return the loss after these steps, of the elements in `only` where a tensor is named there."""

    def knows_only(self) -> bool:
        """Return whether it can move a part of a tensor."""


class FrameWitness:
    """Answers from a frame and its oracle. No tensor is held: each is read once for each question."""

    def __init__(self, frame: Frame, oracle: Oracle | None, *, seed: int) -> None:
        self.seed = seed
        self.frame = frame
        self._oracle = oracle
        self.shapes = {tensor.name: tensor.shape for tensor in frame.tensors if tensor.trainable}
        self.norm = cache(self._norm)
        self._slope = cache(self._slope_of_one)
        self.zero_runs = cache(self._zero_runs)

    def names(self) -> list[str]:
        return list(self.shapes)

    def scale(self, name: str) -> float:
        count = math.prod(self.shapes[name])
        return scale_of(self.norm(f"param/{name}") / count**0.5) if count else 0.0

    def gradient_norm(self, name: str) -> float | None:
        return self.norm(f"grad/{name}") if f"grad/{name}" in self.frame.arrays else None

    def slope(self, direction: Direction) -> tuple[float, float]:
        predicted, squares = 0.0, 0.0
        if direction.along == "zeros":  # where the gradient is zero, it predicts nothing
            return predicted, squares
        for name, scale in direction.scales.items():
            if f"grad/{name}" in self.frame.arrays:
                predicted += scale * self._slope(direction.seed, name)
                squares += (scale * self.norm(f"grad/{name}")) ** 2
        return predicted, squares**0.5

    def loss_at(self, direction: Direction, epsilon: float) -> float:
        assert self._oracle is not None
        assert direction.along != "gradient", "an oracle only knows hashed directions"
        steps = {name: epsilon * scale for name, scale in direction.scales.items()}
        if direction.along == "signs":
            return self._oracle.loss(direction.seed, steps)
        runs = {name: found for name in steps if (found := self.zero_runs(name))}
        return self._oracle.loss(direction.seed, {name: steps[name] for name in runs}, runs)

    def indexed_gradient(self, name: str) -> Iterator[tuple[NDArray[np.uint64], NDArray[np.float64]]]:
        """Yield the gradient of `name` in pieces, with the number of each element."""
        for start, piece in self.frame.pieces(f"grad/{name}"):
            yield np.arange(start, start + piece.size, dtype=np.uint64), piece

    def _norm(self, key: str) -> float:
        """Return the Euclidean norm of an array; not finite if one of its entries is not."""
        norm = 0.0
        for _, piece in self.frame.pieces(key):
            largest = float(np.abs(piece).max())
            if not math.isfinite(largest):
                return largest
            if largest:  # divided first: squares of large or tiny entries leave the range of float64
                norm = math.hypot(norm, largest * float(np.linalg.norm(piece / largest)))
        return norm

    def _slope_of_one(self, seed: int, name: str) -> float:
        """Return the gradient of `name` times its signs."""
        return math.fsum(
            float(piece @ signs(seed, name, piece.size, start=start).astype(np.float64))
            for start, piece in self.frame.pieces(f"grad/{name}")
        )

    def _zero_runs(self, name: str) -> list[tuple[int, int]]:
        """Return the longest runs of elements whose gradient is exactly zero, as (first, end)."""
        runs: list[tuple[int, int]] = []
        for start, piece in self.frame.pieces(f"grad/{name}"):
            edges = np.flatnonzero(np.diff(np.concatenate(([0], piece == 0, [0])))) + start
            runs += [(int(first), int(end)) for first, end in edges.reshape(-1, 2)]
            runs = sorted(runs, key=lambda run: run[0] - run[1])[:MOST_RUNS]
        return sorted(runs)
