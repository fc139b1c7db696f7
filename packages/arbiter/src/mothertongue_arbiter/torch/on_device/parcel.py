"""Tensors, and times, on their way from a device to the host in the background."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


class Parcel:
    """Copies of `tensors`. From a CUDA device they come through pinned memory, and nothing waits for them."""

    def __init__(self, tensors: Sequence[Tensor | None]) -> None:
        self._tensors = [None if tensor is None else _hosted(tensor) for tensor in tensors]
        self._ready: list[torch.cuda.Event] = []
        for device in {tensor.device for tensor in tensors if tensor is not None and tensor.is_cuda}:
            event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            event.record(torch.cuda.current_stream(device))
            self._ready.append(event)

    @property
    def has_arrived(self) -> bool:
        return all(event.query() for event in self._ready)  # type: ignore[no-untyped-call]

    def open(self) -> list[Tensor | None]:
        """Return the tensors on the host, in the order in which they were sent; wait for them if need be."""
        for event in self._ready:
            event.synchronize()
        return self._tensors


class DeviceClock:
    """Times what is launched inside on a CUDA device; read it when a later parcel has arrived."""

    def __init__(self, device: torch.device) -> None:
        on_cuda = device.type == "cuda"
        events = range(2 if on_cuda else 0)
        self._events = [torch.cuda.Event(enable_timing=True) for _ in events]  # type: ignore[no-untyped-call]

    def __enter__(self) -> DeviceClock:
        for event in self._events[:1]:
            event.record()
        return self

    def __exit__(self, *error: object) -> None:
        for event in self._events[1:]:
            event.record()

    @property
    def seconds(self) -> float:
        """The time on the device; 0 on a CPU, where the host sees it."""
        if not self._events:
            return 0.0
        begin, end = self._events
        milliseconds: float = begin.elapsed_time(end)
        return milliseconds / 1000


def _hosted(tensor: Tensor) -> Tensor:
    tensor = tensor.detach()
    if not tensor.is_cuda:
        return tensor.cpu()
    pinned = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    return pinned.copy_(tensor, non_blocking=True)
