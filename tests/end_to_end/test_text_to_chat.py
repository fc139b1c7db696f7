"""The promise of the README in small: a folder of text becomes a proved bundle that answers."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

RECIPE = """
name = "ছোট মডেল"
[corpus]
mixture = { prose = 0.5, talk = 0.5 }
heldout_percent = 10
[[corpus.files]]
name = "prose"
language = "bn"
paths = ["লেখা/*.txt"]
[[corpus.files]]
name = "talk"
language = "bn"
paths = ["talk.jsonl"]
[tokenizer]
vocabulary = 512
[model]
layers = 2
width = 32
heads = 2
kv_heads = 1
head_width = 16
ffn_width = 64
context = 64
[training]
tokens = 10240
sequence_tokens = 32
batch_sequences = 8
warmup_steps = 4
checkpoint_every_steps = 20
audit_again_after_steps = 10
[audit]
sequences = 2
directions = 1
[evaluation]
documents = 8
[export]
block_size = 32
maximum_bits_per_byte_increase_percent = 5.0
maximum_clear_flips_percent = 5.0
"""
QUESTION, ANSWER = "নদী মানে কী?", "river"


def write_corpus(folder: Path) -> None:
    """Write 120 invented texts and one question with its answer, many times."""
    words = [c + v for c in "কখগচজটডতদন" for v in ("", "া", "ি", "ু", "ে", "ো")]
    random = np.random.default_rng(0)
    (folder / "লেখা").mkdir()
    for number in range(120):
        text = " ".join("".join(random.choice(words, size=2)) for _ in range(30))
        (folder / "লেখা" / f"{number}.txt").write_text(text, encoding="utf-8")
    turns = [{"role": "user", "content": QUESTION}, {"role": "assistant", "content": ANSWER}]
    lines = [
        json.dumps({"messages": [{**turns[0], "content": QUESTION + " " * n}, turns[1]]}) for n in range(50)
    ]
    (folder / "talk.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (folder / "recipe.toml").write_text(RECIPE, encoding="utf-8")


def mothertongue(folder: Path, *arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    """Run the command in `folder`, as a user would."""
    return subprocess.run(
        [sys.executable, "-m", "mothertongue", *arguments],
        cwd=folder, input=stdin, capture_output=True, text=True, encoding="utf-8", timeout=240, check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, object]]:
    folder = tmp_path_factory.mktemp("একটি ঘর")
    write_corpus(folder)
    run = mothertongue(folder, "build", "recipe.toml", "--json")
    assert run.returncode == 0, run.stderr
    return folder, json.loads(run.stdout)


def test_a_folder_of_text_becomes_a_proved_bundle(built) -> None:
    folder, summary = built
    assert summary["certificate"]["verdict"] == "PASS"
    assert summary["parity"]["verdict"] == "PASS"
    quality = summary["evaluation"]
    assert quality["languages"]["bn"]["bits_per_byte"] < quality["twin"]["bn"]["bits_per_byte"]
    assert set(summary["stages_s"]) == {"corpus", "tokenizer", "tokens", "train", "evaluate", "export"}
    assert (folder / "bundles" / "ছোট মডেল" / "model.onnx.data").is_file()


def test_the_bundle_answers_a_piped_question_as_it_was_taught(built) -> None:
    folder, _ = built
    run = mothertongue(folder, "chat", "bundles/ছোট মডেল", "--json", "--max-tokens", "20", stdin=QUESTION)
    assert run.returncode == 0, run.stderr
    reply = json.loads(run.stdout)
    assert (reply["text"], reply["finish_reason"]) == (ANSWER, "end")


def test_a_second_build_runs_nothing_and_loads_no_torch(built) -> None:
    folder, _ = built
    code = (
        "import sys; from click.testing import CliRunner; from mothertongue_export.cli import build;"
        "result = CliRunner().invoke(build, ['recipe.toml', '--json']); assert result.exit_code == 0, result;"
        "assert not {'torch', 'onnx', 'transformers'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], cwd=folder, check=True)


def test_the_python_of_the_readme_runs(built) -> None:
    folder, _ = built
    readme = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```python\n(.*?)```", readme, re.DOTALL)
    code = block.replace("bundles/nano", "bundles/ছোট মডেল").replace("নদী শব্দের অর্থ কী?", QUESTION)
    run = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=True)
    assert run.stdout.strip() == ANSWER


def test_verify_and_inspect_accept_the_bundle(built) -> None:
    folder, _ = built
    assert mothertongue(folder, "verify", "bundles/ছোট মডেল").returncode == 0
    assert json.loads(mothertongue(folder, "inspect", "bundles/ছোট মডেল", "--json").stdout)["context"] == 64


def test_a_build_of_a_broken_recipe_names_every_problem(built) -> None:
    folder, _ = built
    (folder / "broken.toml").write_text(RECIPE.replace("layers = 2", "layer = 2"), encoding="utf-8")
    run = mothertongue(folder, "build", "broken.toml")
    assert run.returncode == 2
    assert "did you mean 'layers'?" in run.stderr
    assert "Traceback" not in run.stderr
