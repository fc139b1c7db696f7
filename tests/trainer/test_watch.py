import dataclasses
import json
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from mothertongue_arbiter.torch.monitor import Monitor
from mothertongue_trainer import loop, watch
from mothertongue_trainer.events import Event, MonitorWarned
from mothertongue_trainer.loop import train
from mothertongue_trainer.optimizer import MuonAdamW, build_optimizer
from mothertongue_trainer.recipe import Recipe
from mothertongue_trainer.rows import Batch, Rows


@pytest.fixture
def trained(encoded_run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that trains 12 steps without an audit and returns the run folder and the events."""
    torch.set_num_threads(1)
    for name in ("tokenizer", "tokens"):
        shutil.copytree(encoded_run.folder / name, tmp_path / name)
    # Steps this small would be looked at only now and then.
    monkeypatch.setattr(watch, "Monitor", partial(Monitor, every=1, budget=None, patience=4))
    monkeypatch.setattr(loop, "_audit", lambda run, audited, step: ("PASS", "0"))

    def run(*, monitor: bool = True, rows: Any = None) -> tuple[Path, list[Event]]:
        recipe: Recipe = encoded_run.recipe
        training = dataclasses.replace(recipe.training, tokens=12 * recipe.step_tokens)
        audit = dataclasses.replace(recipe.audit, monitor=monitor)
        recipe = dataclasses.replace(recipe, training=training, audit=audit)
        told: list[Event] = []
        train(recipe, tmp_path, progress=told.append, rows=rows and rows.open(recipe, tmp_path))
        return tmp_path, told

    return run


def warnings(told: list[Event]) -> list[str]:
    return [line for event in told if isinstance(event, MonitorWarned) for line in event.lines]


def test_a_healthy_training_leaves_a_file_without_findings(trained: Any) -> None:
    folder, told = trained()
    report = json.loads((folder / "audit" / "monitor.json").read_text())
    assert (report["verdict"], report["steps"], report["findings"]) == ("PASS", 12, [])
    assert "model.layers.0.self_attn.q_proj.weight" in report["tensors"]
    assert warnings(told) == []


def test_a_batch_that_comes_again_is_told_at_its_step(trained: Any) -> None:
    class Stuck(Rows):
        def batch(self, step: int) -> Batch:
            return super().batch(3 if step == 5 else step)

    _, told = trained(rows=Stuck)
    (line,) = warnings(told)
    assert line.startswith("REPEATED: batch (step 5 has the rows of step 3). Likely cause:")


def test_a_recipe_can_do_without(trained: Any) -> None:
    folder, _ = trained(monitor=False)
    assert not (folder / "audit" / "monitor.json").exists()


def test_the_weights_are_the_same_bit_for_bit_with_and_without(trained: Any, tmp_path: Path) -> None:
    written = []
    for monitor in (True, False):
        folder, _ = trained(monitor=monitor)
        (weights,) = folder.glob("checkpoints/*/model.safetensors")
        written.append(weights.read_bytes())
        shutil.rmtree(folder / "checkpoints")
    assert written[0] == written[1]


def test_a_parameter_that_the_optimizer_forgets_is_told(
    trained: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def forgetful(model: Any, config: Any) -> MuonAdamW:
        optimizer = build_optimizer(model, config)
        for group in optimizer.param_groups:
            group["params"] = [p for p in group["params"] if p is not model.head_weight]
        return optimizer

    monkeypatch.setattr(loop, "build_optimizer", forgetful)
    _, told = trained()
    assert warnings(told)[0].startswith("FROZEN: model.embed_tokens.weight (in no parameter group")
