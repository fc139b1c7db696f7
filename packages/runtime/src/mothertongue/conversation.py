"""A conversation with a model: who said what, and what of it still fits the model's context."""

from __future__ import annotations

from collections.abc import Generator

from mothertongue.chat import Message
from mothertongue.generate import Piece
from mothertongue.model import GREEDY, Model
from mothertongue.sampling import Sampling


class Conversation:
    """Asks a model one question after the other, and forgets the oldest turns when they no longer fit."""

    def __init__(
        self,
        model: Model,
        *,
        system: str | None = None,
        sampling: Sampling = GREEDY,
        max_tokens: int | None = None,
    ) -> None:
        self._model = model
        self._opening = [Message("system", system)] if system else []
        self._turns: list[Message] = []  # question and answer in turn
        self.forgotten_turns = 0  # that the last question found no room for
        self._sampling = sampling
        self._max_tokens = max_tokens

    @property
    def messages(self) -> list[Message]:
        """What the model still remembers, the system message first."""
        return self._opening + self._turns

    def reset(self) -> None:
        """Forget everything but the system message."""
        self._turns.clear()

    def ask(self, question: str) -> Generator[Piece, None, None]:
        """Yield the pieces of the answer to `question`.

        An answer broken off is remembered as far as it was given, a question without an answer is not.
        Raises DataError if the question is empty or does not fit the context by itself, and forgets nothing.
        """
        self.forgotten_turns = 0
        taught = self._taught([*self._turns, Message("user", question)])
        turns = self._fitting(taught)
        pieces = self._model.chat(self._opening + turns, self._sampling, self._max_tokens)
        self.forgotten_turns = (len(taught) - len(turns)) // 2
        self._turns, answer = turns, ""
        try:
            for piece in pieces:
                answer += piece.text
                yield piece
        finally:
            if answer.strip():
                self._turns.append(Message("assistant", answer))
            else:
                self._turns.pop()

    def _taught(self, turns: list[Message]) -> list[Message]:
        """Return the last of `turns`, as many as the model was taught to see at once."""
        count = self._model.format.turns
        return turns if count is None else turns[-(2 * count - 1) :]

    def _fitting(self, turns: list[Message]) -> list[Message]:
        """Return the last of `turns`, as many as leave a quarter of the context to the answer."""
        format_, context = self._model.format, self._model.session.context
        while len(turns) > 1 and len(format_.encode(self._opening + turns)) > context * 3 // 4:
            turns = turns[2:]
        return turns
