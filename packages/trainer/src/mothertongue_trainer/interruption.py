"""Ctrl-C as a request: finish what you do, save, stop."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class StopRequest:
    """A context in which the first SIGINT or SIGTERM sets `requested`; the next one acts as outside it."""

    def __init__(self) -> None:
        self.requested = False
        self._handlers: dict[signal.Signals, Any] = {}

    def __enter__(self) -> StopRequest:
        # Python lets only the main thread set handlers; elsewhere a run is stopped by whoever started it.
        if threading.current_thread() is threading.main_thread():
            self._handlers = {number: signal.signal(number, self._request) for number in SIGNALS}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._restore()

    def _request(self, number: int, frame: FrameType | None) -> None:
        self.requested = True
        self._restore()

    def _restore(self) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        self._handlers = {}
