"""The whole build runs in tests/end_to_end; here: what makes a stage run again, and what is refused."""

import dataclasses
from pathlib import Path

import pytest

from mothertongue import RecipeError
from mothertongue_export.build import Builder, build_bundle
from mothertongue_trainer.recipe import Recipe, read_recipe
from mothertongue_trainer.stages import fingerprints

ROOT = Path(__file__).parents[2]


def recipe(name: str) -> Recipe:
    return read_recipe(ROOT / "recipes" / f"{name}.toml")


def prints(recipe: Recipe) -> dict[str, str]:
    builder = Builder(recipe=recipe, despite_audit=False, quiet=True)
    return {stage.name: fingerprint for stage, fingerprint in fingerprints(builder.stages())}


def stale(before: Recipe, after: Recipe) -> list[str]:
    old, new = prints(before), prints(after)
    return [name for name in new if old[name] != new[name]]


def test_a_dictionary_recipe_ends_with_an_exam() -> None:
    stages = ["corpus", "tokenizer", "tokens", "train", "evaluate", "export", "exam"]
    assert list(prints(recipe("smoke"))) == stages


def test_a_longer_training_leaves_the_text_alone() -> None:
    nano = recipe("nano")
    longer = dataclasses.replace(nano, training=dataclasses.replace(nano.training, tokens=9_000_000))
    assert stale(nano, longer) == ["train", "evaluate", "export", "exam"]


def test_another_vocabulary_makes_everything_after_the_text_again() -> None:
    nano = recipe("nano")
    larger = dataclasses.replace(nano, tokenizer=dataclasses.replace(nano.tokenizer, vocabulary=8192))
    assert stale(nano, larger) == ["tokenizer", "tokens", "train", "evaluate", "export", "exam"]


def test_another_gate_only_exports_again() -> None:
    nano = recipe("nano")
    strict = dataclasses.replace(nano, export=dataclasses.replace(nano.export, maximum_kl_mean=0.001))
    assert stale(nano, strict) == ["export", "exam"]


def test_a_wrong_stage_name_is_answered_with_the_right_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RecipeError, match="no such stage; this recipe has corpus, tokenizer"):
        build_bundle(recipe("smoke"), until="trian")
    assert list(tmp_path.iterdir()) == []
