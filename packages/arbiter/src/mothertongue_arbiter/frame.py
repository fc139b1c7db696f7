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
from safetensors.numpy import save_file

from mothertongue_arbiter.errors import ArbiterError
from mothertongue_arbiter.stored_arrays import DTYPES, PIECE_ELEMENTS, StoredArrays

VERSION = 1
HEADER = "mothertongue_frame"


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
    it is asked for; an audit reads it in pieces and never holds one whole.
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

    def dtype(self, key: str) -> str:
        """Return the dtype of the array `key` as safetensors names it: F64 or F32."""
        if isinstance(self.arrays, StoredArrays):
            return self.arrays.entries[key].dtype
        return next((name for name, dtype in DTYPES.items() if dtype == self.arrays[key].dtype), "another")

    def pieces(self, key: str) -> Iterator[tuple[int, NDArray[np.float64]]]:
        """Yield the values of the array `key` in float64, row by row: number of the first, flat values."""
        if isinstance(self.arrays, StoredArrays):
            parts = self.arrays.pieces(key)
        else:
            flat = self.arrays[key].ravel()
            parts = (flat[at : at + PIECE_ELEMENTS] for at in range(0, flat.size, PIECE_ELEMENTS))
        start = 0
        for part in parts:
            yield start, part.astype(np.float64, copy=False)
            start += part.size


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
    arrays = StoredArrays(path)
    try:
        header = json.loads(arrays.metadata[HEADER])
    except (KeyError, TypeError, ValueError, RecursionError):
        raise ArbiterError(f"{path}: no JSON header {HEADER!r}; see docs/frame-format.md") from None
    try:
        if header["version"] != VERSION:
            raise ArbiterError(f"{path}: frame version {header['version']} found, {VERSION} expected")
        tensors = tuple(
            FrameTensor(name=str(one["name"]), shape=tuple(one["shape"]), trainable=bool(one["trainable"]))
            for one in header["tensors"]
        )
        loss, step = float(header["loss"]), int(header.get("step", 0))
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise ArbiterError(f"{path}: header {HEADER!r}: bad or missing {error}") from None
    _check_entries(path, tensors, arrays)
    return Frame(tensors=tensors, arrays=arrays, loss=loss, step=step)


def _check_entries(path: Path, tensors: tuple[FrameTensor, ...], arrays: StoredArrays) -> None:
    shapes = {tensor.name: tensor.shape for tensor in tensors}
    names = [tensor.name for tensor in tensors]
    twice = (
        next((name for name in names if names.count(name) > 1), None) if len(shapes) < len(names) else None
    )
    if twice is not None:
        raise ArbiterError(f"{path}: tensor {twice!r} listed twice, each name once expected")
    if not tensors:
        raise ArbiterError(f"{path}: 0 tensors listed, every tensor of the model expected")
    missing = [name for name in shapes if f"param/{name}" not in arrays]
    if missing:
        raise ArbiterError(f"{path}: no param/{missing[0]}; every listed tensor needs its values")
    for key, entry in sorted(arrays.entries.items()):
        kind, _, name = key.partition("/")
        if kind not in ("param", "grad") or name not in shapes:
            raise ArbiterError(
                f"{path}: {key!r} is not listed in the header; param/NAME or grad/NAME expected"
            )
        if entry.shape != shapes[name]:
            raise ArbiterError(f"{path}: {key} has shape {entry.shape}, the header says {shapes[name]}")
        if entry.dtype not in DTYPES:
            raise ArbiterError(
                f"{path}: {key} is {entry.dtype}; F64 expected (F32 is read, and certifies nothing)"
            )
