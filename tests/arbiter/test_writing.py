import os

import pytest

from mothertongue_arbiter.writing import write_together


def test_all_files_are_written(tmp_path):
    texts = {tmp_path / "a" / "one.txt": "নদী\n", tmp_path / "two.json": "{}"}
    write_together(texts)
    assert {path: path.read_text(encoding="utf-8") for path in texts} == texts
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["a", "one.txt", "two.json"]


def test_when_the_last_one_fails_none_of_them_appears(tmp_path, monkeypatch):
    synchronise, calls = os.fsync, []

    def fails_the_second_time(file):
        calls.append(file)
        if len(calls) == 2:
            raise OSError(28, "No space left on device")
        synchronise(file)

    monkeypatch.setattr("os.fsync", fails_the_second_time)
    with pytest.raises(OSError, match="No space"):
        write_together({tmp_path / "one": "1", tmp_path / "two": "2"})
    assert list(tmp_path.iterdir()) == []
