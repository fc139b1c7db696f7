"""A frame: one backward pass in a file, for trainers in any language. The format is docs/frame-format.md."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from mothertongue_arbiter.errors import ArbiterError

VERSION = 1
HEADER = "mothertongue_frame"
DTYPES = ("F64", "F32")


@dataclass(frozen=True, kw_only=True)
class FrameTensor:
    """One tensor of the model, trained or not, with a gradient or without."""

    name: str
    shape: tuple[int, ...]
    trainable: bool = True


@dataclass(frozen=True, kw_only=True)
class Frame:
    """The tensors of a model in forward order, and one gradient of its loss.

    `arrays` maps `param/NAME` and `grad/NAME` to values. A trainable tensor without `grad/NAME` got no
    gradient, which is not the same as a gradient of zeros. Read from a file, an array is loaded each time
    it is asked for.
    """

    tensors: tuple[FrameTensor, ...]
    arrays: Mapping[str, NDArray[Any]]
    loss: float
    step: int = 0

    def parameter(self, name: str) -> NDArray[Any]:
        return self.arrays[f"param/{name}"]

    def gradient(self, name: str) -> NDArray[Any] | None:
        """Return the gradient of `name`; None when the framework returned none."""
        return self.arrays.get(f"grad/{name}")


class StoredArrays(Mapping[str, NDArray[Any]]):
    """The arrays of a safetensors file, one at a time: a frame may be larger than the memory."""

    def __init__(self, path: Path) -> None:
        file: Any = safe_open(path, framework="numpy")
        self._file = file
        self._names = frozenset(self._file.keys())

    @property
    def metadata(self) -> dict[str, str]:
        metadata: dict[str, str] = self._file.metadata() or {}
        return metadata

    def description(self, name: str) -> tuple[tuple[int, ...], str]:
        """Return shape and dtype of an array without loading it."""
        stored = self._file.get_slice(name)
        return tuple(stored.get_shape()), stored.get_dtype()

    def __getitem__(self, name: str) -> NDArray[Any]:
        if name not in self._names:
            raise KeyError(name)
        array: NDArray[Any] = self._file.get_tensor(name)
        return array

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def write_frame(path: Path, frame: Frame) -> None:
    """Write `frame` to `path`, which never holds half of one."""
    header = {
        "version": VERSION,
        "loss": frame.loss,
        "step": frame.step,
        "tensors": [asdict(tensor) for tensor in frame.tensors],
    }
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    os.close(descriptor)
    try:
        arrays = {name: np.ascontiguousarray(array) for name, array in frame.arrays.items()}
        save_file(arrays, temporary, metadata={HEADER: json.dumps(header)})
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def read_frame(path: Path) -> Frame:
    """Return the frame in `path`. Only the header is read now, and every entry is checked against it.

    Raises:
        ArbiterError: no such file, no frame, or entries that do not fit its header.
    """
    try:
        arrays = StoredArrays(path)
        header = json.loads(arrays.metadata[HEADER])
    except FileNotFoundError:
        raise ArbiterError(f"{path}: no such frame") from None
    except (SafetensorError, OSError) as error:
        raise ArbiterError(f"{path}: no safetensors file: {error}") from None
    except (KeyError, json.JSONDecodeError):
        raise ArbiterError(f"{path}: no JSON header {HEADER!r}; see docs/frame-format.md") from None
    try:
        if header["version"] != VERSION:
            raise ArbiterError(f"{path}: frame version {header['version']} found, {VERSION} expected")
        tensors = tuple(
            FrameTensor(name=str(one["name"]), shape=tuple(one["shape"]), trainable=bool(one["trainable"]))
            for one in header["tensors"]
        )
        loss, step = float(header["loss"]), int(header.get("step", 0))
    except (KeyError, TypeError, ValueError) as error:
        raise ArbiterError(f"{path}: header {HEADER!r}: bad or missing {error}") from None
    _check_entries(path, tensors, arrays)
    return Frame(tensors=tensors, arrays=arrays, loss=loss, step=step)


def _check_entries(path: Path, tensors: tuple[FrameTensor, ...], arrays: StoredArrays) -> None:
    shapes = {tensor.name: tensor.shape for tensor in tensors}
    if len(shapes) != len(tensors) or not tensors:
        raise ArbiterError(f"{path}: {len(tensors)} tensors listed, each name once expected")
    missing = [name for name in shapes if f"param/{name}" not in arrays]
    if missing:
        raise ArbiterError(f"{path}: no param/{missing[0]}; every listed tensor needs its values")
    for key in sorted(arrays):
        kind, _, name = key.partition("/")
        if kind not in ("param", "grad") or name not in shapes:
            raise ArbiterError(
                f"{path}: {key!r} is not listed in the header; param/NAME or grad/NAME expected"
            )
        shape, dtype = arrays.description(key)
        if shape != shapes[name]:
            raise ArbiterError(f"{path}: {key} has shape {shape}, the header says {shapes[name]}")
        if dtype not in DTYPES:
            raise ArbiterError(f"{path}: {key} is {dtype}; F64 expected (F32 is read, and certifies nothing)")
