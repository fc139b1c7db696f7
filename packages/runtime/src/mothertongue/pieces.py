"""What is shown with each token: bytes become characters, stop texts end it, clusters stay whole."""

from __future__ import annotations

from collections.abc import Sequence

from mothertongue.graphemes import GraphemeStream
from mothertongue.stopping import StopStream
from mothertongue.tokenizer import Tokenizer


class Pieces:
    """Takes ids one by one and gives the text to show; joined it is the decoded answer, up to a stop text."""

    def __init__(self, tokenizer: Tokenizer, stops: Sequence[str], *, graphemes: bool) -> None:
        self._characters = tokenizer.stream()
        self._stops = StopStream(stops)
        self._clusters = GraphemeStream() if graphemes else None

    @property
    def stopped(self) -> bool:
        """Whether a stop text has come."""
        return self._stops.stopped

    def feed(self, token_id: int) -> str:
        """Return the text that `token_id` completes, perhaps none."""
        text = self._stops.feed(self._characters.feed(token_id))
        return self._clusters.feed(text) if self._clusters else text

    def flush(self) -> str:
        """Return what is held back at the end of the answer."""
        text = ""
        if not self.stopped:
            text = self._stops.feed(self._characters.flush()) + self._stops.flush()
        return self._clusters.feed(text) + self._clusters.flush() if self._clusters else text
