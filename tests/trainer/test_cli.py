import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from mothertongue.command import main

RECIPE = """
name = "ছোট"

[corpus]
heldout_percent = 10

[corpus.mixture]
"গদ্য" = 1.0

[[corpus.files]]
name = "গদ্য"
language = "bn"
paths = ["{sources}/গদ্য*.jsonl.xz"]

[tokenizer]
vocabulary = 600
minimum_characters_per_token = {{ bn = {gate} }}

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
batch_sequences = 8
"""


@pytest.fixture
def recipe(sources: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A recipe in a working folder of its own."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "আমার recipe.toml"
    path.write_text(RECIPE.format(sources=sources, gate=0.5), encoding="utf-8")
    return path


def call(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def test_prepare_then_tokenizer_fill_the_run_folder(recipe: Path) -> None:
    prepared = call("prepare", recipe)
    assert prepared.exit_code == 0, prepared.output
    assert "heldout.jsonl" in prepared.stdout
    trained = call("tokenizer", recipe)
    assert trained.exit_code == 0, trained.output
    assert "Bengali" in trained.stdout
    run = recipe.parent / "runs" / "ছোট"
    assert {path.name for path in run.iterdir()} == {"corpus", "tokenizer", "tokens", "run.lock"}
    assert (run / "tokens" / "গদ্য.safetensors").is_file()


def test_json_is_one_object_on_standard_output(recipe: Path) -> None:
    prepared = json.loads(call("prepare", recipe, "--json").stdout)
    assert prepared["files"]["গদ্য.jsonl"]["languages"].keys() == {"bn"}
    trained = json.loads(call("tokenizer", recipe, "--json").stdout)
    assert trained["languages"]["bn"]["characters_per_token"] > 0.5
    assert trained["tokens"]["গদ্য"] > 1000


def test_an_unfair_tokenizer_is_a_failed_check(recipe: Path, sources: Path) -> None:
    recipe.write_text(RECIPE.format(sources=sources, gate=50), encoding="utf-8")
    call("prepare", recipe)
    result = call("tokenizer", recipe)
    assert result.exit_code == 1
    assert "at least 50.0 expected" in result.stderr
    assert not (recipe.parent / "runs" / "ছোট" / "tokenizer").exists()


@pytest.mark.parametrize(
    ("command", "message"),
    [("tokenizer", "run `mothertongue prepare`"), ("evaluate", "no checkpoint; run `mothertongue train")],
)
def test_a_command_too_early_names_the_one_before(recipe: Path, command: str, message: str) -> None:
    result = call(command, recipe)
    assert result.exit_code == 2
    assert message in result.stderr
    assert "Traceback" not in result.output
