"""The arbiter's monitor beside our own training: warnings while it runs, and a file when it ends."""

from __future__ import annotations

from pathlib import Path

from mothertongue_arbiter.certificate import Finding
from mothertongue_arbiter.monitoring import sentences
from mothertongue_arbiter.run import Declared
from mothertongue_arbiter.torch.monitor import Monitor
from mothertongue_trainer.events import Listener, MonitorWarned
from mothertongue_trainer.model import Qwen3
from mothertongue_trainer.optimizer import MuonAdamW
from mothertongue_trainer.recipe import Recipe
from mothertongue_trainer.step import TensorBatch


class TrainingWatch:
    """Observes every step inside its context, and leaves `audit/monitor.json`.

    With `monitor = false` under `[audit]` of the recipe it does nothing.
    """

    def __init__(
        self, recipe: Recipe, run_folder: Path, model: Qwen3, optimizer: MuonAdamW, *, progress: Listener
    ) -> None:
        self._path = run_folder / "audit" / "monitor.json"
        self._progress = progress
        self._step = 0  # the last one that was observed
        # A row is made of other pieces each time, so no batch may ever come again.
        declared = Declared(epoch_steps=recipe.steps)
        self._monitor = Monitor(model, optimizer, declared=declared) if recipe.audit.monitor else None

    def __enter__(self) -> TrainingWatch:
        return self

    def __exit__(self, *error: object) -> None:
        if self._monitor is not None:
            self._tell(self._monitor.close())
            self._monitor.write(self._path)

    def observe(self, step: int, batch: TensorBatch, loss: float) -> None:
        """Look at step `step`, just done, while its gradients are still there."""
        if self._monitor is not None:
            self._step = step + 1
            self._tell(self._monitor.observe(step, batch, loss))

    def _tell(self, found: tuple[Finding, ...]) -> None:
        if found:
            self._progress(MonitorWarned(step=self._step, lines=tuple(sentences(found))))
