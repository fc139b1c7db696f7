"""Does an oracle do what it is asked? Its mistakes about steps and signs would look like a wrong backward."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from mothertongue_arbiter.certificate import Check, Verdict
from mothertongue_arbiter.difference import SIGNAL_TO_NOISE, Floor
from mothertongue_arbiter.direction import Direction, signs_at
from mothertongue_arbiter.frame_witness import FrameWitness

NAME = "answers of the oracle"
EPSILON = 1e-4  # the error of a central difference is its square
NEAR = 1e-4  # relative to a typical slope: by chance, two slopes in 10,000 are so near
SEEDS = 2  # directions along which a mistaken convention must explain the losses

Signs = Callable[[int, str, tuple[int, ...], NDArray[np.uint64]], NDArray[np.int8]]
# What has been got wrong in a first version of an oracle, and how its signs then are.
MISTAKES: dict[str, Signs] = {
    "every step were subtracted (or all gradients were of minus the loss)": lambda seed, name, shape, at: (
        -signs_at(seed, name, at)
    ),
    "every sign were +1": lambda seed, name, shape, at: np.ones(at.shape, dtype=np.int8),
    "elements were counted from 1": lambda seed, name, shape, at: signs_at(seed, name, at + np.uint64(1)),
    "i stood for i + 1": lambda seed, name, shape, at: signs_at(seed, name, at - np.uint64(1)),
    "elements were counted in column-major order": lambda seed, name, shape, at: signs_at(
        seed, name, _column_major(shape, at)
    ),
    "the name of a tensor were not hashed": lambda seed, name, shape, at: signs_at(seed, "", at),
}


def answers_of_the_oracle(witness: FrameWitness, alive: list[str], floor: Floor) -> Check:
    """The oracle moves what it is told to, by the signs of the specification, and puts it back.

    Only what explains the losses exactly is held against it: any other disagreement is for the gradients.
    """
    if not alive:
        return Check(
            name=NAME, verdict=Verdict.INCONCLUSIVE, evidence="no gradient to compare its losses with"
        )
    scales = {name: witness.scale(name) for name in alive}
    measured, far = {}, 0
    for seed in range(witness.seed, witness.seed + SEEDS):
        direction = Direction(seed=seed, scales=scales)
        losses = [witness.loss_at(direction, EPSILON), witness.loss_at(direction, 0.0)]
        losses.append(witness.loss_at(direction, -EPSILON))
        predicted, typical = witness.slope(direction)
        if abs(losses[1] - floor.loss) > SIGNAL_TO_NOISE * floor.noise:
            change = f"the loss was {floor.loss:.9g} and is {losses[1]:.9g} after one question"
            return _failed(change, "weights that are not put back exactly after an answer")
        if set(losses) == {floor.loss} and abs(predicted) * EPSILON > SIGNAL_TO_NOISE * floor.noise:
            return _failed(
                f"{floor.loss:.9g} whatever is moved, where the gradient predicts a change of "
                f"{predicted * EPSILON:.1e}",
                "an oracle that ignores `steps`, or moves a copy of the weights",
            )
        measured[seed] = (losses[0] - losses[2]) / (2 * EPSILON)
        far += not abs(predicted - measured[seed]) <= NEAR * typical
    if far:
        for mistake, mistaken in MISTAKES.items():
            if all(_explains(witness, scales, seed, mistaken, slope) for seed, slope in measured.items()):
                return _failed(
                    f"its losses fit the gradients as if {mistake}",
                    "signs that are not those of docs/frame-format.md; compare its test vectors",
                )
    return Check(name=NAME, verdict=Verdict.PASS, evidence="it moves what it is told to, and puts it back")


def _explains(
    witness: FrameWitness, scales: dict[str, float], seed: int, mistaken: Signs, measured: float
) -> bool:
    predicted, squares = 0.0, 0.0
    for name, scale in scales.items():
        for at, piece in witness.indexed_gradient(name):
            predicted += scale * float(piece @ mistaken(seed, name, witness.shapes[name], at))
        squares += (scale * witness.norm(f"grad/{name}")) ** 2
    return abs(predicted - measured) <= NEAR * math.sqrt(squares)


def _column_major(shape: tuple[int, ...], elements: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return the column-major number of elements that are given by their row-major one."""
    if len(shape) < 2:
        return elements
    found: NDArray[np.int64] = np.ravel_multi_index(
        np.unravel_index(elements.astype(np.int64), shape), shape, order="F"
    )
    return found.astype(np.uint64)


def _failed(evidence: str, cause: str) -> Check:
    return Check(name=NAME, verdict=Verdict.FAIL, evidence=evidence, cause=cause)
