import pytest

from mothertongue_trainer.schedule import learning_rate_factor


def factors(*, steps: int = 100, warmup_steps: int = 10, decay_fraction: float = 0.5) -> list[float]:
    return [
        learning_rate_factor(step, steps=steps, warmup_steps=warmup_steps, decay_fraction=decay_fraction)
        for step in range(steps)
    ]


def test_it_rises_holds_and_falls() -> None:
    values = factors()
    assert values[:11] == pytest.approx([(step + 1) / 11 for step in range(11)])
    assert values[10:51] == [1.0] * 41
    assert values[51:] == pytest.approx([(100 - step) / 50 for step in range(51, 100)])


def test_no_step_is_spent_on_a_rate_of_0() -> None:
    for warmup_steps in (0, 10, 200):
        for decay_fraction in (0.0, 0.3, 1.0):
            values = factors(warmup_steps=warmup_steps, decay_fraction=decay_fraction)
            assert min(values) > 0
            assert max(values) <= 1


def test_without_decay_it_holds_to_the_end() -> None:
    assert factors(decay_fraction=0.0)[10:] == [1.0] * 90
