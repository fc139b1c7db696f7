import hashlib
import subprocess
import zipfile
from pathlib import Path

import pytest

from mothertongue.errors import DataError
from mothertongue_trainer import package_data
from mothertongue_trainer.package_data import DATABASE, fetch_database

PACKAGE = "shobdo==0.2.2"
WHEEL = "shobdo-0.2.2-py3-none-any.whl"


class Pip:
    """Stands for the pip subprocess: puts a wheel into --dest, or fails as without a network."""

    def __init__(self, wheel: bytes | None) -> None:
        self.wheel = wheel
        self.commands: list[list[str]] = []

    def __call__(self, command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        self.commands.append(command)
        if self.wheel is None:
            return subprocess.CompletedProcess(command, 1, "", "noise\nERROR: No matching distribution found")
        (Path(command[command.index("--dest") + 1]) / WHEEL).write_bytes(self.wheel)
        return subprocess.CompletedProcess(command, 0, "", "")


def wheel_with(path: Path, member: str) -> bytes:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(member, b"the database")
        archive.writestr("shobdo/__init__.py", "raise RuntimeError('never imported')")
    return path.read_bytes()


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "cache"
    monkeypatch.setenv("MOTHERTONGUE_CACHE", str(folder))
    return folder


def use(monkeypatch: pytest.MonkeyPatch, wheel: bytes | None) -> Pip:
    pip = Pip(wheel)
    monkeypatch.setattr(package_data.subprocess, "run", pip)
    return pip


def test_only_the_database_is_taken_and_only_one_download_is_made(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel = wheel_with(tmp_path / WHEEL, DATABASE)
    pip = use(monkeypatch, wheel)
    sha256 = hashlib.sha256(wheel).hexdigest()
    database = fetch_database(PACKAGE, sha256)
    assert database.read_bytes() == b"the database"
    assert {path.name for path in cache.iterdir()} == {WHEEL, f"{sha256}.db"}
    assert fetch_database(PACKAGE, sha256) == database
    assert len(pip.commands) == 1
    assert {"download", "--no-deps", PACKAGE} <= set(pip.commands[0])


def test_a_wheel_put_there_by_hand_needs_no_network(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel = wheel_with(tmp_path / WHEEL, DATABASE)
    cache.mkdir()
    (cache / WHEEL).write_bytes(wheel)
    pip = use(monkeypatch, None)
    assert fetch_database(PACKAGE, hashlib.sha256(wheel).hexdigest()).read_bytes() == b"the database"
    assert pip.commands == []


def test_a_wrong_hash_deletes_the_file(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, wheel_with(tmp_path / WHEEL, DATABASE))
    with pytest.raises(DataError, match=f"sha256 [0-9a-f]{{64}} found, {'0' * 64} expected"):
        fetch_database(PACKAGE, "0" * 64)
    assert list(cache.iterdir()) == []


def test_without_a_network_the_message_says_what_to_do(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, None)
    with pytest.raises(DataError) as caught:
        fetch_database(PACKAGE, "0" * 64)
    message = str(caught.value)
    assert "\n" not in message
    for part in (PACKAGE, "No matching distribution", WHEEL, str(cache), "[[corpus.files]]"):
        assert part in message
    assert list(cache.iterdir()) == []


def test_a_pip_that_never_answers_is_given_up(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def hang(command: list[str], **_: object) -> None:
        raise subprocess.TimeoutExpired(command, 900)

    monkeypatch.setattr(package_data.subprocess, "run", hang)
    with pytest.raises(DataError, match="no answer in 900 seconds"):
        fetch_database(PACKAGE, "0" * 64)


def test_a_wheel_without_a_dictionary_is_refused(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel = wheel_with(tmp_path / WHEEL, "another/file")
    use(monkeypatch, wheel)
    with pytest.raises(DataError, match="expected in it, not found"):
        fetch_database(PACKAGE, hashlib.sha256(wheel).hexdigest())
    assert {path.name for path in cache.iterdir()} == {WHEEL}


def test_a_cache_that_cannot_be_written_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("in the way", encoding="utf-8")
    monkeypatch.setenv("MOTHERTONGUE_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(DataError, match="MOTHERTONGUE_CACHE"):
        fetch_database(PACKAGE, "0" * 64)
