"""The sessions of one model: each answer borrows the one whose cache holds most of its prompt."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from mothertongue.errors import MothertongueError
from mothertongue.session import Engine, Session
from mothertongue.tokenizer import common_prefix

# A conversation shorter than this is computed again in less time than a new cache is worth.
WORTH_KEEPING_TOKENS = 64


class SessionPool:
    """At most `limit` sessions on one engine, made when they are needed and kept for their caches."""

    def __init__(self, engine: Engine, *, limit: int) -> None:
        if limit < 1:
            raise ValueError(f"sessions must be at least 1, got {limit}")
        self._engine = engine
        self._limit = limit
        self._lock = threading.Lock()
        self._free: list[Session] = []  # the one used last at the end
        self._lent = 0

    @contextmanager
    def borrow(self, prompt: Sequence[int]) -> Iterator[Session]:
        """Lend a session to the answer to `prompt`.

        Raises MothertongueError if all are lent.
        """
        session = self._take(prompt)
        try:
            yield session
        finally:
            with self._lock:
                self._lent -= 1
                self._free.append(session)

    def _take(self, prompt: Sequence[int]) -> Session:
        with self._lock:
            if self._lent == self._limit:
                raise MothertongueError(
                    f"as many answers are being written as this model was loaded for: {self._lent}; "
                    f"finish or cancel one, or load it with sessions={2 * self._limit}"
                )
            self._lent += 1
            best = max(self._free, key=lambda session: common_prefix(session.tokens, prompt), default=None)
            if best and self._would_lose(best, prompt):
                best = None if self._lent + len(self._free) <= self._limit else self._free[0]
            if best:
                self._free.remove(best)
                return best
        try:
            return self._engine.session()
        except BaseException:
            with self._lock:
                self._lent -= 1
            raise

    @staticmethod
    def _would_lose(session: Session, prompt: Sequence[int]) -> bool:
        """Return whether most of a long conversation in the cache would make room for `prompt`."""
        shared = common_prefix(session.tokens, prompt)
        return session.position - shared >= WORTH_KEEPING_TOKENS and 2 * shared < session.position
