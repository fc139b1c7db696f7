import dataclasses
import hashlib
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mothertongue import BundleError, load
from mothertongue import bundle as module
from mothertongue.bundle import (
    MANIFEST_FILE,
    REQUIRED_FILES,
    Manifest,
    require_onnxruntime,
    verify,
    version_numbers,
    write_manifest,
)


def edit_manifest(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    path = folder / "manifest.json"
    fields = json.loads(path.read_text(encoding="utf-8"))
    change(fields)
    path.write_text(json.dumps(fields), encoding="utf-8")


def test_the_manifest_lists_every_file_with_its_size_and_hash(bundle: Path) -> None:
    files = verify(bundle).files
    assert set(files) == {path.name for path in bundle.iterdir()} - {"manifest.json"}
    for name, record in files.items():
        content = (bundle / name).read_bytes()
        assert (record.bytes, record.sha256) == (len(content), hashlib.sha256(content).hexdigest())


def test_a_manifest_read_is_the_one_written(bundle: Path) -> None:
    manifest = Manifest.read(bundle)
    assert manifest.recipe == {"name": "tiny"}
    assert manifest.quantization == [{"weights": "all matrices", "bits": 8, "block_size": 32}]
    assert manifest.tokenizer_sha256 == manifest.files["tokenizer.json"].sha256
    assert manifest.total_bytes == sum(record.bytes for record in manifest.files.values())


@pytest.mark.parametrize(
    "name",
    [
        "model.onnx",
        "model.onnx.data",
        "tokenizer.json",
        "tokenizer_config.json",
        "config.json",
        "parity.json",
    ],
)
def test_one_changed_byte_is_found(copied: Path, name: str) -> None:
    content = bytearray((copied / name).read_bytes())
    content[len(content) // 2] ^= 1
    (copied / name).write_bytes(content)
    with pytest.raises(BundleError, match=f"{name}: sha256 is"):
        load(copied)


@pytest.fixture
def pieced(copied: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy whose longer files are hashed in pieces of 1,000 bytes."""
    monkeypatch.setattr(module, "PIECE_BYTES", 1000)
    written = Manifest.read(copied)
    write_manifest(
        copied,
        minimum_onnxruntime=written.minimum_onnxruntime,
        training_commit=written.training_commit,
        recipe=written.recipe,
        quantization=written.quantization,
        parity=written.parity,
    )
    return copied


def test_a_long_file_is_hashed_whole_and_in_pieces(pieced: Path) -> None:
    for name, record in verify(pieced).files.items():
        content = (pieced / name).read_bytes()
        slices = [content[begin : begin + 1000] for begin in range(0, len(content), 1000)]
        expected = [hashlib.sha256(piece).hexdigest() for piece in slices] if len(content) > 1000 else []
        assert list(record.pieces) == expected
        assert record.sha256 == hashlib.sha256(content).hexdigest()


@pytest.mark.parametrize("place", [0, 999, 1000, 2500, -1])
def test_one_changed_byte_is_found_in_its_piece(pieced: Path, place: int) -> None:
    content = bytearray((pieced / "model.onnx.data").read_bytes())
    content[place] ^= 1
    (pieced / "model.onnx.data").write_bytes(content)
    begin = range(len(content))[place] // 1000 * 1000
    end = min(begin + 1000, len(content))
    with pytest.raises(BundleError, match=rf"model\.onnx\.data: sha256 of bytes {begin} to {end} is"):
        load(pieced)


@pytest.mark.parametrize(
    "pieces", [[], ["0" * 64], ["0" * 63] * 152, "0" * 64, 3, {"0": "1"}, [None] * 152], ids=str
)
def test_pieces_that_do_not_make_up_the_file_are_refused(pieced: Path, pieces: Any) -> None:
    edit_manifest(pieced, lambda fields: fields["files"]["model.onnx.data"].update(pieces=pieces))
    if pieces == []:
        verify(pieced)  # the hash of the whole stands for it, as in a bundle of an older export
        return
    with pytest.raises(BundleError, match=r"model\.onnx\.data has no size and hash"):
        verify(pieced)


def test_the_hash_of_a_model_is_made_of_what_is_verified(pieced: Path) -> None:
    def pretend(fields: dict[str, Any]) -> None:  # to be another model, by a hash that nobody compares
        fields["files"]["model.onnx.data"]["sha256"] = "1" * 64

    before = verify(pieced).model_sha256
    edit_manifest(pieced, pretend)
    assert verify(pieced).model_sha256 == before


@pytest.mark.parametrize("name", ["model.onnx", "model.onnx.data", "tokenizer.json"])
def test_a_missing_file_is_found(copied: Path, name: str) -> None:
    (copied / name).unlink()
    with pytest.raises(BundleError, match=f"{name}: missing"):
        verify(copied)


def test_a_truncated_file_is_found(copied: Path) -> None:
    (copied / "model.onnx.data").write_bytes(b"")
    with pytest.raises(BundleError, match="0 bytes, the manifest says"):
        verify(copied)


def test_an_added_file_is_found(copied: Path) -> None:
    (copied / "extra.bin").write_bytes(b"x")
    with pytest.raises(BundleError, match=r"extra\.bin: not in the manifest"):
        verify(copied)


def test_what_a_file_manager_leaves_behind_is_no_file_of_the_bundle(copied: Path) -> None:
    (copied / ".DS_Store").write_bytes(b"x")
    verify(copied)


@pytest.mark.parametrize(
    "name", ["../secret", "/etc/passwd", "a/../../b", "a\\b", "C:x", "", ".", "a//b", "./a", ".hidden"]
)
def test_a_path_out_of_the_bundle_is_refused(copied: Path, name: str) -> None:
    edit_manifest(copied, lambda fields: fields["files"].update({name: {"sha256": "0", "bytes": 1}}))
    with pytest.raises(BundleError, match="outside the bundle"):
        verify(copied)


def test_a_link_is_refused(copied: Path, bundle: Path) -> None:
    (copied / "config.json").unlink()
    (copied / "config.json").symlink_to(bundle / "config.json")
    with pytest.raises(BundleError, match=r"config\.json: a link"):
        verify(copied)


def test_a_newer_format_is_refused_with_the_line_that_updates(copied: Path) -> None:
    edit_manifest(copied, lambda fields: fields.update(format_version=2, unheard_of=True))
    with pytest.raises(
        BundleError, match=r"format version 2, this program reads 1; .*pip install -U mothertongue"
    ):
        verify(copied)


def test_too_old_an_onnxruntime_is_refused_with_the_line_that_updates(copied: Path) -> None:
    edit_manifest(copied, lambda fields: fields.update(minimum_onnxruntime="99.1"))
    with pytest.raises(BundleError, match=r"too old, this bundle needs 99\.1; .*pip install -U"):
        verify(copied)


def test_a_file_that_every_bundle_needs_cannot_be_left_out_of_the_manifest(copied: Path) -> None:
    (copied / "tokenizer.json").unlink()
    edit_manifest(copied, lambda fields: fields["files"].pop("tokenizer.json"))
    with pytest.raises(BundleError, match=r"tokenizer\.json: missing"):
        verify(copied)


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "null", '{"format_version": 1}', '{"format_version": 1, "files": {"a": 3}}', "\xff"],
)
def test_a_broken_manifest_is_named(copied: Path, text: str) -> None:
    (copied / "manifest.json").write_text(text, encoding="latin-1")
    with pytest.raises(BundleError, match=r"manifest\.json: not a manifest"):
        verify(copied)


def test_a_missing_bundle_is_answered_with_how_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match="no such bundle; make one with `make chat`"):
        verify(tmp_path / "none")


def test_a_folder_without_a_manifest_is_no_bundle(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match=r"manifest\.json: not found"):
        verify(tmp_path)


def test_a_graph_that_does_not_load_is_named(copied: Path) -> None:
    (copied / "model.onnx").write_bytes(b"nonsense")
    content = (copied / "model.onnx").read_bytes()
    record = {"sha256": hashlib.sha256(content).hexdigest(), "bytes": len(content)}
    edit_manifest(copied, lambda fields: fields["files"].update({"model.onnx": record}))
    with pytest.raises(BundleError, match=r"model\.onnx: not an ONNX graph"):
        load(copied)


def test_versions_compare_by_number() -> None:
    assert version_numbers("1.9.0") < version_numbers("1.23") < version_numbers("1.23.1rc1")
    require_onnxruntime("1.23")


def test_a_bundle_can_be_moved(copied: Path, tmp_path: Path) -> None:
    moved = Path(shutil.move(copied, tmp_path / "অন্য কোথাও"))
    assert verify(moved).format_version == 1


def test_the_specification_names_every_key_and_every_file_that_must_be_there() -> None:
    text = (Path(__file__).parents[2] / "docs/bundle-format.md").read_text(encoding="utf-8")
    specified = set(re.findall(r"^\| `(\w+)` \| [^|]+ \|$", text, flags=re.MULTILINE))
    assert specified == {field.name for field in dataclasses.fields(Manifest)}
    assert set(re.findall(r"^\| `([\w.]+)` \| MUST \|.*$", text, flags=re.MULTILINE)) == {
        MANIFEST_FILE,
        *REQUIRED_FILES,
        "replacements",
    }


def test_two_files_swapped_are_found(copied: Path) -> None:
    (copied / "config.json").rename(copied / "x")
    (copied / "parity.json").rename(copied / "config.json")
    (copied / "x").rename(copied / "parity.json")
    with pytest.raises(BundleError, match=r"config\.json: 19 bytes, the manifest says 345"):
        verify(copied)


def test_a_file_longer_than_the_manifest_says_is_refused_unread(copied: Path) -> None:
    with (copied / "parity.json").open("ab") as file:
        file.truncate(1 << 40)  # a terabyte of nothing, which takes an hour to read
    with pytest.raises(BundleError, match=f"{1 << 40} bytes, the manifest says 19"):
        verify(copied)


def test_an_oversized_manifest_is_refused_unread(copied: Path) -> None:
    with (copied / "manifest.json").open("ab") as file:
        file.truncate(1 << 40)
    with pytest.raises(BundleError, match=f"not a manifest .{1 << 40} bytes, at most"):
        verify(copied)


def test_a_file_behind_a_link_is_refused(copied: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere/secret.json").write_bytes(b"{}")
    (copied / "extra").symlink_to(tmp_path / "elsewhere")
    record = {"sha256": hashlib.sha256(b"{}").hexdigest(), "bytes": 2}
    edit_manifest(copied, lambda fields: fields["files"].update({"extra/secret.json": record}))
    with pytest.raises(BundleError, match=r"a link|behind a link|missing"):
        verify(copied)


@pytest.mark.parametrize("record", [{"sha256": "0", "bytes": 3}, {"sha256": "0" * 64, "bytes": "3"}])
def test_a_record_without_size_or_hash_is_refused(copied: Path, record: dict[str, Any]) -> None:
    edit_manifest(copied, lambda fields: fields["files"].update({"config.json": record}))
    with pytest.raises(BundleError, match=r"config\.json has no size and hash"):
        verify(copied)


def test_one_hash_names_the_model_and_not_its_papers(copied: Path) -> None:
    before = Manifest.read(copied).model_sha256
    other = {"sha256": "1" * 64, "bytes": 19}
    edit_manifest(copied, lambda fields: fields["files"].update({"parity.json": other}))
    assert Manifest.read(copied).model_sha256 == before
    edit_manifest(copied, lambda fields: fields["files"].update({"config.json": other}))
    assert Manifest.read(copied).model_sha256 != before
