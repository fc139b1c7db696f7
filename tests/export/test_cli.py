import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from mothertongue.command import main
from mothertongue_trainer.document import Document

RECIPE = """
name = "tiny"
[corpus]
mixture = { own = 1 }
[[corpus.files]]
name = "own"
language = "bn"
paths = ["own.txt"]
[tokenizer]
vocabulary = 600
[model]
layers = 2
width = 64
heads = 4
kv_heads = 2
head_width = 32
ffn_width = 144
context = 64
[training]
tokens = 6400
sequence_tokens = 64
batch_sequences = 2
[export]
block_size = 32
"""
MANIFEST = {
    "files": {},
    "characters": {"bn": 1},
    "heldout_characters": {"bn": 1},
    "sources": [{"name": "own words", "licence": "CC0"}],
}


def mothertongue(*arguments: str) -> Result:
    return CliRunner().invoke(main, list(arguments))


@pytest.fixture
def folder(tied: Path, heldout: list[Document], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with tiny.toml and its run, which has one complete checkpoint and one that is not."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny.toml").write_text(RECIPE, encoding="utf-8")
    run = tmp_path / "runs" / "tiny"
    checkpoint = shutil.copytree(tied, run / "checkpoints" / "step-000100")
    (checkpoint / "training_state.json").write_text('{"commit": "abc123"}', encoding="utf-8")
    (run / "checkpoints" / "step-000200").mkdir()
    (run / "corpus").mkdir()
    lines = "".join(document.to_json() + "\n" for document in heldout[::4])
    (run / "corpus" / "heldout.jsonl").write_text(lines, encoding="utf-8")
    (run / "corpus" / "manifest.json").write_text(json.dumps(MANIFEST), encoding="utf-8")
    return tmp_path


def test_export_takes_the_newest_checkpoint_and_verify_repeats_the_proof(folder: Path) -> None:
    exported = mothertongue("export", "tiny.toml", "--json")
    assert exported.exit_code == 0, exported.output
    parity = json.loads(exported.stdout)
    assert parity == json.loads((folder / "bundles/tiny/parity.json").read_text(encoding="utf-8"))
    manifest = json.loads((folder / "bundles/tiny/manifest.json").read_text(encoding="utf-8"))
    assert manifest["training_commit"] == "abc123"
    assert manifest["recipe"]["name"] == "tiny"
    assert "own words: CC0" in (folder / "bundles/tiny/README.md").read_text(encoding="utf-8")

    checkpoint = "runs/tiny/checkpoints/step-000100"
    verified = mothertongue("verify", "bundles/tiny", "--checkpoint", checkpoint, "--json")
    assert verified.exit_code == 0, verified.output
    assert json.loads(verified.stdout)["parity"]["verdict"] == "PASS"


def test_the_weights_of_the_command_line_win_and_verify_keeps_to_them(folder: Path) -> None:
    exported = mothertongue("export", "tiny.toml", "--weights", "fp32", "--out", "exact", "--json")
    assert exported.exit_code == 0, exported.output
    parity = json.loads(exported.stdout)
    assert parity["logit_max_abs"] < 1e-4
    assert "logit_max_abs" in {gate["name"] for gate in parity["gates"]}
    manifest = json.loads((folder / "exact/manifest.json").read_text(encoding="utf-8"))
    assert {row["bits"] for row in manifest["quantization"]} == {32}
    assert mothertongue("verify", "exact").exit_code == 0


def test_a_missed_gate_exits_1_with_the_figures_and_no_bundle(folder: Path) -> None:
    recipe = (folder / "tiny.toml").read_text(encoding="utf-8")
    (folder / "tiny.toml").write_text(recipe + "maximum_kl_mean = 1e-12\n", encoding="utf-8")
    result = mothertongue("export", "tiny.toml", "--out", "elsewhere", "--json")
    assert result.exit_code == 1
    assert json.loads(result.stdout)["verdict"] == "FAIL"
    assert "kl_mean is" in result.stderr
    assert not (folder / "elsewhere").exists()


def test_verify_says_in_one_line_what_it_found(bundle: Path) -> None:
    result = mothertongue("verify", str(bundle))
    assert result.exit_code == 0
    assert "sound. 10 files" in result.stdout.replace("\n", " ")
    found = json.loads(mothertongue("verify", str(bundle), "--json").stdout)
    assert found["verdict"] == "PASS"
    assert found["parity"] is None


def nothing(folder: Path) -> None:
    """Leave the folder as it is: the arguments are what is wrong."""


def remove_checkpoints(folder: Path) -> None:
    shutil.rmtree(folder / "runs" / "tiny" / "checkpoints")


def remove_heldout(folder: Path) -> None:
    (folder / "runs" / "tiny" / "corpus" / "heldout.jsonl").unlink()


@pytest.mark.parametrize(
    ("damage", "arguments", "message"),
    [
        (remove_checkpoints, ["export", "tiny.toml"], "no checkpoint"),
        (remove_heldout, ["export", "tiny.toml"], "heldout.jsonl: missing"),
        (nothing, ["export", "other.toml"], "no such recipe"),
        (nothing, ["export", "tiny.toml", "--checkpoint", "nowhere"], "nowhere/config.json: no such file"),
        (nothing, ["verify", "bundles/none"], "no such bundle"),
    ],
)
def test_bad_input_is_one_line_and_exit_2(
    folder: Path, damage: Callable[[Path], None], arguments: list[str], message: str
) -> None:
    damage(folder)
    result = mothertongue(*arguments)
    assert result.exit_code == 2
    assert message in result.stderr
    assert "Traceback" not in result.output


def test_formats_are_written_beside_the_bundle_with_their_hashes(folder: Path, split_as_qwen: Path) -> None:
    checkpoint = ["--checkpoint", str(split_as_qwen)]
    exported = mothertongue("export", "tiny.toml", *checkpoint, "--formats", "hf,gguf", "--json")
    assert exported.exit_code == 0, exported.output
    written = json.loads(exported.stdout)["formats"]
    assert [Path(written[name]["folder"]) for name in ("hf", "gguf")] == [
        Path("bundles/tiny-hf"),
        Path("bundles/tiny-gguf"),
    ]
    assert not (folder / "bundles/tiny").exists()
    shown = mothertongue("export", "tiny.toml", *checkpoint, "--formats", "gguf")
    assert "Exported and read back: bundles/tiny-gguf" in shown.stdout
    digest = written["gguf"]["files"]["tiny-Q8_0.gguf"]["sha256"]
    assert f"  {digest}  tiny-Q8_0.gguf" in shown.stdout

    proved = mothertongue("export", "tiny.toml", *checkpoint, "--formats", "bundle,hf", "--json")
    report = json.loads(proved.stdout)
    assert (report["verdict"], list(report["formats"])) == ("PASS", ["hf"])
    assert (folder / "bundles/tiny/manifest.json").is_file()


@pytest.mark.parametrize(
    ("formats", "message"),
    [
        ("bundle,onnx", "--formats bundle,onnx: 'onnx' is no format; known are bundle, hf, gguf"),
        ("bundle,gguf", "tokenizer.json: the split pattern is 'ByteLevel'"),
        ("hf --weights int8", "--weights and --keep-reference are of the bundle"),
    ],
)
def test_a_format_that_cannot_be_is_refused_before_the_proof(
    folder: Path, formats: str, message: str
) -> None:
    result = mothertongue("export", "tiny.toml", "--formats", *formats.split())
    assert result.exit_code == 2
    assert message in result.stderr
    assert not (folder / "bundles").exists()
