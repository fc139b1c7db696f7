"""Prompt lookup: guess the next tokens from where the same few tokens stood before, then let the model judge.

A guess costs no second model. The model computes the logits after each guess in one run, and a guess counts
only if the model chooses the same token, so the answer stays the same. The weights are read once for all of
them, but each guess costs arithmetic; whether that pays depends on the text and the machine, so it is
measured. https://github.com/apoorvumang/prompt-lookup-decoding
"""

from __future__ import annotations

from collections.abc import Sequence

LONGEST_NGRAM, SHORTEST_NGRAM = 3, 2
GUESSES = 4  # tokens at once
TRIAL_RUNS = 4  # of each kind before they are compared
PAUSE_TOKENS = 32  # without guesses once they did not pay; doubled each time


class Lookup:
    """Guesses for one answer, given up for a while whenever they cost more time than they save."""

    def __init__(self, prompt: Sequence[int]) -> None:
        self._ids = list(prompt)
        self._places: dict[tuple[int, ...], int] = {}  # of each n-gram, the place of what followed it last
        self._indexed = 1
        self._plain, self._guessed = _Cost(), _Cost()
        self._current: _Cost | None = None  # what the tokens that are now added are counted under
        self._pause_tokens, self._paused_tokens = PAUSE_TOKENS, 0

    def add(self, token: int) -> None:
        """Take note of a token of the answer."""
        self._ids.append(token)
        self._paused_tokens = max(0, self._paused_tokens - 1)
        if self._current:
            self._current.tokens += 1

    def fed(self, guesses: Sequence[int], seconds: float) -> None:
        """Take note of a run with `guesses` that took `seconds`; the tokens that it gave are added next."""
        self._current = self._guessed if guesses else self._plain
        self._current.runs += 1
        self._current.seconds += seconds

    def guess(self, room: int) -> list[int]:
        """Return at most `room` guesses of what follows, none while they do not pay."""
        self._judge()
        if room < 1 or self._paused_tokens or self._plain.runs < TRIAL_RUNS:
            return []
        self._index()
        for length in range(min(LONGEST_NGRAM, len(self._ids)), SHORTEST_NGRAM - 1, -1):
            place = self._places.get(tuple(self._ids[-length:]))
            if place is not None:
                # Where a text repeats itself at once, a guess goes on from the guesses before it.
                ids = self._ids[place:]
                for step in range(min(GUESSES, room)):
                    ids.append(ids[step])
                return ids[: min(GUESSES, room)]
        return []

    def _judge(self) -> None:
        """Pause if the last guesses did not pay; begin a new trial in any case, since texts change."""
        if self._guessed.runs < TRIAL_RUNS:
            return
        if self._guessed.seconds_per_token >= self._plain.seconds_per_token:
            self._paused_tokens, self._pause_tokens = self._pause_tokens, 2 * self._pause_tokens
        else:
            self._pause_tokens = PAUSE_TOKENS
        self._guessed = _Cost()

    def _index(self) -> None:
        """Note what followed each n-gram; the last one has no follower yet."""
        for end in range(self._indexed, len(self._ids)):
            for length in range(SHORTEST_NGRAM, min(LONGEST_NGRAM, end) + 1):
                self._places[tuple(self._ids[end - length : end])] = end
        self._indexed = max(self._indexed, len(self._ids))


class _Cost:
    """What runs of one kind took and gave."""

    def __init__(self) -> None:
        self.runs, self.tokens, self.seconds = 0, 0, 0.0

    @property
    def seconds_per_token(self) -> float:
        return self.seconds / max(self.tokens, 1)
