"""Large pages for the weights, gathered in the background once they are loaded; Linux from 6.1 on.

Each token reads every weight. In pages of 4 KiB the processor has 100,000 addresses to look up for that in a
model of 400 MB, in pages of 2 MiB two hundred: 25 against 20 ms a token. onnxruntime asks for no large ones,
so the kernel is asked afterwards to put the small ones together. Where it cannot, all stays as it is.
"""

from __future__ import annotations

import ctypes
import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeAlias

PAGE_BYTES = 1 << 21
LEAST_BYTES = 1 << 26  # less than this stays in the caches of a processor
MADV_COLLAPSE = 25  # madvise(2)
MAPS = Path("/proc/self/maps")

Range: TypeAlias = tuple[int, int]  # addresses: the first, and the first after it


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
    ranges = []
    for line in maps.read_text(encoding="utf-8").splitlines() if maps.exists() else []:
        addresses, access, _, _, inode, *name = line.split(maxsplit=5)
        if access == "rw-p" and inode == "0" and name in ([], ["[heap]"]):
            begin, _, end = addresses.partition("-")
            ranges.append((int(begin, 16), int(end, 16)))
    return ranges


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
    if sys.platform != "linux":
        return 0
    madvise = ctypes.CDLL(None).madvise
    madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    gathered = 0
    for begin, end in ranges:
        for page in range(-(-begin // PAGE_BYTES) * PAGE_BYTES, end - PAGE_BYTES + 1, PAGE_BYTES):
            if not wanted():
                return gathered
            if madvise(page, PAGE_BYTES, MADV_COLLAPSE) == 0:
                gathered += PAGE_BYTES
    return gathered
