from pathlib import Path

import pytest

from mothertongue import RecipeError
from mothertongue_trainer.recipe import read_recipe

SMALLEST = """
name = "tiny"
[corpus]
mixture = { mine = 1 }
[[corpus.files]]
name = "mine"
language = "bn"
paths = ["*.txt"]
[tokenizer]
vocabulary = 512
[model]
layers = 1
width = 32
heads = 2
kv_heads = 1
head_width = 16
ffn_width = 64
context = 64
[training]
tokens = 4096
sequence_tokens = 64
batch_sequences = 4
"""


def write(folder: Path, *changes: tuple[str, str]) -> Path:
    text = SMALLEST
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    path = folder / "recipe.toml"
    path.write_text(text, encoding="utf-8")
    return path


def refusal(path: Path) -> str:
    with pytest.raises(RecipeError) as caught:
        read_recipe(path)
    return str(caught.value)


def test_the_smallest_recipe_is_read_with_every_default(tmp_path: Path) -> None:
    recipe = read_recipe(write(tmp_path))
    assert recipe.steps == 4096 // (64 * 4)
    assert recipe.optimizer.muon_learning_rate == 0.02
    assert recipe.run_folder == Path("runs/tiny")


def test_every_problem_is_reported_at_once_with_the_nearest_name(tmp_path: Path) -> None:
    path = write(tmp_path, ("layers = 1", 'layerz = 1\nwitdh = "wide"'), ("heads = 2", 'heads = "two"'))
    message = refusal(path)
    assert "model.layerz: unknown key; did you mean 'layers'?" in message
    assert "model.witdh: unknown key; did you mean 'width'?" in message
    assert "model.heads: 'two' found, a whole number expected" in message
    assert "model.layers: missing" in message
    assert message.startswith(f"{path}: 4 problems")


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("kv_heads = 1", "kv_heads = 3", "model.kv_heads: 3 does not divide the 2 heads"),
        ("head_width = 16", "head_width = 20", "a multiple of 16 expected"),
        ("sequence_tokens = 64", "sequence_tokens = 65", "more than model.context"),
        ("tokens = 4096\n", "tokens = 10\n", "less than one step of 256"),
        ("vocabulary = 512", "vocabulary = 100", "at least 512 expected"),
        ("vocabulary = 512", "vocabulary = 70000", "at most 65536 expected"),
        ("{ mine = 1 }", "{ yours = 1 }", "corpus.mixture.yours: no such component; known are mine"),
        ("{ mine = 1 }", "{ mine = 0 }", "a positive share expected"),
        ("{ mine = 1 }", "{ mine = nan }", "a positive share expected"),
        ("{ mine = 1 }", "{}", "corpus.mixture: empty"),
        ('name = "mine"', 'name = "heldout"', "corpus.files: 'heldout' cannot name a component"),
        ('name = "mine"', 'name = "a/b"', "corpus.files: 'a/b' cannot name a component"),
        ('"tiny"', '"../tiny"', "a plain folder name expected"),
        ('"tiny"', '""', "a plain folder name expected"),
        ("layers = 1", "layers = 0", "model.layers: 0 found, at least 1 expected"),
        ("layers = 1", "layers = true", "model.layers: True found, a whole number expected"),
        ("batch_sequences = 4", "batch_sequences = 4\nmicro_batch_sequences = 3", "does not divide"),
    ],
)
def test_a_value_that_cannot_work_is_named(tmp_path: Path, old: str, new: str, expected: str) -> None:
    assert expected in refusal(write(tmp_path, (old, new)))


def test_a_file_that_is_no_recipe_is_refused_in_words(tmp_path: Path) -> None:
    assert "no such recipe" in refusal(tmp_path / "absent.toml")
    assert "is a folder" in refusal(tmp_path)
    (tmp_path / "latin.toml").write_bytes(b'name = "\xff"')
    assert "not UTF-8 at byte 8" in refusal(tmp_path / "latin.toml")
    (tmp_path / "broken.toml").write_text("name = ", encoding="utf-8")
    assert "not TOML" in refusal(tmp_path / "broken.toml")
