import dataclasses
import shutil
from pathlib import Path
from typing import Any

import torch

from mothertongue_trainer.events import Event
from mothertongue_trainer.loop import train


def test_a_run_tells_its_story_in_order(encoded_run: Any, tmp_path: Path) -> None:
    torch.set_num_threads(1)
    for name in ("tokenizer", "tokens"):
        shutil.copytree(encoded_run.folder / name, tmp_path / name)
    recipe = encoded_run.recipe
    training = dataclasses.replace(recipe.training, tokens=8 * recipe.step_tokens)
    told: list[Event] = []
    train(dataclasses.replace(recipe, training=training), tmp_path, progress=told.append)
    story = [type(event).__name__ for event in told if type(event).__name__ != "AuditCheckBegins"]
    steps = ["StepDone"] * 6 + ["RateMeasured"] + ["StepDone"] * 2
    assert story == ["RunOpened", "Audited", *steps, "StepMetrics", "CheckpointSaved"]
