"""The arrays of a safetensors file, read in pieces: a frame may be larger than the memory.

The header is read here and not by the safetensors package, since every way in which a hand-written one can
be wrong deserves its own sentence, and since a memory map of 10 GB counts as 10 GB of memory.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mothertongue_arbiter.errors import ArbiterError

DTYPES: dict[str, np.dtype[Any]] = {"F64": np.dtype("<f8"), "F32": np.dtype("<f4")}
PIECE_ELEMENTS = 1 << 21  # 16 MiB of float64
LENGTH_BYTES = 8  # of the number that opens the file: the length of the header
LARGEST_HEADER_BYTES = 100_000_000  # the limit of the safetensors package


@dataclass(frozen=True, kw_only=True)
class Entry:
    """Where an array lies in the file."""

    shape: tuple[int, ...]
    dtype: str
    begin: int  # bytes from the start of the file
    end: int


class StoredArrays(Mapping[str, NDArray[Any]]):
    """The arrays of the safetensors file `path`; nothing but its header is kept in memory.

    Raises:
        ArbiterError: it is no such file, it is cut short, or its header contradicts itself.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        header, start = _read_header(path)
        metadata = header.pop("__metadata__", {})
        self.metadata: dict[str, Any] = metadata if isinstance(metadata, dict) else {}
        self.entries = {name: _entry(path, name, stated, start) for name, stated in header.items()}
        self._check_layout(start)

    def pieces(self, name: str) -> Iterator[NDArray[Any]]:
        """Yield the values of `name` in row-major order, as flat arrays of at most `PIECE_ELEMENTS`."""
        entry = self.entries[name]
        dtype, left = DTYPES[entry.dtype], math.prod(entry.shape)
        with self.path.open("rb", buffering=0) as file:
            file.seek(entry.begin)
            while left:
                piece = np.fromfile(file, dtype=dtype, count=min(left, PIECE_ELEMENTS))
                if not piece.size:
                    raise ArbiterError(f"{self.path}: became shorter while it was read, at {name}")
                left -= piece.size
                yield piece

    def __getitem__(self, name: str) -> NDArray[Any]:
        entry = self.entries[name]
        return np.concatenate([np.empty(0, DTYPES[entry.dtype]), *self.pieces(name)]).reshape(entry.shape)

    def __contains__(self, name: object) -> bool:
        return name in self.entries  # Mapping would load the array to find out

    def __iter__(self) -> Iterator[str]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)

    def _check_layout(self, start: int) -> None:
        """The arrays fill the file from the header to its end, without holes or overlaps."""
        at = start
        for name, entry in sorted(self.entries.items(), key=lambda item: (item[1].begin, item[1].end)):
            if entry.begin != at:
                raise ArbiterError(
                    f"{self.path}: {name} begins at byte {entry.begin - start}, {at - start} expected; "
                    "arrays must neither overlap nor leave holes"
                )
            at = entry.end
        found = self.path.stat().st_size
        if found != at:
            less = "cut short" if found < at else "longer than its header says"
            raise ArbiterError(f"{self.path}: {less}: {found:,} bytes found, {at:,} expected; write it again")


def _read_header(path: Path) -> tuple[dict[str, Any], int]:
    """Return the header of the file, and the byte after it."""
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(LENGTH_BYTES), "little")
            left = path.stat().st_size - LENGTH_BYTES
            if not 0 < length <= min(left, LARGEST_HEADER_BYTES):
                found = f"header of {length:,} bytes announced, {max(left, 0):,} there"
                raise ArbiterError(f"{path}: no safetensors file: {found}")
            text = file.read(length)
    except FileNotFoundError:
        raise ArbiterError(f"{path}: no such frame") from None
    except OSError as error:
        raise ArbiterError(f"{path}: no safetensors file: {error.strerror}") from None
    try:
        header = json.loads(text.decode("utf-8"), object_pairs_hook=_once)
    except _Twice as twice:
        raise ArbiterError(f"{path}: header: {twice} stands there twice, once expected") from None
    except (ValueError, RecursionError) as error:
        raise ArbiterError(f"{path}: no safetensors file: its header is no JSON ({error})") from None
    if not isinstance(header, dict):
        raise ArbiterError(f"{path}: no safetensors file: its header is no JSON object")
    return header, LENGTH_BYTES + length


class _Twice(Exception):
    """A key of a JSON object that stands there twice."""


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise _Twice(repr(name))
        found[name] = value
    return found


def _entry(path: Path, name: str, stated: Any, start: int) -> Entry:
    try:
        shape, dtype = tuple(stated["shape"]), str(stated["dtype"])
        begin, end = stated["data_offsets"]
    except (KeyError, TypeError, ValueError):
        raise ArbiterError(
            f"{path}: header: {name} needs dtype, shape and two data_offsets, {stated!r:.80} found"
        ) from None
    if not all(
        isinstance(one, int) and not isinstance(one, bool) and one >= 0 for one in (*shape, begin, end)
    ):
        raise ArbiterError(
            f"{path}: header: {name}: shape {list(shape)}, bytes {begin} to {end}; none below 0"
        )
    if dtype in DTYPES and end - begin != math.prod(shape) * DTYPES[dtype].itemsize:
        raise ArbiterError(
            f"{path}: header: {name}: {dtype} of shape {list(shape)} takes "
            f"{math.prod(shape) * DTYPES[dtype].itemsize:,} bytes, {end - begin:,} stated"
        )
    return Entry(shape=shape, dtype=dtype, begin=start + begin, end=start + end)
