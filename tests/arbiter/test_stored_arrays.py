import json

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from mothertongue_arbiter import stored_arrays
from mothertongue_arbiter.errors import ArbiterError
from mothertongue_arbiter.stored_arrays import StoredArrays


def written(path, header, data=b"\0" * 16, length=None):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes((len(text) if length is None else length).to_bytes(8, "little") + text + data)
    return path


def entry(begin=0, end=16, shape=(2,), dtype="F64"):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end]}


def test_every_array_is_what_the_safetensors_package_reads(tmp_path, monkeypatch):
    rng = np.random.default_rng(0)
    arrays = {
        "w": rng.normal(size=(3, 7)),
        "h": rng.normal(size=5).astype(np.float32),
        "none": np.empty((0, 4)),
    }
    save_file(arrays, tmp_path / "a.safetensors", metadata={"k": "v"})
    monkeypatch.setattr(stored_arrays, "PIECE_ELEMENTS", 4)
    found, expected = StoredArrays(tmp_path / "a.safetensors"), load_file(tmp_path / "a.safetensors")
    assert found.metadata == {"k": "v"}
    assert set(found) == set(expected)
    for name in expected:
        np.testing.assert_array_equal(found[name], expected[name])
        assert found[name].dtype == expected[name].dtype
    assert [len(piece) for piece in found.pieces("h")] == [4, 1]


@pytest.mark.parametrize(
    ("header", "data", "said"),
    [
        (b"{", 16, "its header is no JSON"),
        (b"\xff\xfe", 16, "its header is no JSON"),
        (b"[1]", 16, "no JSON object"),
        (b'{"a": {}, "a": {}}', 16, "'a' stands there twice"),
        ({"a": {"dtype": "F64", "shape": [2]}}, 16, "two data_offsets"),
        ({"a": [1]}, 16, "two data_offsets"),
        ({"a": entry(shape=(-2,))}, 16, "none below 0"),
        ({"a": entry(shape=(2.0,))}, 16, "none below 0"),
        ({"a": entry(begin=-8)}, 16, "none below 0"),
        ({"a": entry(shape=(1 << 61, 4))}, 16, "bytes, 16 stated"),
        ({"a": entry(shape=(3,))}, 16, "takes 24 bytes, 16 stated"),
        ({"a": entry()}, 15, "cut short: "),
        ({"a": entry()}, 17, "longer than its header says"),
        ({"a": entry(), "b": entry(8, 24)}, 24, "begins at byte 8, 16 expected"),
        ({"a": entry(), "b": entry(24, 40)}, 40, "begins at byte 24, 16 expected"),
    ],
)
def test_each_way_to_be_wrong_has_its_own_line(tmp_path, header, data, said):
    path = written(tmp_path / "a.safetensors", header, b"\0" * data)
    with pytest.raises(ArbiterError) as failure:
        StoredArrays(path)
    assert said in str(failure.value)
    assert str(failure.value).startswith(f"{path}: ")
    assert "\n" not in str(failure.value)


@pytest.mark.parametrize("length", [0, 3000, 1 << 63])
def test_a_header_that_cannot_be_there_is_refused(tmp_path, length):
    path = written(tmp_path / "a.safetensors", {}, length=length)
    with pytest.raises(ArbiterError, match="no safetensors file: header of"):
        StoredArrays(path)


def test_a_folder_an_empty_file_and_nothing_are_refused(tmp_path):
    (tmp_path / "empty.safetensors").touch()
    for path, said in (
        (tmp_path, "directory"),
        (tmp_path / "empty.safetensors", "0 there"),
        (tmp_path / "x", "no such"),
    ):
        with pytest.raises(ArbiterError, match=said):
            StoredArrays(path)


def test_a_file_that_shrinks_meanwhile_is_noticed(tmp_path):
    path = written(tmp_path / "a.safetensors", {"a": entry()})
    arrays = StoredArrays(path)
    path.write_bytes(path.read_bytes()[:-16])
    with pytest.raises(ArbiterError, match="became shorter"):
        arrays["a"]
