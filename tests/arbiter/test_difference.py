import numpy as np
import pytest

from mothertongue_arbiter.difference import depends, measure, measure_floor
from mothertongue_arbiter.direction import Direction, signs


class Quartic:
    """A loss with a known derivative: sum of x^4 / 4 + 3."""

    seed = 0

    def __init__(self, *, factor=1.0, dtype=np.float64, noise=0.0):
        self.x = np.linspace(0.5, 2.0, 12)
        self.gradient = factor * self.x**3
        self.dtype, self.noise = dtype, noise
        self.random = np.random.default_rng(0)

    def names(self):
        return ["x"]

    def scale(self, name):
        return 1.0

    def gradient_norm(self, name):
        return float(np.linalg.norm(self.gradient))

    def loss_at(self, direction, epsilon):
        moved = self.x + epsilon * signs(direction.seed, "x", 12) if direction.scales else self.x
        return float(self.dtype((moved**4).sum() / 4 + 3 + self.noise * self.random.normal()))

    def slope(self, direction):
        return float(self.gradient @ signs(direction.seed, "x", 12)), float(np.linalg.norm(self.gradient))


def measured(witness):
    direction = Direction(seed=3, scales={"x": 1.0})
    return measure(witness, direction, measure_floor(witness))


def test_the_right_gradient_agrees_to_many_digits():
    measurement = measured(Quartic())
    assert measurement.verdict == "OK"
    assert measurement.relative_error < 1e-9  # rounding of a loss of 30 over a step of 1e-5


@pytest.mark.parametrize("factor", [0.0, 0.5, 1.001, 1.0002, -1.0])
def test_a_wrong_gradient_is_wrong_down_to_the_fourth_digit(factor):
    assert measured(Quartic(factor=factor)).verdict == "WRONG"


def test_a_float32_loss_is_never_ok_and_never_wrong():
    assert measured(Quartic(dtype=np.float32)).verdict == "INCONCLUSIVE"
    assert measured(Quartic(dtype=np.float32, factor=1.001)).verdict == "INCONCLUSIVE"


def test_a_noisy_loss_is_inconclusive():
    assert measured(Quartic(noise=1e-6)).verdict == "INCONCLUSIVE"


def test_a_noisy_loss_still_convicts_a_gradient_of_the_wrong_sign():
    assert measured(Quartic(noise=1e-8, factor=-1.0)).verdict == "WRONG"


def test_a_loss_that_is_not_finite_is_said_to_be():
    witness = Quartic()
    witness.x = witness.x * np.nan
    assert measured(witness).verdict == "NONFINITE"


def test_no_gradient_and_no_derivative_is_zero():
    witness = Quartic(factor=0.0)
    witness.loss_at = lambda direction, epsilon: 30.1
    assert measured(witness).verdict == "ZERO"


class Kinked(Quartic):
    """The same loss, and half of a ReLU whose kink is `distance` away along the direction."""

    def __init__(self, distance, *, jump=0.1, factor=1.0):
        super().__init__(factor=factor)
        self.distance, self.jump = distance, jump

    def loss_at(self, direction, epsilon):
        smooth = super().loss_at(direction, epsilon)
        return smooth + self.jump * max(0.0, (epsilon if direction.scales else 0.0) - self.distance)


@pytest.mark.parametrize("distance", [3e-5, 3e-6, 3e-7, 3e-8, 1e-9])
def test_a_kink_near_by_is_never_taken_for_a_wrong_gradient(distance):
    measurement = measured(Kinked(distance))
    assert measurement.verdict in ("OK", "INCONCLUSIVE")
    assert measurement.kinked or measurement.verdict == "OK"
    assert (distance < 1e-6) == (measurement.verdict == "INCONCLUSIVE")


def test_a_wrong_gradient_is_wrong_beside_a_kink_too():
    assert measured(Kinked(3e-6, factor=1.01)).verdict == "WRONG"


def test_a_loss_that_rounds_depends_on_what_moves_it_a_long_step_away():
    witness = Quartic()
    smooth = witness.loss_at
    witness.loss_at = lambda direction, epsilon: round(smooth(direction, epsilon) * 64) / 64
    direction = Direction(seed=3, scales={"x": 1.0})
    assert depends(witness, direction, measure_floor(witness))
    witness.loss_at = lambda direction, epsilon: 3.0
    assert not depends(witness, direction, measure_floor(witness))
