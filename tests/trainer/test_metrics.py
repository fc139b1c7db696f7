import json
from pathlib import Path

import pytest

from mothertongue_trainer.metrics import MetricsLog, StepMetrics, flops_per_token, flops_utilisation
from mothertongue_trainer.recipe import read_recipe

RECIPES = Path(__file__).parents[2] / "recipes"


def metrics(step: int) -> StepMetrics:
    return StepMetrics(
        step=step,
        loss=2.5,
        lr=0.02,
        tokens=64 * step,
        tokens_per_second=9.0,
        grad_norm=0.4,
        seconds=float(step),
    )


def steps(path: Path) -> list[int]:
    return [json.loads(line)["step"] for line in path.read_text(encoding="utf-8").splitlines()]


def test_a_line_is_on_the_disk_as_soon_as_it_is_written(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    with MetricsLog(path, resumed_step=0) as log:
        log.write(metrics(10))
        assert json.loads(path.read_text(encoding="utf-8")) == vars(metrics(10))


def test_resuming_drops_the_lines_of_steps_that_are_done_again(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    with MetricsLog(path, resumed_step=0) as log:
        for step in (10, 20, 30):
            log.write(metrics(step))
    with path.open("a", encoding="utf-8") as file:
        file.write('{"step": 4')  # cut short by a crash
    with MetricsLog(path, resumed_step=20) as log:
        assert log.seconds == 20.0
        log.write(metrics(30))
    assert steps(path) == [10, 20, 30]


def test_flops_of_base_are_those_of_the_design() -> None:
    recipe = read_recipe(RECIPES / "base.toml")
    flops = flops_per_token(recipe.model, recipe.tokenizer.vocabulary, sequence_tokens=2048)
    assert flops == pytest.approx(3.071e9, rel=1e-3)  # 6 x 406.9 M multiplied + 12 x 20 x 10 x 128 x 2048


def test_utilisation_is_given_only_for_a_known_device() -> None:
    assert flops_utilisation(989e12 / 2, "NVIDIA H100 80GB HBM3") == 0.5
    assert flops_utilisation(756e12 / 2, "NVIDIA H100 PCIe") == 0.5
    assert flops_utilisation(1e12, "CPU, 2 threads") is None
