"""Stop texts: an answer ends before the first of them, and not a character of one is shown."""

from __future__ import annotations

from collections.abc import Sequence


class StopStream:
    """Gives text up to the first of some stop texts, however they are cut into pieces."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = stops
        self._held = ""  # the longest end of the text that may be the beginning of a stop text
        self.stopped = False

    def feed(self, text: str) -> str:
        """Return what can be shown now; nothing more once `stopped`."""
        if not self._stops:
            return text
        whole = self._held + text
        places = [place for stop in self._stops if (place := whole.find(stop)) >= 0]
        if places:
            self.stopped, self._held = True, ""
            return whole[: min(places)]
        held = max(overlap(whole, stop) for stop in self._stops)
        self._held = whole[len(whole) - held :]
        return whole[: len(whole) - held]

    def flush(self) -> str:
        """Return what was held back for a stop text that never came."""
        held, self._held = self._held, ""
        return held


def overlap(text: str, stop: str) -> int:
    """Return how many characters at the end of `text` are the beginning of `stop`."""
    lengths = range(min(len(text), len(stop) - 1), 0, -1)
    return next((length for length in lengths if text.endswith(stop[:length])), 0)
