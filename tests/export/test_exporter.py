import dataclasses
import hashlib
import json
import os
import shutil
from pathlib import Path

import pytest

import mothertongue
from mothertongue.bundle import verify as verify_files
from mothertongue.errors import BundleError, CheckFailed, CheckpointError, DataError, RecipeError
from mothertongue_export import export
from mothertongue_trainer.document import Document
from mothertongue_trainer.recipe import ExportConfig

FILES = {
    "model.onnx", "model.onnx.data", "tokenizer.json", "tokenizer_config.json", "config.json",
    "generation_config.json", "genai_config.json", "parity.json", "golden.json", "README.md", "manifest.json",
}  # fmt: skip


def hashes(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_a_bundle_has_every_file_and_verifies(bundle: Path) -> None:
    assert {path.name for path in bundle.iterdir()} == FILES
    manifest = verify_files(bundle)
    assert set(manifest.files) == FILES - {"manifest.json"}
    assert manifest.parity["verdict"] == "PASS"
    assert manifest.training_commit == "unknown"  # transformers wrote this checkpoint


def test_the_runtime_loads_it_and_writes_what_the_model_learned(bundle: Path) -> None:
    completion = mothertongue.load(bundle, threads=1).complete(
        "The river is called", mothertongue.Sampling(max_tokens=40)
    )
    assert completion.text == " নদী in Bangla; I saw a river today."
    assert completion.finish_reason == "end"


def test_parity_json_passes_and_has_both_languages(bundle: Path) -> None:
    parity = json.loads((bundle / "parity.json").read_text(encoding="utf-8"))
    assert parity["verdict"] == "PASS"
    assert set(parity["languages"]) == {"bn", "en"}
    assert parity["reference_max_abs"] < 1e-4


def test_genai_config_names_what_the_graph_has(bundle: Path) -> None:
    model = json.loads((bundle / "genai_config.json").read_text(encoding="utf-8"))["model"]
    assert (model["bos_token_id"], model["eos_token_id"], model["pad_token_id"]) == (0, 4, 5)
    assert model["decoder"]["filename"] == "model.onnx"
    assert model["decoder"]["inputs"]["past_key_names"] == "past_key_values.%d.key"


def test_a_failed_gate_leaves_no_bundle_and_an_older_one_untouched(
    bundle: Path, tied: Path, heldout: list[Document], config: ExportConfig, tmp_path: Path
) -> None:
    older = shutil.copytree(bundle, tmp_path / "bundle")
    before = hashes(older)
    strict = dataclasses.replace(config, maximum_kl_mean=0.0)
    with pytest.raises(CheckFailed, match=r"not exported; .*kl_mean is .*, at most 0 allowed"):
        export(tied, older, config=strict, heldout=heldout[::6])
    assert hashes(older) == before
    assert list(tmp_path.iterdir()) == [older]


def test_ctrl_c_leaves_nothing(
    tied: Path, heldout: list[Document], config: ExportConfig, tmp_path: Path
) -> None:
    def press_ctrl_c(what: str, done: int, total: int | None) -> None:
        if what == "Comparing the fp32 graph with PyTorch":  # the graph is on disk by then
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        export(tied, tmp_path / "bundle", config=config, heldout=heldout, progress=press_ctrl_c)
    assert list(tmp_path.iterdir()) == []


def test_an_older_bundle_comes_back_when_the_last_rename_fails(
    bundle: Path,
    tied: Path,
    heldout: list[Document],
    config: ExportConfig,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    older = shutil.copytree(bundle, tmp_path / "bundle")
    before, replace = hashes(older), os.replace

    def fail_for_the_new(source: Path, target: Path) -> None:
        if Path(source).name == "new":
            raise OSError(28, "No space left on device")
        replace(source, target)

    monkeypatch.setattr(os, "replace", fail_for_the_new)
    with pytest.raises(BundleError, match="No space left"):
        export(tied, older, config=config, heldout=heldout[::6])
    assert hashes(older) == before
    assert list(tmp_path.iterdir()) == [older]


def test_an_older_bundle_is_replaced_and_the_reference_kept_on_request(
    bundle: Path, untied: Path, heldout: list[Document], config: ExportConfig, tmp_path: Path
) -> None:
    target = shutil.copytree(bundle, tmp_path / "মডেল ১")
    report = export(untied, target, config=config, heldout=heldout[::6], keep_reference=True)
    assert report.verdict == "PASS"
    assert list(tmp_path.iterdir()) == [target]
    assert "reference/model.onnx" in verify_files(target).files
    assert hashes(target)["config.json"] != hashes(bundle)["config.json"]


def test_a_folder_that_is_no_bundle_is_never_replaced(
    tied: Path, heldout: list[Document], config: ExportConfig, tmp_path: Path
) -> None:
    (tmp_path / "thesis.txt").write_text("years of work", encoding="utf-8")
    with pytest.raises(BundleError, match="exists and is no bundle"):
        export(tied, tmp_path, config=config, heldout=heldout)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def test_bad_input_is_refused_before_anything_is_written(
    tied: Path, heldout: list[Document], config: ExportConfig, tmp_path: Path
) -> None:
    target = tmp_path / "bundle"
    with pytest.raises(RecipeError, match=r"export\.block_size: 48 found"):
        export(tied, target, config=dataclasses.replace(config, block_size=48), heldout=heldout)
    with pytest.raises(DataError, match="no held-out text"):
        export(tied, target, config=config, heldout=[])
    incomplete = shutil.copytree(tied, tmp_path / "incomplete")
    (incomplete / "tokenizer_config.json").unlink()
    with pytest.raises(CheckpointError, match=r"tokenizer_config\.json: no such file"):
        export(incomplete, target, config=config, heldout=heldout)
    assert not target.exists()


def test_a_tokenizer_of_another_run_is_refused(
    tied: Path, heldout: list[Document], config: ExportConfig, tmp_path: Path
) -> None:
    folder = shutil.copytree(tied, tmp_path / "checkpoint")
    tokenizer = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    tokenizer["model"]["vocab"]["extra"] = len(tokenizer["model"]["vocab"])
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer), encoding="utf-8")
    with pytest.raises(CheckpointError, match="come from different runs"):
        export(folder, tmp_path / "bundle", config=config, heldout=heldout)


def test_ctrl_c_just_after_the_older_bundle_was_moved_brings_it_back(
    bundle: Path,
    tied: Path,
    heldout: list[Document],
    config: ExportConfig,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    older = Path(shutil.copytree(bundle, tmp_path / "bundle"))
    before, replace = hashes(older), os.replace

    def press_ctrl_c_after(source: Path, target: Path) -> None:
        replace(source, target)
        if Path(source) == older:
            raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", press_ctrl_c_after)
    with pytest.raises(KeyboardInterrupt):
        export(tied, older, config=config, heldout=heldout[::6])
    assert hashes(older) == before
    assert list(tmp_path.iterdir()) == [older]
