"""How many threads to compute with: what this process may use, not what the machine has.

A container with a quota of two CPUs on a machine of 64 runs many times slower with 64 threads than with two.
So the affinity mask, the control group's quota (rounded down) and the number of physical cores all count.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

SYSTEM_ROOT = Path("/")


@dataclass(frozen=True, kw_only=True)
class ThreadChoice:
    """A number of threads, and why it is that number."""

    count: int
    reason: str


def choose_threads(requested: int | None = None, *, root: Path = SYSTEM_ROOT) -> ThreadChoice:
    """Return the least of allowed CPUs, CPU quota and physical cores, or `requested` up to the allowed CPUs.

    `root` is where /proc and /sys are looked up. Raises ValueError for fewer than one thread.
    """
    allowed = allowed_cpus()
    if requested is not None:
        if requested < 1:
            raise ValueError(f"threads must be at least 1, got {requested}")
        # More threads than CPUs wait for each other, with a spinning barrier almost for ever.
        if requested > len(allowed):
            return ThreadChoice(count=len(allowed), reason=f"{requested} asked, {len(allowed)} CPUs allowed")
        return ThreadChoice(count=requested, reason="as asked")
    limits = {f"{len(allowed)} CPUs allowed": len(allowed)}
    if (cores := physical_cores(allowed, root)) is not None:
        limits[f"{cores} physical cores"] = cores
    if (quota := cpu_quota(root)) is not None:
        limits[f"a quota of {quota:g} CPUs"] = max(1, int(quota))
    return ThreadChoice(count=min(limits.values()), reason=", ".join(limits))


def allowed_cpus() -> set[int]:
    """Return the numbers of the CPUs that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return os.sched_getaffinity(0)
    return set(range(os.cpu_count() or 1))


def physical_cores(cpus: set[int], root: Path) -> int | None:
    """Return how many physical cores `cpus` belong to, or None where the system does not say."""
    topology = root / "sys/devices/system/cpu"
    siblings = {read(topology / f"cpu{cpu}/topology/thread_siblings_list") for cpu in cpus}
    return None if None in siblings else len(siblings)


def cpu_quota(root: Path) -> float | None:
    """Return the CPUs that the control groups (version 2 or 1) grant this process, None if unlimited."""
    return min(group_quotas(root), default=None)


def group_quotas(root: Path) -> Iterator[float]:
    """Yield the quota of this process's control group and of every group above it, where one is set."""
    for line in (read(root / "proc/self/cgroup") or "").splitlines():
        _, controllers, group = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        mount = root / "sys/fs/cgroup" / ("cpu" if controllers else "")
        # Within a container the path is often the host's and not mounted here; then only the root counts.
        inner = Path(group.lstrip("/"))
        for folder in {mount / inner, *(mount / parent for parent in inner.parents), mount}:
            quota = group_quota_v1(folder) if controllers else group_quota_v2(folder)
            if quota is not None:
                yield quota


def group_quota_v2(folder: Path) -> float | None:
    """Return quota / period of `cpu.max` ("200000 100000"), None for "max" or no such file."""
    quota, _, period = (read(folder / "cpu.max") or "max").partition(" ")
    return None if quota == "max" else int(quota) / int(period or 100_000)


def group_quota_v1(folder: Path) -> float | None:
    """Return cfs_quota_us / cfs_period_us, None for -1 or no such files."""
    quota, period = (read(folder / f"cpu.cfs_{name}_us") for name in ("quota", "period"))
    return None if quota is None or period is None or int(quota) < 0 else int(quota) / int(period)


def read(path: Path) -> str | None:
    """Return the stripped text of a file of the system, None where there is none."""
    try:
        return path.read_text(encoding="utf-8").strip()
    except OSError:
        return None
