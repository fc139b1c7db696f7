"""The time that something takes on a device."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch


def seconds_of(action: Callable[[], Any], device: torch.device) -> float:
    """Return the seconds of `action`, what it left to `device` included."""
    _wait(device)
    begin = time.perf_counter()
    action()
    _wait(device)
    return time.perf_counter() - begin


def _wait(device: torch.device) -> None:
    if device.type != "cpu":
        torch.accelerator.synchronize(device)
