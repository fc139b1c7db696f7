"""A witness whose gradients are taken without the factors that their author declares to put on them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from mothertongue_arbiter.difference import QUICK, Witness
from mothertongue_arbiter.direction import Direction


@dataclass(frozen=True, kw_only=True)
class Unscaled:
    """Answers as `witness` does, but for slopes: they are divided by the factor, where the gradient has it.

    A program may put it on in the backward, or only later, before its optimizer step; the loss tells which.
    """

    witness: Witness
    factors: Mapping[str, float]  # of the tensors that have one, none of them 0
    _found: dict[str, float] = field(default_factory=dict, init=False)

    @property
    def seed(self) -> int:
        return self.witness.seed

    def names(self) -> list[str]:
        return self.witness.names()

    def scale(self, name: str) -> float:
        return self.witness.scale(name)

    def gradient_norm(self, name: str) -> float | None:
        return self.witness.gradient_norm(name)

    def loss_at(self, direction: Direction, epsilon: float) -> float:
        return self.witness.loss_at(direction, epsilon)

    def slope(self, direction: Direction) -> tuple[float, float]:
        scaled = [name for name in direction.scales if name in self.factors]
        if not scaled:
            return self.witness.slope(direction)
        plain = [name for name in direction.scales if name not in self.factors]
        parts = [self.witness.slope(direction.only(plain))] if plain else []
        for name in scaled:
            predicted, typical = self.witness.slope(direction.only([name]))
            factor = self._factor(name)
            parts.append((predicted / factor, abs(typical / factor)))
        return sum(one for one, _ in parts), math.hypot(*(two for _, two in parts))

    def _factor(self, name: str) -> float:
        if name not in self._found:
            direction = Direction(seed=self.seed, scales={name: self.scale(name)})
            ahead, behind = self.loss_at(direction, QUICK), self.loss_at(direction, -QUICK)
            predicted, measured = self.witness.slope(direction)[0], (ahead - behind) / (2 * QUICK)
            factor = self.factors[name]
            is_on = abs(predicted / factor - measured) < abs(predicted - measured)
            self._found[name] = factor if is_on else 1.0
        return self._found[name]
