import itertools
from pathlib import Path

import pytest

from mothertongue_trainer import clock
from mothertongue_trainer.clock import StepClock
from mothertongue_trainer.recipe import read_recipe

RECIPE = read_recipe(Path(__file__).parents[2] / "recipes" / "smoke.toml")  # 2,048 tokens a step


@pytest.fixture
def ticking(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock on which every look takes 2 s."""
    times = itertools.count(0.0, 2.0)
    monkeypatch.setattr(clock.time, "perf_counter", lambda: next(times))


def after(steps: int, *, seconds: float = 0.0) -> StepClock:
    watch = StepClock(RECIPE, device="CPU", seconds=seconds)
    for _ in range(steps):
        with watch:
            pass
    return watch


@pytest.mark.usefixtures("ticking")
def test_rates_and_forecast_count_the_steps_alone() -> None:
    watch = after(10, seconds=100.0)
    assert watch.seconds == 120.0
    assert watch.lap() == 1024.0
    forecast = watch.forecast(90)
    assert forecast.tokens_per_second == 1024.0
    assert forecast.minutes_left == 3.0
    assert forecast.flops_utilisation is None
