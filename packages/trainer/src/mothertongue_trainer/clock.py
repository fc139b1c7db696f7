"""How fast a run is, and how long it will take."""

from __future__ import annotations

import time

from mothertongue_trainer.events import RateMeasured
from mothertongue_trainer.metrics import flops_per_token, flops_utilisation
from mothertongue_trainer.recipe import Recipe

RECENT_STEPS = 4  # what a forecast looks at


class StepClock:
    """Counts the seconds spent inside its context, one step each time, and tells rates.

    Audits and checkpoints stay outside, so that rates are those of the arithmetic.
    """

    def __init__(self, recipe: Recipe, *, device: str, seconds: float) -> None:
        self.seconds = seconds  # of all steps since the start of the run
        self._recipe = recipe
        self._device = device
        self._lap: list[float] = []
        self._recent: list[float] = []

    def __enter__(self) -> None:
        self._began = time.perf_counter()

    def __exit__(self, *error: object) -> None:
        took = time.perf_counter() - self._began
        self.seconds += took
        self._lap.append(took)
        self._recent = [*self._recent, took][-RECENT_STEPS:]

    def lap(self) -> float:
        """Return the tokens per second since the last call."""
        rate = len(self._lap) * self._recipe.step_tokens / sum(self._lap)
        self._lap = []
        return rate

    def forecast(self, steps_left: int) -> RateMeasured:
        """Return what the last few steps say about the rest."""
        recipe = self._recipe
        step_seconds = sum(self._recent) / len(self._recent)
        rate = recipe.step_tokens / step_seconds
        flops = flops_per_token(
            recipe.model, recipe.tokenizer.vocabulary, sequence_tokens=recipe.training.sequence_tokens
        )
        return RateMeasured(
            tokens_per_second=rate,
            minutes_left=steps_left * step_seconds / 60,
            flops_utilisation=flops_utilisation(rate * flops, self._device),
        )
