"""The witness that does not use autograd: what the loss does when the parameters are moved a little.

The slope of the loss along a direction is measured twice, with a step of epsilon and of epsilon/10, and
extrapolated (Richardson). What the two disagree about, and how far the loss repeats itself, is the
uncertainty. A judgement needs a signal of at least `SIGNAL_TO_NOISE` times that; else the answer is
INCONCLUSIVE, and no tolerance is loosened.

A kink (of a ReLU, of a routing) so close that both steps reach over it gives both the same wrong slope. It
shows in the bend of the loss: that of a smooth one falls with the step, that of a kink stays, and half of it
bounds the error of the slope.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np

from mothertongue_arbiter.direction import Direction

SIGNAL_TO_NOISE = 30.0
# Healthy models in true float64 agree to 1e-8; the smallest fault of the research zoo is off by 4e-4.
LARGEST_RELATIVE_ERROR = 1e-5
# In units of the scale of each tensor. The shorter ones are for kinks (ReLU, routing) that the first stepped
# over, and leave more of the rounding of the loss in the slope: which of them is best, only trying tells.
EPSILONS = (1e-4, 1e-5, 1e-6)
LONG = 1e-2  # over the steps of a loss that rounds
QUICK, QUICK_ERROR = 1e-5, 2e-5  # the step of a search, and the relative error that it takes for a fault
ROUNDING_OF_A_LOSS = 16 * 2.0**-52  # relative; a float64 sum over a batch is no better than this
REPEATS = 3


class Witness(Protocol):
    """One backward pass, and the loss that it belongs to."""

    @property
    def seed(self) -> int:
        """The seed of the first random direction."""

    def names(self) -> list[str]:
        """Return the tensors that can be moved, in forward order."""

    def scale(self, name: str) -> float:
        """Return the step of this tensor per unit of epsilon."""

    def gradient_norm(self, name: str) -> float | None:
        """Return the norm of its gradient; None when the framework returned none."""

    def loss_at(self, direction: Direction, epsilon: float) -> float:
        """Return the loss with the parameters moved by `epsilon` along `direction`."""

    def slope(self, direction: Direction) -> tuple[float, float]:
        """Return gradient times direction, and the root mean square that random signs would give it."""


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """The slope that the gradient predicts, and the slope that the loss really has."""

    predicted: float
    measured: float
    uncertainty: float  # of `measured`
    typical: float  # size of such a slope for random signs; the scale of relative errors
    single_precision: bool = False  # every loss was a float32 number
    kinked: bool = False  # the loss bends within the steps, by more than its noise

    @property
    def relative_error(self) -> float:
        """The disagreement over the size of the slopes; 0 when nothing is there to disagree about."""
        scale = max(self.typical, abs(self.measured))
        return abs(self.predicted - self.measured) / scale if scale else 0.0

    @property
    def verdict(self) -> Literal["OK", "WRONG", "ZERO", "NONFINITE", "INCONCLUSIVE"]:
        """ZERO: neither the gradient nor the loss moves."""
        scale = max(self.typical, abs(self.measured))
        if not math.isfinite(self.predicted + self.measured + self.uncertainty):
            return "NONFINITE"
        if self.single_precision:
            return "INCONCLUSIVE"
        if self.typical == 0 and abs(self.measured) < SIGNAL_TO_NOISE * self.uncertainty:
            return "ZERO"
        error = self.relative_error * scale
        if error > max(LARGEST_RELATIVE_ERROR * scale, SIGNAL_TO_NOISE * self.uncertainty):
            return "WRONG"
        resolved = LARGEST_RELATIVE_ERROR * scale >= self.uncertainty
        return "OK" if resolved and error <= LARGEST_RELATIVE_ERROR * scale else "INCONCLUSIVE"


@dataclass(frozen=True, kw_only=True)
class Floor:
    """How exactly the loss repeats itself where nothing moves."""

    loss: float
    spread: float
    single_precision: bool

    @property
    def noise(self) -> float:
        return self.spread + ROUNDING_OF_A_LOSS * max(abs(self.loss), 1.0)


def measure_floor(witness: Witness) -> Floor:
    """Repeat the loss at the same point; the spread is the noise that no difference can resolve."""
    still = Direction(seed=witness.seed, scales={})
    losses = [witness.loss_at(still, 0.0) for _ in range(REPEATS)]
    return Floor(
        loss=losses[0], spread=max(losses) - min(losses), single_precision=all(map(_is_single, losses))
    )


def measure(witness: Witness, direction: Direction, floor: Floor) -> Measurement:
    """Compare the slope that the gradient predicts along `direction` with the slope of the loss."""
    predicted, typical = witness.slope(direction)
    best: Measurement | None = None
    for epsilon in EPSILONS:
        coarse = _Central.of(witness, direction, floor, epsilon)
        fine = _Central.of(witness, direction, floor, epsilon / 10)
        noise = floor.noise / (epsilon / 10)
        kink = abs(10 * fine.bend - coarse.bend) / 9 / 2  # what of the bend does not fall with epsilon
        apart = abs(fine.slope - coarse.slope) / 9
        measurement = Measurement(
            predicted=predicted,
            # The error of a central difference falls as epsilon squared.
            measured=(100 * fine.slope - coarse.slope) / 99,
            uncertainty=noise + apart + max(0.0, kink - 3 * noise),
            typical=typical,
            single_precision=floor.single_precision and all(map(_is_single, (*coarse.losses, *fine.losses))),
            kinked=max(kink, apart) > SIGNAL_TO_NOISE * noise,
        )
        if best is None or measurement.uncertainty < best.uncertainty:
            best = measurement
        if best.verdict != "INCONCLUSIVE":
            break
    assert best is not None
    return best


def disagrees(witness: Witness, direction: Direction, floor: Floor) -> bool:
    """Tell quickly whether gradient and loss disagree, once a full measurement has shown a fault."""
    predicted, typical = witness.slope(direction)
    measured = (witness.loss_at(direction, QUICK) - witness.loss_at(direction, -QUICK)) / (2 * QUICK)
    scale = max(typical, abs(measured))
    return abs(predicted - measured) > max(QUICK_ERROR * scale, SIGNAL_TO_NOISE * floor.noise / QUICK)


@dataclass(frozen=True, kw_only=True)
class _Central:
    """A central difference: the slope, and how much larger it is ahead than behind."""

    slope: float
    bend: float
    losses: tuple[float, float]

    @classmethod
    def of(cls, witness: Witness, direction: Direction, floor: Floor, epsilon: float) -> _Central:
        ahead, behind = witness.loss_at(direction, epsilon), witness.loss_at(direction, -epsilon)
        return cls(
            slope=(ahead - behind) / (2 * epsilon),
            bend=(ahead - 2 * floor.loss + behind) / epsilon,
            losses=(ahead, behind),
        )


def moves(witness: Witness, direction: Direction, floor: Floor) -> bool:
    """Tell quickly whether the loss moves along `direction` at all; what it does not move, no slope is of."""
    apart = witness.loss_at(direction, EPSILONS[0]) - witness.loss_at(direction, -EPSILONS[0])
    return abs(apart) > SIGNAL_TO_NOISE * floor.noise


def depends(witness: Witness, direction: Direction, floor: Floor) -> bool:
    """Tell whether the loss is another one a long step away, as one that is constant in between may be."""
    apart = max(abs(witness.loss_at(direction, step) - floor.loss) for step in (LONG, -LONG))
    return apart > SIGNAL_TO_NOISE * floor.noise


def _is_single(loss: float) -> bool:
    return math.isfinite(loss) and float(np.float32(loss)) == loss
