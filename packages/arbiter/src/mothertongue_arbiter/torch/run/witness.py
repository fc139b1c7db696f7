"""The torch model as a witness: moves its own parameters, in float64, and reads its own loss."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from mothertongue_arbiter.direction import Direction, scale_of, signs
from mothertongue_arbiter.run import TrainingRun, declarations
from mothertongue_arbiter.torch.run.backward import Backward, real, same_start, scalar


class TorchWitness:
    """Answers for one batch of a run in float64; `uses` has the order in which its parameters are used."""

    def __init__(
        self, run: TrainingRun, batch: Any, backward: Backward, *, uses: Mapping[int, int], seed: int
    ) -> None:
        self.seed = seed
        self._run = run
        self._batch = batch
        self._gradients = backward.gradients
        named = {
            name: parameter
            for name, parameter in run.model.named_parameters()
            if parameter.is_floating_point() or parameter.is_complex()
        }
        self._parameters: dict[str, Tensor] = {
            name: real(parameter.detach()) for name, parameter in named.items()
        }
        self._names = sorted(named, key=lambda name: uses.get(id(named[name]), len(uses)))
        self._kept_rows = _kept_rows(run)
        self._moved: tuple[Direction, dict[str, Tensor]] | None = None

    def names(self) -> list[str]:
        return self._names

    def scale(self, name: str) -> float:
        value = self._parameters[name].detach()
        return scale_of(float(value.square().mean().sqrt())) if value.numel() else 0.0

    def gradient_norm(self, name: str) -> float | None:
        gradient = self._gradients[name]
        return None if gradient is None else float(gradient.norm())

    def slope(self, direction: Direction) -> tuple[float, float]:
        predicted, squares = 0.0, 0.0
        for name, step in self._steps(direction).items():
            gradient = self._gradients[name]
            if gradient is not None:
                predicted += float((gradient * step).sum())
                squares += float((gradient * step).square().sum())
        return predicted, squares**0.5

    def loss_at(self, direction: Direction, epsilon: float) -> float:
        start = same_start(self._run.model, self.seed)
        with torch.no_grad(), self.moved_by(direction, epsilon), start:
            return float(scalar(self._run.loss(self._run.model, self._batch)))

    @contextlib.contextmanager
    def moved_by(self, direction: Direction, epsilon: float) -> Iterator[None]:
        """Move the parameters by `epsilon` along `direction` inside."""
        home = {name: self._parameters[name].detach().clone() for name in direction.scales}
        try:
            for name, step in self._steps(direction).items():
                self._parameters[name].data.add_(step, alpha=epsilon)
            yield
        finally:
            for name, value in home.items():
                self._parameters[name].data.copy_(value)

    def _steps(self, direction: Direction) -> dict[str, Tensor]:
        if self._moved is None or self._moved[0] is not direction:  # four losses share one direction
            steps = {name: self._step(name, direction) for name in direction.scales}
            self._moved = direction, steps
        return self._moved[1]

    def _step(self, name: str, direction: Direction) -> Tensor:
        parameter, gradient = self._parameters[name], self._gradients[name]
        if direction.along == "gradient":
            assert gradient is not None
            root_mean_square = float(gradient.square().mean().sqrt())
            return self._movable(name, gradient * (direction.scales[name] / root_mean_square))
        random = torch.from_numpy(signs(direction.seed, name, parameter.numel())).to(parameter)
        step = random.reshape(parameter.shape) * direction.scales[name]
        if direction.along == "zeros" and gradient is not None:
            step = step * (gradient == 0)
        return self._movable(name, step)

    def _movable(self, name: str, step: Tensor) -> Tensor:
        if name in self._kept_rows:
            step[self._kept_rows[name]] = 0
        return step


def _kept_rows(run: TrainingRun) -> dict[str, int]:
    """Return the row of each embedding that gets no gradient on purpose: a `padding_idx` that only pads."""
    declared = declarations(run)
    if declared.pad_token is None or declared.pad_token in declared.must_learn:
        return {}
    names = {id(parameter): name for name, parameter in run.model.named_parameters()}
    return {
        names[id(module.weight)]: module.padding_idx
        for module in run.model.modules()
        if isinstance(module, nn.Embedding) and module.padding_idx == declared.pad_token
    }
