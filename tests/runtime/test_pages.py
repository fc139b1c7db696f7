"""Large pages, judged by the kernel's own account of them in /proc/self/smaps_rollup."""

import mmap
import threading
from pathlib import Path

import numpy as np
import pytest

from mothertongue import pages as module
from mothertongue.pages import (
    PAGE_BYTES,
    address,
    file_ranges,
    gather,
    gather_behind,
    let_go,
    new_ranges,
    private_ranges,
    unfilled,
)

MAPS = """\
00400000-00500000 r-xp 00000000 08:01 131 /usr/bin/python3.11
01000000-01200000 rw-p 00000000 00:00 0 [heap]
7f0000000000-7f0000400000 rw-p 00000000 00:00 0
7f0000400000-7f0000500000 rw-p 00000000 08:01 77 /a path/with spaces
7f0000500000-7f0000600000 rw-s 00000000 00:00 0
7f0000600000-7f0000700000 ---p 00000000 00:00 0
7ffc00000000-7ffc00100000 rw-p 00000000 00:00 0 [stack]
"""
linux_only = pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="only Linux says so")


def test_private_memory_is_what_can_be_written_and_belongs_to_no_file(tmp_path: Path) -> None:
    (tmp_path / "maps").write_text(MAPS, encoding="utf-8")
    found = private_ranges(tmp_path / "maps")
    assert found == [(0x1000000, 0x1200000), (0x7F0000000000, 0x7F0000400000)]


def test_where_the_system_does_not_say_nothing_is_known(tmp_path: Path) -> None:
    assert private_ranges(tmp_path / "none") == file_ranges(Path("/a"), tmp_path / "none") == []


def status_kb(name: str) -> int:
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name + ":"))


@linux_only
def test_pages_of_a_file_that_are_let_go_are_read_again_when_they_are_needed(tmp_path: Path) -> None:
    path = tmp_path / "টেবিল ১"
    values = np.arange(4 * PAGE_BYTES, dtype=np.uint8)
    values.tofile(path)
    with path.open("rb") as file:
        table = np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY), np.uint8)
    np.testing.assert_array_equal(table, values)
    before_kb, ranges = status_kb("RssFile"), file_ranges(path)
    assert ranges == [(begin := address(table), begin + len(values))]
    let_go(ranges)
    assert before_kb - status_kb("RssFile") > 3 * (PAGE_BYTES >> 10)
    np.testing.assert_array_equal(table, values)


@linux_only
def test_memory_not_yet_filled_is_not_taken_and_comes_back_at_once() -> None:
    before_kb = status_kb("RssAnon")
    for _ in range(3):
        zeros = unfilled((64, 1 << 20))
        assert (zeros.shape, zeros.dtype, zeros.flags.writeable) == ((64, 1 << 20), np.float32, True)
        assert not zeros[::7, ::99_999].any()  # reading takes none
        zeros[0] = 1.0
        assert status_kb("RssAnon") - before_kb < 12 << 10
    del zeros
    assert status_kb("RssAnon") - before_kb < 4 << 10


def test_too_large_a_cache_is_an_error() -> None:
    with pytest.raises((OSError, OverflowError, MemoryError), match=r"\w"):
        unfilled((1 << 40, 1 << 10))


@pytest.mark.parametrize(
    ("after", "before", "new"),
    [
        ([(0, 10)], [], [(0, 10)]),
        ([(0, 10)], [(0, 10)], []),
        ([(0, 20)], [(5, 10)], [(0, 5), (10, 20)]),  # joined with what lies on both sides
        ([(0, 20), (30, 40)], [(2, 4), (6, 8), (35, 50)], [(0, 2), (4, 6), (8, 20), (30, 35)]),
        ([(5, 10)], [(0, 5), (10, 20)], [(5, 10)]),
    ],
)
def test_new_is_what_was_not_there_before(
    after: list[tuple[int, int]], before: list[tuple[int, int]], new: list[tuple[int, int]]
) -> None:
    assert list(new_ranges(after, before)) == new


def large_kb() -> int:
    lines = Path("/proc/self/smaps_rollup").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("AnonHugePages:"))


def filled(size_bytes: int) -> tuple[mmap.mmap, tuple[int, int]]:
    """Private memory in small pages with something in each, and where it is."""
    memory = mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_NOHUGEPAGE)
    values = np.frombuffer(memory, np.uint8)
    values[:] = np.arange(len(values), dtype=np.uint8)
    memory.madvise(mmap.MADV_HUGEPAGE)
    begin = address(values)
    return memory, (begin, begin + size_bytes)


@linux_only
def test_gathered_memory_lies_in_large_pages_and_holds_what_it_held() -> None:
    memory, place = filled(8 * PAGE_BYTES)
    before_kb = large_kb()
    gathered = gather([place], lambda: True)
    if gathered == 0:
        pytest.skip("this kernel does not gather pages on request")
    assert gathered >= 7 * PAGE_BYTES
    assert large_kb() - before_kb >= 7 * (PAGE_BYTES >> 10)
    values = np.frombuffer(memory, np.uint8)
    np.testing.assert_array_equal(values, np.arange(len(values), dtype=np.uint8))


@linux_only
def test_memory_that_is_not_in_use_is_not_filled() -> None:
    memory = mmap.mmap(-1, 8 * PAGE_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_NOHUGEPAGE)
    values = np.frombuffer(memory, np.uint8)
    values[:: 2 * mmap.PAGESIZE] = 1  # every other page
    memory.madvise(mmap.MADV_HUGEPAGE)
    begin = address(values)
    assert gather([(begin, begin + len(values))], lambda: True) == 0


@linux_only
def test_nothing_is_gathered_that_is_no_longer_wanted_or_no_longer_there() -> None:
    _, place = filled(2 * PAGE_BYTES)
    assert gather([place], lambda: False) == 0
    assert gather([(0, 4 * PAGE_BYTES)], lambda: True) == 0


class Owner:
    """Something that takes memory."""


@linux_only
def test_only_much_memory_is_worth_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    monkeypatch.setattr(module, "gather", lambda ranges, wanted: seen.append(wanted()))
    before, owner = private_ranges(), Owner()
    gather_behind(owner, before)
    memory, _ = filled(module.LEAST_BYTES)
    gather_behind(owner, before)
    for thread in [thread for thread in threading.enumerate() if thread.name == "gather"]:
        thread.join()
    assert (seen, len(memory)) == ([True], module.LEAST_BYTES)


@linux_only
def test_a_dropped_owner_is_no_longer_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    handed = []
    monkeypatch.setattr(module, "gather", lambda ranges, wanted: handed.append(wanted))
    monkeypatch.setattr(module, "LEAST_BYTES", 0)
    owner = Owner()
    gather_behind(owner, [])
    for thread in [thread for thread in threading.enumerate() if thread.name == "gather"]:
        thread.join()
    assert handed[0]()
    del owner
    assert not handed[0]()
