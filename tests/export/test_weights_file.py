from pathlib import Path

import numpy as np
import onnx

from mothertongue_export.weights_file import WeightsFile, view


def test_tensors_start_at_pages_and_read_back(tmp_path: Path) -> None:
    arrays = {"a": np.arange(5, dtype=np.uint8), "b": np.linspace(0, 1, 6, dtype=np.float32).reshape(2, 3)}
    with WeightsFile(tmp_path / "weights") as file:
        tensors = {name: file.append(name, array) for name, array in arrays.items()}
    for name, tensor in tensors.items():
        offset = next(int(entry.value) for entry in tensor.external_data if entry.key == "offset")
        assert offset % 4096 == 0
        np.testing.assert_array_equal(onnx.numpy_helper.to_array(tensor, str(tmp_path)), arrays[name])
    assert (tmp_path / "weights").stat().st_size == 4096 + arrays["b"].nbytes


def test_a_view_stores_nothing_and_has_another_shape(tmp_path: Path) -> None:
    array = np.arange(12, dtype=np.uint8).reshape(3, 4)
    with WeightsFile(tmp_path / "weights") as file:
        other = view(file.append("a", array), "b", (2, 6))
    assert (tmp_path / "weights").stat().st_size == array.nbytes
    np.testing.assert_array_equal(onnx.numpy_helper.to_array(other, str(tmp_path)), array.reshape(2, 6))
