"""The loop: read the prompt, choose a token, show what it completes, until something ends the answer."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass

import numpy as np

from mothertongue.errors import DataError
from mothertongue.lookup import GUESSES, Lookup
from mothertongue.pieces import Pieces
from mothertongue.sampling import Logits, Sampler, Sampling
from mothertongue.session import CHUNK_TOKENS, Session
from mothertongue.tokenizer import END, Tokenizer, common_prefix


@dataclass(frozen=True, kw_only=True)
class Token:
    """One step of an answer."""

    text: str  # the whole characters that it completes, perhaps none
    id: int
    logprob: float  # nats, of the model's own distribution: before penalties, bias and temperature


def check_prompt(prompt: Sequence[int], context: int) -> None:
    """Raise DataError if `prompt` leaves no room for an answer in `context` tokens."""
    if len(prompt) >= context:
        raise DataError(
            f"the prompt has {len(prompt)} tokens, the model reads at most {context - 1}; shorten it"
        )


def generate(
    session: Session,
    tokenizer: Tokenizer,
    prompt: Sequence[int],
    sampling: Sampling,
    *,
    graphemes: bool = False,
    guessing: bool = True,
    cancelled: Callable[[], bool] = lambda: False,
) -> Generator[Token, None, str]:
    """Yield the tokens of the answer to `prompt`, and return why it is over.

    `end`: the model ended its answer; `stop`: a stop text came; `length`: max_tokens were made; `context`: no
    room is left; `cancelled`: `cancelled` said so, which is asked before each run. What the cache already
    holds of the prompt is not computed again. `guessing` allows prompt lookup, which changes no answer.
    """
    check_prompt(prompt, session.context)
    sampler = Sampler(sampling, prompt, session.vocabulary)
    pieces = Pieces(tokenizer, sampling.stop, graphemes=graphemes)
    end, longest = tokenizer.special(END), sampling.max_tokens or session.context
    lookup = Lookup(prompt) if guessing and session.engine.keeps_any_logits else None
    logits = read(session, prompt, cancelled)
    if logits is None:
        return "cancelled"
    # Row i holds the logits after the i-th guess; row 0 those after the last token that is no guess.
    rows, guesses, filled, made = logits[np.newaxis], list[int](), len(prompt), 0
    room = np.empty((1 + GUESSES, session.vocabulary), np.float32)
    while True:
        accepted = 0
        for row in rows:
            token, logprob = sampler.choose(row)
            made += 1
            text = pieces.feed(token)
            full = filled + accepted == session.context
            reason = finish_reason(token == end, pieces.stopped, made == longest, full)
            if reason:
                yield Token(text=text + pieces.flush(), id=token, logprob=logprob)
                return reason
            yield Token(text=text, id=token, logprob=logprob)
            if lookup:
                lookup.add(token)
            if cancelled():
                return "cancelled"
            if guesses[accepted : accepted + 1] != [token]:
                break
            accepted += 1
        filled += accepted
        session.rewind(filled)
        guesses = lookup.guess(min(longest - made, session.context - filled) - 1) if lookup else []
        start_s = time.perf_counter()
        rows = session.feed_each([token, *guesses], out=room)
        filled += 1
        if lookup:
            lookup.fed(guesses, time.perf_counter() - start_s)


def read(session: Session, prompt: Sequence[int], cancelled: Callable[[], bool]) -> Logits | None:
    """Return the logits (V,) after `prompt`, computing only what the cache lacks; None if cancelled."""
    # The last id is always fed again: the cache holds no logits.
    session.rewind(min(common_prefix(session.tokens, prompt), len(prompt) - 1))
    logits = None
    while session.position < len(prompt):
        if cancelled():
            return None
        logits = session.feed(prompt[session.position : session.position + CHUNK_TOKENS])
    return logits


def finish_reason(ended: bool, stopped: bool, enough: bool, full: bool) -> str | None:
    """Return why an answer is over, the model's own wish first; None if it goes on."""
    reasons = {"end": ended, "stop": stopped, "length": enough, "context": full}
    return next((reason for reason, holds in reasons.items() if holds), None)
