"""The data file beside model.onnx: raw tensors, page aligned so that onnxruntime can map them into memory."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

import numpy as np
import onnx
from numpy.typing import NDArray

PAGE_BYTES = 4096


class WeightsFile:
    """Writes tensors one after another and returns initializers that point at them."""

    def __init__(self, path: Path) -> None:
        self._name = path.name
        self._file: BinaryIO = path.open("wb")

    def __enter__(self) -> WeightsFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def append(self, name: str, array: NDArray[Any]) -> onnx.TensorProto:
        """Write `array` at the next page and return an initializer called `name` for it."""
        self._file.write(bytes(-self._file.tell() % PAGE_BYTES))
        tensor = onnx.TensorProto(
            name=name, dims=array.shape, data_type=onnx.helper.np_dtype_to_tensor_dtype(array.dtype)
        )
        place = {"location": self._name, "offset": self._file.tell(), "length": array.nbytes}
        tensor.data_location = onnx.TensorProto.EXTERNAL
        for key, value in place.items():
            tensor.external_data.add(key=key, value=str(value))
        self._file.write(np.ascontiguousarray(array).astype(array.dtype.newbyteorder("<"), copy=False).data)
        return tensor


def view(tensor: onnx.TensorProto, name: str, shape: tuple[int, ...]) -> onnx.TensorProto:
    """Return an initializer called `name` for the bytes of `tensor` in another shape; nothing is stored."""
    other = onnx.TensorProto()
    other.CopyFrom(tensor)
    other.name = name
    other.dims[:] = shape
    return other
