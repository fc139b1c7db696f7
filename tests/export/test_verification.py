import json
import shutil
import time
from pathlib import Path

import pytest
from safetensors.numpy import load_file, save_file

from mothertongue.bundle import write_manifest
from mothertongue.errors import BundleError, CheckFailed
from mothertongue_export import verify
from mothertongue_export.checkpoint import read_checkpoint
from mothertongue_export.graph import write_device_graph
from mothertongue_export.parity import ParityFailed
from mothertongue_trainer.document import Document

SECONDS = 3.0  # promised is about one, on a machine that is not running tests beside it


@pytest.fixture
def copy(bundle: Path, tmp_path: Path) -> Path:
    return shutil.copytree(bundle, tmp_path / "copy")


def sign(folder: Path) -> None:
    """Write the manifest anew, as someone would who alters a bundle on purpose."""
    write_manifest(
        folder, minimum_onnxruntime="1.23", training_commit="", recipe={}, quantization=[], parity={}
    )


def test_a_sound_bundle_verifies_in_about_a_second(bundle: Path) -> None:
    start_s = time.monotonic()
    found = verify(bundle)
    assert time.monotonic() - start_s < SECONDS
    assert found.golden_tokens > 20
    assert found.report is None


def test_with_its_checkpoint_the_whole_proof_runs_again(
    bundle: Path, tied: Path, heldout: list[Document]
) -> None:
    report = verify(bundle, checkpoint=tied, heldout=heldout[::4]).report
    assert report is not None
    assert report.verdict == "PASS"


def test_one_changed_byte_is_found(copy: Path) -> None:
    data = bytearray((copy / "model.onnx.data").read_bytes())
    data[5000] ^= 1
    (copy / "model.onnx.data").write_bytes(data)
    with pytest.raises(BundleError, match=r"model\.onnx\.data: sha256 is"):
        verify(copy)


def test_a_graph_without_accuracy_level_is_found_though_its_hashes_fit(copy: Path, tied: Path) -> None:
    write_device_graph(read_checkpoint(tied), copy, block_size=32, accuracy_level=0)
    sign(copy)
    with pytest.raises(BundleError, match="accuracy_level is 0, 4 expected"):
        verify(copy)


def test_a_model_that_computes_something_else_fails_the_golden_set(copy: Path, tied: Path) -> None:
    other = read_checkpoint(tied)
    other.weights["model.norm.weight"][::2] *= -1
    write_device_graph(other, copy, block_size=32)
    sign(copy)
    with pytest.raises(CheckFailed, match="golden text 1: token"):
        verify(copy)


def test_the_bundle_of_another_checkpoint_fails_and_says_where(
    bundle: Path, tied: Path, heldout: list[Document], tmp_path: Path
) -> None:
    other = shutil.copytree(tied, tmp_path / "other")
    weights = load_file(other / "model.safetensors")
    weights["model.layers.1.mlp.down_proj.weight"][0, 0] += 1
    save_file(weights, other / "model.safetensors")
    with pytest.raises(ParityFailed, match=r"model\.layers\.1\.mlp\.down_proj: row 0, block 0 is off"):
        verify(bundle, checkpoint=other, heldout=heldout[::6])


def test_gates_that_cannot_be_read_are_an_error(copy: Path, tied: Path, heldout: list[Document]) -> None:
    manifest = json.loads((copy / "manifest.json").read_text(encoding="utf-8"))
    manifest["recipe"] = {"export": {"maximum_kl": 3}}
    (copy / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
    with pytest.raises(BundleError, match=r"recipe\.export\.maximum_kl: unknown key"):
        verify(copy, checkpoint=tied, heldout=heldout)
