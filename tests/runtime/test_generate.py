from collections.abc import Generator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mothertongue import DataError, Message, Sampling, Token
from mothertongue import generate as module
from mothertongue.chat import ChatFormat
from mothertongue.generate import generate
from mothertongue.lookup import Lookup
from mothertongue.session import Session

QUESTION = [Message("user", "নদী শব্দের অর্থ কী?")]
GREEDY = Sampling()


def written(
    session: Session, chat_format: ChatFormat, prompt: list[int], sampling: Sampling = GREEDY, **options: bool
) -> tuple[list[int], str]:
    """The ids of an answer, and why it ended."""
    steps = generate(session, chat_format.tokenizer, prompt, sampling, **options)
    made = []
    while True:
        try:
            made.append(next(steps).id)
        except StopIteration as over:
            return made, over.value


def greedy_without_cache(session: Session, prompt: list[int], count: int) -> list[int]:
    made: list[int] = []
    for _ in range(count):
        session.reset()
        made.append(int(np.argmax(session.feed(prompt + made))))
    return made


@pytest.fixture(scope="module")
def exact_session(exact: Path) -> Session:
    return Session.open(exact, threads=1)


@pytest.fixture
def session(bundle: Path) -> Session:
    return Session.open(bundle, threads=1)


def make_end(session: Session, monkeypatch: pytest.MonkeyPatch, *, end: int, after: int) -> None:
    """Let the model want `end` once `after` ids follow the prompt."""
    run, start = session._run, []

    def ending(ids: list[int], logits: np.ndarray) -> None:
        run(ids, logits)
        start.append(session.position)
        if session.position - start[0] >= after:
            logits[..., end] = logits.max() + 1

    monkeypatch.setattr(session, "_run", ending)


def test_greedy_generation_equals_recomputing_every_step(
    exact_session: Session, chat_format: ChatFormat
) -> None:
    prompt = chat_format.encode(QUESTION)
    made, reason = written(exact_session, chat_format, prompt, Sampling(max_tokens=12))
    assert (made, reason) == (greedy_without_cache(exact_session, prompt, 12), "length")


REPEATING = st.lists(st.integers(6, 383), min_size=2, max_size=5).map(lambda ids: ids * (30 // len(ids)))


@settings(max_examples=25, deadline=None)
@given(prompt=REPEATING, temperature=st.sampled_from([0.0, 0.0, 1.0]))
def test_guessing_changes_no_answer(
    exact_session: Session, chat_format: ChatFormat, prompt: list[int], temperature: float
) -> None:
    # The graph with float32 activations: there one row and many rows agree to 2e-5, so no near-tie turns.
    sampling = Sampling(max_tokens=30, temperature=temperature, seed=4, frequency_penalty=0.1)
    exact_session.reset()
    guessed = written(exact_session, chat_format, prompt, sampling)
    exact_session.reset()
    assert guessed == written(exact_session, chat_format, prompt, sampling, guessing=False)


def test_right_guesses_are_taken_and_wrong_ones_leave_no_trace(
    exact_session: Session, chat_format: ChatFormat, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompt = chat_format.encode(QUESTION)
    exact_session.reset()
    plain, _ = written(exact_session, chat_format, prompt, Sampling(max_tokens=24), guessing=False)
    runs: list[int] = []
    feed_each = exact_session.feed_each

    def counted(ids: list[int], out: np.ndarray) -> np.ndarray:
        runs.append(len(ids))
        return feed_each(ids, out=out)

    def oracle(self: Lookup, room: int) -> list[int]:
        """Two right guesses, then a wrong one."""
        done = exact_session.position + 1 - len(prompt)
        return [*plain[done : done + 2], 7, 8][: max(room, 0)]

    monkeypatch.setattr(exact_session, "feed_each", counted)
    monkeypatch.setattr(Lookup, "guess", oracle)
    exact_session.reset()
    guessed, _ = written(exact_session, chat_format, prompt, Sampling(max_tokens=24))
    assert guessed == plain
    assert len(runs) <= 8  # three tokens a run
    assert list(exact_session.tokens)[: len(prompt) + 20] == prompt + plain[:20]


def test_an_answer_ends_where_the_model_ends_it(
    session: Session, chat_format: ChatFormat, monkeypatch: pytest.MonkeyPatch
) -> None:
    end = chat_format.tokenizer.special("<|end|>")
    make_end(session, monkeypatch, end=end, after=5)
    made, reason = written(session, chat_format, chat_format.encode(QUESTION))
    assert (len(made), made[-1], reason) == (6, end, "end")


def test_an_answer_ends_before_a_stop_text(session: Session, chat_format: ChatFormat) -> None:
    prompt = chat_format.encode(QUESTION)
    made, _ = written(session, chat_format, prompt)
    text = chat_format.tokenizer.decode(made)
    stop = text[len(text) // 2 :][:2]
    steps = list(generate(session, chat_format.tokenizer, prompt, Sampling(stop=(stop,))))
    assert "".join(step.text for step in steps) == text.partition(stop)[0]
    assert written(session, chat_format, prompt, Sampling(stop=(stop,)))[1] == "stop"


def test_an_answer_ends_where_the_context_ends(session: Session, chat_format: ChatFormat) -> None:
    made, reason = written(session, chat_format, list(range(10, 10 + 60)))
    # Four tokens fill the context of 64; the last is made from it and needs no place.
    assert (len(made), reason) == (5, "context")


@pytest.mark.parametrize("length", [64, 65, 1000])
def test_a_prompt_that_leaves_no_room_is_refused(
    session: Session, chat_format: ChatFormat, length: int
) -> None:
    with pytest.raises(
        DataError, match=f"the prompt has {length} tokens, the model reads at most 63; shorten"
    ):
        next(generate(session, chat_format.tokenizer, [7] * length, GREEDY))


def test_the_longest_prompt_that_fits_is_answered(session: Session, chat_format: ChatFormat) -> None:
    assert len(written(session, chat_format, [7] * 63)[0]) == 2


@pytest.mark.parametrize("chunk_tokens", [1, 9, 10, 11])
def test_chunks_of_any_size_give_one_answer(
    exact_session: Session, chat_format: ChatFormat, monkeypatch: pytest.MonkeyPatch, chunk_tokens: int
) -> None:
    prompt = chat_format.encode(QUESTION)[:10]
    exact_session.reset()
    whole = written(exact_session, chat_format, prompt, Sampling(max_tokens=6))
    monkeypatch.setattr(module, "CHUNK_TOKENS", chunk_tokens)
    exact_session.reset()
    assert written(exact_session, chat_format, prompt, Sampling(max_tokens=6)) == whole


def test_only_what_no_cache_holds_is_computed(
    session: Session, chat_format: ChatFormat, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = chat_format.encode(QUESTION)
    longer = chat_format.encode([*QUESTION, Message("assistant", "a"), Message("user", "b")])
    once = Sampling(max_tokens=1)
    written(session, chat_format, first, once)
    fed: list[int] = []
    feed = session.feed
    monkeypatch.setattr(session, "feed", lambda ids: (fed.append(len(ids)), feed(ids))[1])
    written(session, chat_format, longer, once)
    written(session, chat_format, longer, once)
    assert fed == [len(longer) - len(first), 1]


def test_cancelling_is_seen_before_each_chunk_and_each_token(
    session: Session, chat_format: ChatFormat, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CHUNK_TOKENS", 4)
    asked: list[int] = []

    def after(count: int) -> Generator[Token, None, str]:
        asked.clear()
        session.reset()
        return generate(
            session,
            chat_format.tokenizer,
            list(range(10, 22)),
            GREEDY,
            cancelled=lambda: (asked.append(1), len(asked) > count)[1],
        )

    assert list(after(2)) == []
    assert session.position == 8
    assert len(list(after(4))) == 2


def test_the_log_probability_is_the_models_own(exact_session: Session, chat_format: ChatFormat) -> None:
    prompt = chat_format.encode(QUESTION)
    exact_session.reset()
    logits = exact_session.feed(prompt).astype(np.float64)
    logs = logits - np.log(np.exp(logits).sum())
    sampling = Sampling(temperature=3.0, seed=1, repetition_penalty=2.0, max_tokens=1)
    (token,) = generate(exact_session, chat_format.tokenizer, prompt, sampling)
    assert token.logprob == pytest.approx(logs[token.id], abs=1e-4)


def test_one_seed_gives_one_answer(session: Session, chat_format: ChatFormat) -> None:
    prompt = chat_format.encode(QUESTION)
    warm = [
        written(session, chat_format, prompt, Sampling(temperature=1.0, seed=seed))[0] for seed in (1, 1, 2)
    ]
    assert warm[0] == warm[1] != warm[2]
