"""The loop: feed the prompt, choose a token, show what it completes, until something ends the answer."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from mothertongue.errors import DataError
from mothertongue.sampling import Sampling, sample
from mothertongue.session import Session
from mothertongue.tokenizer import END, Tokenizer, common_prefix


@dataclass(frozen=True, kw_only=True)
class Piece:
    """One step of an answer: whole characters, perhaps none. Only the last piece has a finish reason.

    `stop`: the model ended its answer; `length`: max_tokens were made; `context`: no room is left.
    """

    text: str
    token: int
    finish_reason: str | None = None


@dataclass(frozen=True, kw_only=True)
class Completion:
    """A whole answer, and how long it took."""

    text: str
    finish_reason: str
    prompt_tokens: int
    tokens: int  # made by the model, the one that ends the answer included
    seconds_to_first_token: float
    tokens_per_second: float  # of those after the first; of the only one, if there is but one


def generate(
    session: Session,
    tokenizer: Tokenizer,
    prompt: Sequence[int],
    *,
    sampling: Sampling,
    max_tokens: int | None = None,
) -> Iterator[Piece]:
    """Yield the pieces of the answer to `prompt`; `max_tokens` None means until the context is full.

    What the cache already holds of the prompt is not computed again. Raises DataError if the prompt leaves no
    room for an answer, ValueError if `max_tokens` is below one; both before the first piece is asked for.
    """
    if max_tokens is not None and max_tokens < 1:
        raise ValueError(f"max_tokens must be at least 1, got {max_tokens}")
    if len(prompt) >= session.context:
        raise DataError(
            f"the prompt has {len(prompt)} tokens, the model reads at most {session.context - 1}; shorten it"
        )
    return answer(session, tokenizer, prompt, sampling, max_tokens or session.context)


def answer(
    session: Session, tokenizer: Tokenizer, prompt: Sequence[int], sampling: Sampling, max_tokens: int
) -> Iterator[Piece]:
    """Yield the pieces of the answer to a prompt that fits; see `generate`."""
    rng = np.random.default_rng(sampling.seed)
    stream = tokenizer.stream()
    end = tokenizer.special(END)
    # The last id is always fed again: the cache holds no logits.
    session.rewind(min(common_prefix(session.tokens, prompt), len(prompt) - 1))
    logits = session.feed(prompt[session.position :])
    for made in range(1, max_tokens + 1):
        token = sample(logits, sampling, rng)
        reason = finish_reason(token == end, made == max_tokens, session.position == session.context)
        text = stream.feed(token)
        if reason:
            yield Piece(text=text + stream.flush(), token=token, finish_reason=reason)
            return
        yield Piece(text=text, token=token)
        logits = session.feed([token])


def finish_reason(ended: bool, enough: bool, full: bool) -> str | None:
    """Return why an answer is over, the model's own wish first; None if it goes on."""
    if ended:
        return "stop"
    if enough:
        return "length"
    return "context" if full else None


def complete(pieces: Iterator[Piece], *, prompt_tokens: int) -> Completion:
    """Return the answer that `pieces` make, timed as they come."""
    start_s = time.perf_counter()
    first_s = start_s
    texts: list[str] = []
    reason: str | None = None
    for piece in pieces:
        if not texts:
            first_s = time.perf_counter()
        texts.append(piece.text)
        reason = piece.finish_reason
    assert reason is not None
    end_s = time.perf_counter()
    after_first = len(texts) - 1
    return Completion(
        text="".join(texts),
        finish_reason=reason,
        prompt_tokens=prompt_tokens,
        tokens=len(texts),
        seconds_to_first_token=first_s - start_s,
        tokens_per_second=after_first / (end_s - first_s) if after_first else 1 / (first_s - start_s),
    )
