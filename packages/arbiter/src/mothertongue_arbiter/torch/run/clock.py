"""The time that something takes on a device."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

SCHEDULER = Path("/proc/thread-self/schedstat")  # nanoseconds: running, ready but waiting; time slices
SHORTEST_SECONDS = 1e-9


def seconds_of(action: Callable[[], Any], device: torch.device) -> float:
    """Return the seconds of `action`, what it left to `device` included.

    On a busy processor the time in which this thread was ready and another one ran does not count.
    """
    _wait(device)
    begin, waited = time.perf_counter(), _waited_seconds(device)
    action()
    _wait(device)
    return max(time.perf_counter() - begin - (_waited_seconds(device) - waited), SHORTEST_SECONDS)


def _waited_seconds(device: torch.device) -> float:
    """Return how long this thread has waited for a processor so far; 0 where the system does not say."""
    if device.type != "cpu":
        return 0.0
    try:
        return int(SCHEDULER.read_text().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):  # not Linux, or a kernel that does not count
        return 0.0


def _wait(device: torch.device) -> None:
    if device.type != "cpu":
        torch.accelerator.synchronize(device)
