import json

import numpy as np
import pytest
from safetensors.numpy import save_file

from mothertongue_arbiter.errors import ArbiterError
from mothertongue_arbiter.frame import Frame, FrameTensor, read_frame, write_frame


def small_frame():
    tensors = (FrameTensor(name="w", shape=(2, 3)), FrameTensor(name="b", shape=(3,), trainable=False))
    arrays = {"param/w": np.ones((2, 3)), "param/b": np.zeros(3), "grad/w": np.arange(6.0).reshape(2, 3)}
    return Frame(tensors=tensors, arrays=arrays, loss=1.5, step=4)


def test_a_frame_is_read_as_it_was_written(tmp_path):
    path = tmp_path / "frame.safetensors"
    write_frame(path, small_frame())
    frame = read_frame(path)
    assert frame.tensors == small_frame().tensors
    assert (frame.loss, frame.step) == (1.5, 4)
    assert frame.gradient("b") is None
    np.testing.assert_array_equal(frame.gradient("w"), np.arange(6.0).reshape(2, 3))
    assert [file.name for file in tmp_path.iterdir()] == ["frame.safetensors"]


def damaged(tmp_path, *, arrays=None, **header):
    frame = small_frame()
    tensors = [
        {"name": "w", "shape": [2, 3], "trainable": True},
        {"name": "b", "shape": [3], "trainable": False},
    ]
    whole = {"version": 1, "loss": 1.5, "tensors": tensors}
    path = tmp_path / "frame.safetensors"
    save_file(
        {**frame.arrays, **(arrays or {})}, path, metadata={"mothertongue_frame": json.dumps(whole | header)}
    )
    return path


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"version": 2}, "version 2 found, 1 expected"),
        ({"loss": None}, "header"),
        ({"loss": 10**400}, "too large"),
        ({"step": float("inf")}, "infinity"),
        ({"tensors": [{"name": "w", "shape": [2, 3]}]}, "trainable"),
        ({"tensors": []}, "0 tensors listed"),
        ({"tensors": [{"name": "w", "shape": [2, 3], "trainable": True}] * 2}, "'w' listed twice"),
        ({"arrays": {"param/x": np.ones(2)}}, "'param/x' is not listed"),
        ({"arrays": {"moment/w": np.ones((2, 3))}}, "param/NAME or grad/NAME expected"),
        ({"arrays": {"grad/w": np.ones((3, 2))}}, "has shape (3, 2), the header says (2, 3)"),
        ({"arrays": {"grad/w": np.ones((2, 3), dtype=np.int64)}}, "is I64; F64 expected"),
        ({"tensors": [{"name": "v", "shape": [2], "trainable": True}]}, "no param/v"),
    ],
)
def test_a_bad_frame_is_answered_in_one_line_that_names_the_entry(tmp_path, change, said):
    path = damaged(tmp_path, **change)
    with pytest.raises(ArbiterError) as failure:
        read_frame(path)
    assert said in str(failure.value)
    assert str(failure.value).startswith(str(path))
    assert "\n" not in str(failure.value)


def test_other_files_are_refused(tmp_path):
    with pytest.raises(ArbiterError, match="no such frame"):
        read_frame(tmp_path / "absent.safetensors")
    (tmp_path / "text.safetensors").write_text("not a frame", encoding="utf-8")
    with pytest.raises(ArbiterError, match="no safetensors file"):
        read_frame(tmp_path / "text.safetensors")
    save_file({"w": np.ones(2)}, tmp_path / "weights.safetensors")
    with pytest.raises(ArbiterError, match="no JSON header"):
        read_frame(tmp_path / "weights.safetensors")


def test_arrays_are_loaded_one_at_a_time(tmp_path):
    path = tmp_path / "frame.safetensors"
    write_frame(path, small_frame())
    frame = read_frame(path)
    assert frame.parameter("w") is not frame.parameter("w")
