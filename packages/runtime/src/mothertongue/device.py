"""What this machine is: for `doctor`, and beside every measurement."""

from __future__ import annotations

import os
import platform
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np

# What the 8-bit kernels of onnxruntime use, the best of each family first.
INT8_FLAGS = ("amx_int8", "avx512_vnni", "avx_vnni", "avx512bw", "avx2", "i8mm", "asimddp")
BANDWIDTH_BYTES = 256 << 20  # far beyond the last-level cache of a laptop
BANDWIDTH_REPEATS = 5


@dataclass(frozen=True, kw_only=True)
class Device:
    """A machine, in the words its own system has for it."""

    system: str
    cpu: str
    int8_flags: tuple[str, ...]  # empty where the system does not say
    memory_bytes: int | None
    python: str


def describe_device(cpuinfo: Path = Path("/proc/cpuinfo")) -> Device:
    """Return the machine this runs on; `cpuinfo` is Linux's list of processors."""
    lines = cpuinfo.read_text(encoding="utf-8").splitlines() if cpuinfo.exists() else []
    fields = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
    flags = set(fields.get("flags", fields.get("Features", "")).split())
    return Device(
        system=platform.platform(),
        cpu=fields.get("model name") or platform.processor() or platform.machine(),
        int8_flags=tuple(flag for flag in INT8_FLAGS if flag in flags),
        memory_bytes=memory_bytes(),
        python=platform.python_version(),
    )


def memory_bytes() -> int | None:
    """Return the machine's memory, None where the system does not say."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return None


def peak_memory_bytes() -> int | None:
    """Return the most memory this process has held, None on Windows."""
    try:
        import resource
    except ImportError:
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def read_bandwidth(threads: int) -> float:
    """Return how many bytes a second `threads` threads together read from memory, the best of some tries."""
    values = np.ones(BANDWIDTH_BYTES // 8, np.int64)
    parts = np.array_split(values, threads)
    times_s = []
    with ThreadPoolExecutor(threads) as pool:
        for _ in range(BANDWIDTH_REPEATS):
            start_s = time.perf_counter()
            list(pool.map(np.max, parts))
            times_s.append(time.perf_counter() - start_s)
    return values.nbytes / min(times_s)
