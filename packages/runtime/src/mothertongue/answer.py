"""An answer while it is written, for a thread, for asyncio, or in one piece; and the finished one."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass

from mothertongue.generate import Token


@dataclass(frozen=True, kw_only=True)
class Completion:
    """A whole answer, and how long it took."""

    text: str
    finish_reason: str  # end, stop, length, context or cancelled
    prompt_tokens: int
    tokens: int  # made by the model, the one that ends the answer included
    seconds_to_first_token: float
    tokens_per_second: float  # of those after the first; of the only one, if there is but one


class Answer:
    """The tokens of one answer, in the order in which the model makes them.

    `for token in answer` and `async for token in answer` both work. `finish_reason` is None until the answer
    is over: `end` (the model ended it), `stop` (a stop text), `length` (max_tokens), `context` (no room is
    left) or `cancelled`. Threads may share an answer: each token goes to one of them.
    """

    def __init__(
        self,
        write: Callable[[Callable[[], bool]], Generator[Token, None, str]],
        *,
        prompt_tokens: int,
        forgotten_turns: int = 0,
        finished: Callable[[str], None] = lambda text: None,
    ) -> None:
        self.prompt_tokens = prompt_tokens
        self.forgotten_turns = forgotten_turns  # of the conversation, that found no room
        self.finish_reason: str | None = None
        self._cancelled = threading.Event()
        self._tokens = write(self._cancelled.is_set)
        self._finished = finished  # called once with the text shown
        self._text = ""
        self._lock = threading.Lock()
        self._over = False

    @property
    def text(self) -> str:
        """The answer so far."""
        return self._text

    def __iter__(self) -> Answer:
        return self

    def __next__(self) -> Token:
        with self._lock:
            token = self._next()
        if token is None:
            raise StopIteration
        return token

    def __aiter__(self) -> Answer:
        return self

    async def __anext__(self) -> Token:
        import asyncio  # deferred: a fiftieth of a second, and whoever awaits has it

        try:
            token = await asyncio.to_thread(next, self, None)
        except asyncio.CancelledError:
            self.cancel()
            raise
        if token is None:
            raise StopAsyncIteration
        return token

    def cancel(self) -> None:
        """End the answer, from any thread: at once, or after the run that is now under way."""
        self._cancelled.set()
        # Whoever holds the lock is within a run and will see the flag.
        if self._lock.acquire(blocking=False):
            try:
                self._end("cancelled")
            finally:
                self._lock.release()

    def complete(self) -> Completion:
        """Return the rest of the answer in one piece."""
        start_s = first_s = time.perf_counter()
        texts: list[str] = []
        for token in self:
            if not texts:
                first_s = time.perf_counter()
            texts.append(token.text)
        end_s = time.perf_counter()
        after_first = len(texts) - 1
        span_s = end_s - first_s if after_first > 0 else first_s - start_s
        return Completion(
            text="".join(texts),
            finish_reason=self.finish_reason or "cancelled",
            prompt_tokens=self.prompt_tokens,
            tokens=len(texts),
            seconds_to_first_token=first_s - start_s,
            tokens_per_second=max(after_first, 1) / span_s if texts else 0.0,
        )

    async def acomplete(self) -> Completion:
        """Return the rest of the answer in one piece without holding up the event loop."""
        import asyncio

        try:
            return await asyncio.to_thread(self.complete)
        except asyncio.CancelledError:
            self.cancel()
            raise

    def _next(self) -> Token | None:
        """Return the next token, None if the answer is over. The lock is held."""
        if self._over:
            return None
        try:
            token = next(self._tokens)
        except StopIteration as over:
            self._end(over.value)
            return None
        except BaseException:
            self._end(None)
            raise
        self._text += token.text
        if self._cancelled.is_set():
            self._end("cancelled")
        return token

    def _end(self, reason: str | None) -> None:
        """Give back what the answer holds, once; `reason` is None after an error."""
        if not self._over:
            self._over, self.finish_reason = True, reason
            self._tokens.close()
            self._finished(self._text)
