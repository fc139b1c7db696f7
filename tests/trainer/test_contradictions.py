import dataclasses
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest

from mothertongue_trainer.contradictions import LIMITS, contradictions, values_by_place
from mothertongue_trainer.recipe import Recipe, read_recipe

RECIPE = read_recipe(Path(__file__).parents[2] / "recipes" / "nano.toml")


def changed(recipe: Any, place: str, value: Any) -> Any:
    """Return `recipe` with another value at `place`, as `model.layers`."""
    field, _, rest = place.partition(".")
    if not rest:
        return dataclasses.replace(recipe, **{field: value})
    return dataclasses.replace(recipe, **{field: changed(getattr(recipe, field), rest, value)})


def test_the_published_recipes_say_nothing_impossible() -> None:
    assert contradictions(RECIPE) == []


def test_every_number_of_a_recipe_has_a_limit() -> None:
    numbers = [
        place
        for place, value in values_by_place(RECIPE.as_dict())
        if isinstance(value, int | float) and not isinstance(value, bool)
    ]
    patterns = [pattern for limit in LIMITS for pattern in limit.places]
    assert len(numbers) > 40
    assert [n for n in numbers if not any(fnmatchcase(n, pattern) for pattern in patterns)] == []


@pytest.mark.parametrize(
    ("place", "value", "expected"),
    [
        ("audit.sequences", 0, "audit.sequences: 0 found, at least 1 expected"),
        ("audit.directions", 0, "audit.directions: 0 found, at least 1 expected"),
        ("audit.layers", 0, "audit.layers: 0 found, at least 1 expected"),
        ("evaluation.documents", 0, "evaluation.documents: 0 found, at least 1 expected"),
        ("evaluation.chat_questions", -1, "evaluation.chat_questions: -1 found, at least 1 expected"),
        ("export.block_size", 48, "export.block_size: 48 found, one of (16, 32, 64, 128, 256) expected"),
        ("export.maximum_kl_mean", 0.0, "export.maximum_kl_mean: 0.0 found, a positive number expected"),
        ("export.maximum_clear_flips_percent", float("nan"), "a positive number expected"),
        ("training.warmup_steps", -1, "training.warmup_steps: -1 found, 0 or more expected"),
        ("training.audit_again_after_steps", 0, "at least 1 expected"),
        ("training.gradient_clip", 0.0, "training.gradient_clip: 0.0 found, a positive number expected"),
        ("training.decay_fraction", 1.5, "training.decay_fraction: 1.5 found, 0 to 1 expected"),
        ("optimizer.muon_learning_rate", 0.0, "a positive number expected"),
        ("optimizer.adamw_learning_rate", float("inf"), "a positive number expected"),
        (
            "optimizer.adamw_betas",
            (0.9, 1.0),
            "adamw_betas.1: 1.0 found, 0 to less than 1 expected",
        ),
        ("optimizer.adamw_betas", (0.9,), "optimizer.adamw_betas: two numbers expected"),
        ("optimizer.muon_momentum", 1.0, "optimizer.muon_momentum: 1.0 found, 0 to less than 1 expected"),
        ("corpus.dictionary.core_words", 0, "corpus.dictionary.core_words: 0 found, at least 1 expected"),
        ("corpus.dictionary.defined_words", -1, "0 or more expected"),
        ("corpus.dictionary.sentence_words", -1, "0 or more expected"),
        ("corpus.dictionary.unlearned_words", -1, "0 or more expected"),
        ("corpus.heldout_percent", 50.0, "corpus.heldout_percent: 50.0 found, between 0 and 50 expected"),
        ("seed", -1, "seed: -1 found, 0 or more expected"),
    ],
)
def test_a_number_beyond_its_limit_is_named_with_what_is_expected(
    place: str, value: Any, expected: str
) -> None:
    (problem,) = contradictions(changed(RECIPE, place, value))
    assert expected in problem


@pytest.mark.parametrize("place", ["audit.layers", "training.gradient_clip"])
def test_none_is_no_number_beyond_a_limit(place: str) -> None:
    assert contradictions(changed(RECIPE, place, None)) == []


def test_every_contradiction_is_reported_at_once() -> None:
    recipe: Recipe = changed(changed(RECIPE, "name", "a/b"), "audit.sequences", 0)
    assert len(contradictions(changed(recipe, "corpus.mixture", {"prose": -1.0, "songs": 1.0}))) == 4
