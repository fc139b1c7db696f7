"""The JAX program as a witness: its parameters moved, in float64, and its own loss read."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from mothertongue_arbiter.difference import Floor, measure_floor
from mothertongue_arbiter.direction import Direction, scale_of, signs
from mothertongue_arbiter.errors import ArbiterError
from mothertongue_arbiter.jax.trees import Array, Parameters
from mothertongue_arbiter.judgement import Judge

# Of the scale of each tensor: enough for a float32 inside to round another way, and too little for a smooth
# loss to bend.
JITTERS = (1e-6, 1e-7, 1e-8)


class JaxWitness:
    """Answers for one batch in float64; `order` has the names in the order in which they are used."""

    def __init__(
        self,
        loss: Callable[[Any, Any], Any],
        parameters: Parameters,
        batch: Any,
        gradients: Mapping[str, Any],
        *,
        order: Sequence[str],
        seed: int,
    ) -> None:
        self.seed = seed
        self._loss = loss
        self._parameters = parameters
        self._batch = batch
        self._order = list(order)
        self._gradients = {
            name: np.asarray(gradient).astype(np.float64) for name, gradient in gradients.items()
        }
        self._moved: tuple[Direction, dict[str, Array]] | None = None

    def names(self) -> list[str]:
        return self._order

    def scale(self, name: str) -> float:
        value = self._parameters.values[name]
        return scale_of(float(np.sqrt(np.mean(np.square(value))))) if value.size else 0.0

    def gradient_norm(self, name: str) -> float | None:
        gradient = self._gradients.get(name)
        return None if gradient is None else float(np.linalg.norm(gradient))

    def slope(self, direction: Direction) -> tuple[float, float]:
        predicted, squares = 0.0, 0.0
        for name, step in self._steps(direction).items():
            gradient = self._gradients.get(name)
            if gradient is not None:
                predicted += float(np.sum(gradient * step))
                squares += float(np.sum(np.square(gradient * step)))
        return predicted, squares**0.5

    def loss_at(self, direction: Direction, epsilon: float) -> float:
        return float(scalar(self._loss(self.moved_by(direction, epsilon), self._batch)))

    def moved_by(self, direction: Direction, epsilon: float) -> Any:
        """Return the parameters, as a tree in float64, moved by `epsilon` along `direction`."""
        values = self._parameters.values
        steps = self._steps(direction)
        return self._parameters.tree({name: values[name] + epsilon * step for name, step in steps.items()})

    def _steps(self, direction: Direction) -> dict[str, Array]:
        if self._moved is None or self._moved[0] is not direction:  # four losses share one direction
            self._moved = direction, {name: self._step(name, direction) for name in direction.scales}
        return self._moved[1]

    def _step(self, name: str, direction: Direction) -> Array:
        value, gradient = self._parameters.values[name], self._gradients.get(name)
        if direction.along == "gradient":
            assert gradient is not None
            root_mean_square = float(np.sqrt(np.mean(np.square(gradient))))
            along: Array = gradient * (direction.scales[name] / root_mean_square)
            return along
        ones: Array = signs(direction.seed, name, value.size).reshape(value.shape).astype(np.float64)
        step: Array = ones * direction.scales[name]
        if direction.along == "zeros" and gradient is not None:
            step = step * (gradient == 0)
        return step


class JaxJudge(Judge):
    """Judges a loss that may round to lower precision inside: its floor is then the size of such a jump."""

    rounds = False

    @property
    def floor(self) -> Floor:
        if self._floor is None:
            plain = measure_floor(self.witness)
            self._floor = self._with_jumps(plain) if self.rounds else plain
        return self._floor

    def _with_jumps(self, plain: Floor) -> Floor:
        """Step a hair's breadth to both sides: what does not cancel is what a float32 inside makes of it."""
        scales = {name: self.witness.scale(name) for name in self.witness.names()}
        jumps = [plain.spread]
        for number, jitter in enumerate(JITTERS):
            direction = Direction(seed=self.witness.seed + 1 + number, scales=scales)
            both = (self.witness.loss_at(direction, sign * jitter) for sign in (1, -1))
            jumps.append(abs(sum(both) / 2 - plain.loss))
        return Floor(loss=plain.loss, spread=max(jumps), single_precision=plain.single_precision)


def gradient_of(
    loss: Callable[[Any, Any], Any],
    gradients: Callable[[Any, Any], Any] | None,
    parameters: Parameters,
    batch: Any,
) -> dict[str, Any]:
    """Return the gradient by name, of `gradients` as the program computes it, or of `jax.grad`."""
    tree = parameters.tree()
    if gradients is not None:
        return parameters.named(gradients(tree, batch))
    return parameters.named(jax.grad(loss, allow_int=True)(tree, batch))


def scalar(loss: Any) -> Any:
    """Return `loss`, if it is one floating-point number, or say what it is instead."""
    if hasattr(loss, "shape") and loss.shape == () and jnp.issubdtype(loss.dtype, jnp.floating):
        return loss
    found = f"an array of shape {loss.shape} and type {loss.dtype}" if hasattr(loss, "shape") else None
    found = found or f"a {type(loss).__name__}"
    raise ArbiterError(
        f"loss: {found} found, one floating-point number expected; return the loss that is differentiated"
    )
