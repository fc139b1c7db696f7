import hashlib
import shutil
from pathlib import Path

import pytest

from mothertongue.errors import BundleError, CheckpointError, MothertongueError, RecipeError
from mothertongue_export import formats
from mothertongue_export.formats import Home, chosen_formats, home_folder, plan_homes, write_home


def write(checkpoint: Path, bundle: Path, name: str) -> Home:
    (plan,) = plan_homes(checkpoint, bundle, [name])
    return write_home(plan)


def test_formats_are_names_with_commas(tmp_path: Path) -> None:
    assert chosen_formats("bundle") == ["bundle"]
    assert chosen_formats("gguf, hf,gguf") == ["gguf", "hf"]
    for wrong in ("bundle,onnx", "", "bundle,", "GGUF"):
        with pytest.raises(RecipeError, match="is no format; known are bundle, hf, gguf"):
            chosen_formats(wrong)


@pytest.mark.parametrize(
    ("name", "files"),
    [
        ("gguf", {"মডেল ১-F16.gguf", "মডেল ১-Q8_0.gguf", "README.md"}),
        (
            "hf",
            {
                "README.md",
                "config.json",
                "generation_config.json",
                "model.safetensors",
                "tokenizer.json",
                "tokenizer_config.json",
            },
        ),
    ],
)
def test_a_home_has_its_files_with_their_hashes_and_replaces_an_older_one(
    split_as_qwen: Path, tmp_path: Path, name: str, files: set[str]
) -> None:
    bundle = tmp_path / "মডেল ১"
    first = write(split_as_qwen, bundle, name)
    assert write(split_as_qwen, bundle, name) == first  # the same bytes
    assert [path.name for path in tmp_path.iterdir()] == [f"মডেল ১-{name}"]
    assert set(first.files) == files
    sums = (first.folder / "SHA256SUMS").read_text(encoding="utf-8")
    for file in files:
        digest = hashlib.sha256((first.folder / file).read_bytes()).hexdigest()
        assert first.files[file].sha256 == digest
        assert f"{digest}  {file}\n" in sums
    assert first.as_dict()["folder"] == str(first.folder)


@pytest.mark.parametrize("name", ["hf", "gguf"])
def test_a_folder_with_other_files_is_never_replaced(split_as_qwen: Path, tmp_path: Path, name: str) -> None:
    bundle = tmp_path / "tiny"
    folder = home_folder(bundle, name)
    folder.mkdir()
    (folder / "thesis.txt").write_text("years of work", encoding="utf-8")
    for _ in range(2):
        with pytest.raises(BundleError, match="no export wrote it"):
            write(split_as_qwen, bundle, name)
        with pytest.raises(BundleError, match="no export wrote it"):
            plan_homes(split_as_qwen, bundle, [name])
        (folder / "SHA256SUMS").write_text("abc  model.safetensors\n", encoding="utf-8")
    assert sorted(path.name for path in folder.iterdir()) == ["SHA256SUMS", "thesis.txt"]
    shutil.rmtree(folder)
    folder.write_text("a file", encoding="utf-8")
    with pytest.raises(BundleError, match="no export wrote it"):
        plan_homes(split_as_qwen, bundle, [name])


def test_another_split_pattern_is_refused_before_anything_is_written(tied: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="the split pattern is"):
        plan_homes(tied, tmp_path / "tiny", ["hf", "gguf"])
    with pytest.raises(CheckpointError, match="the split pattern is"):
        write(tied, tmp_path / "tiny", "gguf")
    assert list(tmp_path.iterdir()) == []
    assert write(tied, tmp_path / "tiny", "hf").files  # transformers brings its own split


def test_an_error_while_writing_leaves_the_older_home(
    split_as_qwen: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = tmp_path / "tiny"
    older = write(split_as_qwen, bundle, "gguf")

    def fail(*arguments: object, **options: object) -> None:
        raise MothertongueError("read back, it is another model")

    monkeypatch.setattr(formats, "write_gguf", fail)
    with pytest.raises(MothertongueError, match="another model"):
        write(split_as_qwen, bundle, "gguf")
    assert [path.name for path in tmp_path.iterdir()] == ["tiny-gguf"]
    for name, record in older.files.items():
        assert hashlib.sha256((older.folder / name).read_bytes()).hexdigest() == record.sha256


def test_a_place_that_cannot_be_written_is_one_line(split_as_qwen: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(BundleError, match="name a folder that can be written"):
        write(split_as_qwen, tmp_path / "file" / "tiny", "hf")


@pytest.mark.parametrize("out", [".", "..", "/", "bundles/.."])
def test_a_bundle_without_a_name_has_no_place_beside_it(split_as_qwen: Path, out: str) -> None:
    with pytest.raises(BundleError, match="say --out bundles/NAME"):
        plan_homes(split_as_qwen, Path(out), ["hf"])


def test_what_came_in_the_way_meanwhile_stays(split_as_qwen: Path, tmp_path: Path) -> None:
    (plan,) = plan_homes(split_as_qwen, tmp_path / "tiny", ["hf"])
    plan.folder.mkdir()
    (plan.folder / "thesis.txt").write_text("years of work", encoding="utf-8")
    with pytest.raises(BundleError, match="no export wrote it"):
        write_home(plan)
    assert [path.name for path in plan.folder.iterdir()] == ["thesis.txt"]
