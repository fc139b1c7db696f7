"""Memory by the page: large pages for the weights, and none for what is not in use.

Large pages are gathered in the background once the weights are loaded, on Linux from 6.1 on.
Each token reads every weight. In pages of 4 KiB the processor has 100,000 addresses to look up for that in a
model of 400 MB, in pages of 2 MiB two hundred: 25 against 20 ms a token. onnxruntime asks for no large ones,
so the kernel is asked afterwards to put the small ones together. Where it cannot, all stays as it is.
"""

from __future__ import annotations

import ctypes
import math
import mmap
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

PAGE_BYTES = 1 << 21
SETTLE_S = 0.2  # before gathering, which holds up whoever maps memory: loading comes first
LEAST_BYTES = 1 << 26  # less than this stays in the caches of a processor
MADV_COLLAPSE = 25  # madvise(2)
MAPS = Path("/proc/self/maps")

Range: TypeAlias = tuple[int, int]  # addresses: the first, and the first after it


def unfilled(shape: tuple[int, ...]) -> npt.NDArray[np.float32]:
    """Return zeros that take memory only where they are written, and give it back once they are dropped.

    `np.zeros` does so only where malloc happens to map the block. Raises OSError if there is no room.
    """
    private = {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if hasattr(mmap, "MAP_ANONYMOUS") else {}
    memory = mmap.mmap(-1, 4 * math.prod(shape), **private)
    return np.frombuffer(memory, np.float32).reshape(shape)


def address(array: npt.NDArray[Any]) -> int:
    """Return where the first element of `array` is in memory."""
    return int(array.__array_interface__["data"][0])


def give_back() -> None:
    """Return memory to the system that malloc keeps, where it can be told to: glibc."""
    if sys.platform == "linux" and hasattr(c_library(), "malloc_trim"):
        c_library().malloc_trim(0)


def gather_behind(owner: Any, before: Sequence[Range]) -> None:
    """Gather, in a thread of its own, what `owner` has taken since `private_ranges` gave `before`.

    It takes half a second of one core for 400 MB, and ends early if `owner` is dropped.
    """
    ranges = list(new_ranges(private_ranges(), before))
    if sum(end - begin for begin, end in ranges) >= LEAST_BYTES:
        alive = weakref.ref(owner)
        arguments = (ranges, lambda: alive() is not None)
        threading.Thread(target=gather, args=arguments, name="gather", daemon=True).start()


def private_ranges(maps: Path = MAPS) -> list[Range]:
    """Return the writable memory of this process that belongs to no file, in order; none where not known."""
    return [place for place, access, name in mappings(maps) if access == "rw-p" and name in ("", "[heap]")]


def file_ranges(path: Path, maps: Path = MAPS) -> list[Range]:
    """Return where parts of the file at `path` are mapped; none where not known."""
    wanted = str(path.resolve())
    return [place for place, _, name in mappings(maps) if name == wanted]


def mappings(maps: Path) -> Iterator[tuple[Range, str, str]]:
    """Yield place, access and name of each mapping in `maps`."""
    for line in maps.read_text(encoding="utf-8").splitlines() if maps.exists() else []:
        addresses, access, _, _, _, *name = line.split(maxsplit=5)
        begin, _, end = addresses.partition("-")
        yield (int(begin, 16), int(end, 16)), access, "".join(name)


def let_go(ranges: Sequence[Range]) -> None:
    """Take the pages at `ranges` of a file, which nobody has written to, out of this process.

    They stay in the system's cache, and come back when they are read. A row of a table brings 15 pages along.
    """
    if ranges:
        libc = c_library()
        for begin, end in ranges:
            libc.madvise(begin, end - begin, mmap.MADV_DONTNEED)


def new_ranges(after: Sequence[Range], before: Sequence[Range]) -> Iterator[Range]:
    """Yield the parts of the ranges `after` that lie in none of `before`; both are in order."""
    for begin, end in after:
        for old_begin, old_end in before:
            if old_end <= begin or end <= old_begin:
                continue
            if begin < old_begin:
                yield begin, old_begin
            begin = max(begin, old_end)
        if begin < end:
            yield begin, end


def gather(ranges: Sequence[Range], wanted: Callable[[], bool]) -> int:
    """Put the pages of `ranges` together while that is `wanted`; return the bytes now in large pages."""
    time.sleep(SETTLE_S)
    libc = c_library()
    here = ctypes.create_string_buffer(PAGE_BYTES // mmap.PAGESIZE)  # a byte for each small page
    gathered = 0
    for begin, end in ranges:
        for page in range(-(-begin // PAGE_BYTES) * PAGE_BYTES, end - PAGE_BYTES + 1, PAGE_BYTES):
            if not wanted():
                return gathered
            # A large page takes the memory of all its small ones: what is not yet filled stays as it is.
            if libc.mincore(page, PAGE_BYTES, here) != 0 or not all(here.raw):
                continue
            if libc.madvise(page, PAGE_BYTES, MADV_COLLAPSE) == 0:
                gathered += PAGE_BYTES
    return gathered


@cache
def c_library() -> Any:
    """Return the C library of this process, on Linux."""
    libc = ctypes.CDLL(None)
    libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    libc.mincore.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p)
    return libc
