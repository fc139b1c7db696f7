from dataclasses import replace

import numpy as np
import pytest

from mothertongue_arbiter.declared_optimizer import Group
from mothertongue_arbiter.update_causes import UNKNOWN, explain
from mothertongue_arbiter.update_history import Event, History
from mothertongue_arbiter.update_rules import Moments, update

DECLARED = Group(parameters=("*",), learning_rate=lambda step: 1e-2 * (step + 1), weight_decay=0.05, eps=1e-6)


def followed(group, *, rate=DECLARED.rate, change=lambda change: change):
    """What a weight goes through that is updated by `group`, while `DECLARED` is believed."""
    rng = np.random.default_rng(0)
    weight, moments, events = rng.normal(size=(6, 5)), Moments(), []
    for step in range(3):
        gradient = rng.normal(size=(6, 5)) * 1e-2
        done = update(group, weight, gradient, moments, rate=rate(step))
        after, moments = weight + change(done.change), done.moments
        events.append(
            Event(step=step, rate=DECLARED.rate(step), before=weight, after=after, gradient=gradient)
        )
        weight = after
    return History(name="w", group=DECLARED, events=tuple(events), start=Moments(), epsilon=2.0**-23)


@pytest.mark.parametrize(
    ("numbers", "named"),
    [
        ({"weight_decay": 0.0}, "no weight decay where 0.05"),
        ({"weight_decay": 0.2}, "weight decay 0.2 where 0.05"),
        ({"weight_decay": 0.01234}, "weight decay 0.01234"),
        ({"algorithm": "adam"}, "coupled"),
        ({"betas": (0.9, 0.98)}, "betas (0.9, 0.98)"),
        ({"betas": (0.999, 0.9)}, "swapped"),
        ({"eps": 1e-3}, "eps 0.001"),
        ({"algorithm": "sgd", "momentum": 0.0}, "that of sgd"),
        ({"algorithm": "lion"}, "that of lion"),
    ],
)
def test_a_wrong_number_is_named(numbers, named):
    assert named in explain(followed(replace(DECLARED, **numbers)))


@pytest.mark.parametrize(
    ("rate", "named"),
    [
        (lambda step: 2e-2, "not applied: the learning rate stays 0.02"),
        (lambda step: DECLARED.rate(2 * step), "stepped several times"),
        (lambda step: DECLARED.rate(step - 1), "one step late"),
        (lambda step: DECLARED.rate(step) * 10, "10 times"),
    ],
)
def test_a_wrong_rate_is_named(rate, named):
    assert named in explain(followed(DECLARED, rate=rate))


def test_what_no_known_mistake_explains_is_not_guessed():
    assert explain(followed(DECLARED, change=lambda change: change * np.linspace(0, 1, 5))) == UNKNOWN


def test_a_mistake_in_one_step_only_is_not_taken_for_rounded_moments():
    found = followed(DECLARED)
    last = found.events[-1]
    nudged = replace(last, after=last.after + 1e-3 * (last.after - last.before))
    history = replace(found, events=(*found.events[:-1], nudged))
    assert "bfloat16" not in explain(history)


def test_decay_that_is_done_once_more_afterwards_is_nearly_twice_the_decay():
    rng = np.random.default_rng(1)
    declared = replace(DECLARED, learning_rate=1e-2)
    weight, moments, events = rng.normal(size=(6, 5)), Moments(), []
    for step in range(3):
        gradient = rng.normal(size=(6, 5))
        done = update(declared, weight, gradient, moments, rate=1e-2)
        after, moments = (weight + done.change) * (1 - 1e-2 * 0.05), done.moments
        events.append(Event(step=step, rate=1e-2, before=weight, after=after, gradient=gradient))
        weight = after
    history = History(name="w", group=declared, events=tuple(events), start=Moments(), epsilon=2.0**-23)
    assert explain(history).startswith("nearly: weight decay 0.1")


def test_nothing_happening_at_all_is_named():
    assert "not updated at all" in explain(followed(DECLARED, change=np.zeros_like))
