import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from mothertongue.errors import BundleError
from mothertongue_export.staging import staged

WAITING = """
import sys, time
from pathlib import Path
from mothertongue_export.staging import staged
with staged(Path(sys.argv[1])) as folder:
    (folder / "half.bin").write_bytes(b"half")
    print("ready", flush=True)
    time.sleep(60)
"""


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_folder_appears_whole_under_its_name(tmp_path: Path) -> None:
    target = tmp_path / "new parent" / "মডেল ১"
    with staged(target) as folder:
        (folder / "model.onnx").write_bytes(b"1")
        assert not target.exists()
    assert names(target.parent) == ["মডেল ১"]
    assert names(target) == ["model.onnx"]


def test_an_error_leaves_the_older_folder_and_nothing_else(tmp_path: Path) -> None:
    target = tmp_path / "bundle"
    with staged(target) as folder:
        (folder / "model.onnx").write_bytes(b"old")
    with pytest.raises(FileNotFoundError), staged(target) as folder:
        (folder / "no folder" / "model.onnx").write_bytes(b"new")
    assert names(tmp_path) == ["bundle"]
    assert (target / "model.onnx").read_bytes() == b"old"


def test_a_full_disk_is_one_line_and_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match="No space left on device"), staged(tmp_path / "bundle"):
        raise OSError(28, "No space left on device", "model.onnx.data")
    assert names(tmp_path) == []


def test_another_error_of_the_system_stays_what_it_is(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), staged(tmp_path / "bundle"):
        (tmp_path / "nowhere").read_bytes()


def test_a_place_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    with (
        pytest.raises(BundleError, match="name a folder that can be written"),
        staged(tmp_path / "file" / "b"),
    ):
        pass


@pytest.mark.skipif(sys.platform == "win32" or os.geteuid() == 0, reason="root may write everywhere")
def test_a_read_only_folder_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    try:
        with pytest.raises(BundleError, match="Permission denied"), staged(tmp_path / "bundle"):
            pass
    finally:
        tmp_path.chmod(0o700)


def test_what_a_killed_export_left_is_taken_away_by_the_next(tmp_path: Path) -> None:
    target = tmp_path / "bundle"
    process = subprocess.Popen([sys.executable, "-c", WAITING, str(target)], stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    with staged(target) as folder:  # while the other lives, its folder is left alone
        (folder / "first").touch()
    assert len(names(tmp_path)) == 2
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    time.sleep(0.05)
    with staged(target) as folder:
        (folder / "second").touch()
    assert names(tmp_path) == ["bundle"]
    assert names(target) == ["second"]


def test_a_bundle_that_a_killed_export_had_moved_aside_comes_back(tmp_path: Path) -> None:
    remains = tmp_path / ".bundle.abc"
    (remains / "old").mkdir(parents=True)
    (remains / "old" / "model.onnx").write_bytes(b"old")
    (remains / "run.lock").touch()
    with pytest.raises(KeyboardInterrupt), staged(tmp_path / "bundle"):
        raise KeyboardInterrupt
    assert names(tmp_path) == ["bundle"]
    assert (tmp_path / "bundle" / "model.onnx").read_bytes() == b"old"
