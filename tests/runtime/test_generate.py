import time
from collections.abc import Iterator

import numpy as np
import pytest

from mothertongue import DataError, Message, Model, Piece, Sampling
from mothertongue.generate import complete, generate

QUESTION = [Message("user", "নদী শব্দের অর্থ কী?")]
GREEDY = Sampling()


def ids(pieces: Iterator[Piece]) -> list[int]:
    return [piece.token for piece in pieces]


def greedy_without_cache(model: Model, prompt: list[int], count: int) -> list[int]:
    made: list[int] = []
    for _ in range(count):
        model.session.reset()
        made.append(int(np.argmax(model.session.feed(prompt + made))))
    return made


def make_end(model: Model, monkeypatch: pytest.MonkeyPatch, after: int) -> None:
    """Let the model want `<|end|>` once `after` tokens are made."""
    end, feed, start = model.format.tokenizer.special("<|end|>"), model.session.feed, []

    def ending(fed: list[int]) -> np.ndarray:
        logits = feed(fed)
        start.append(model.session.position)
        if model.session.position - start[0] >= after:
            logits[end] = logits.max() + 1
        return logits

    monkeypatch.setattr(model.session, "feed", ending)


def test_greedy_generation_equals_recomputing_every_step(model: Model) -> None:
    prompt = model.format.encode(QUESTION)
    made = ids(model.chat(QUESTION, max_tokens=12))
    assert made == greedy_without_cache(model, prompt, 12)


def test_pieces_join_to_the_decoded_answer(model: Model) -> None:
    pieces = list(model.chat(QUESTION, Sampling(temperature=1.0, seed=5)))
    text = "".join(piece.text for piece in pieces)
    assert text == model.format.tokenizer.decode([piece.token for piece in pieces])


def test_an_answer_stops_where_the_model_ends_it(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    make_end(model, monkeypatch, after=5)
    pieces = list(model.chat(QUESTION))
    assert len(pieces) == 6
    assert [piece.finish_reason for piece in pieces] == [None] * 5 + ["stop"]
    assert pieces[-1].token == model.format.tokenizer.special("<|end|>")


def test_an_answer_stops_at_max_tokens(model: Model) -> None:
    pieces = list(model.chat(QUESTION, max_tokens=3))
    assert [piece.finish_reason for piece in pieces] == [None, None, "length"]


def test_an_answer_stops_where_the_context_ends(model: Model) -> None:
    prompt = list(range(10, 10 + 60))
    pieces = list(generate(model.session, model.format.tokenizer, prompt, sampling=GREEDY))
    # Four tokens fill the context of 64; the last is made from it and needs no place.
    assert [piece.finish_reason for piece in pieces] == [None] * 4 + ["context"]


@pytest.mark.parametrize("length", [64, 65, 1000])
def test_a_prompt_that_leaves_no_room_is_refused_at_once(model: Model, length: int) -> None:
    with pytest.raises(
        DataError, match=f"the prompt has {length} tokens, the model reads at most 63; shorten"
    ):
        generate(model.session, model.format.tokenizer, [7] * length, sampling=GREEDY)


def test_the_longest_prompt_that_fits_is_answered(model: Model) -> None:
    assert len(list(generate(model.session, model.format.tokenizer, [7] * 63, sampling=GREEDY))) == 2


def test_a_conversation_computes_only_what_is_new(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    first = model.format.encode(QUESTION)
    list(model.chat(QUESTION, max_tokens=1))
    fed: list[int] = []
    feed = model.session.feed
    monkeypatch.setattr(model.session, "feed", lambda new: (fed.append(len(new)), feed(new))[1])
    longer = [*QUESTION, Message("assistant", "a"), Message("user", "b")]
    list(model.chat(longer, max_tokens=1))
    list(model.chat(longer, max_tokens=1))
    assert fed == [len(model.format.encode(longer)) - len(first), 1]


def test_reusing_the_cache_changes_no_answer(model: Model) -> None:
    longer = [*QUESTION, Message("assistant", "জল"), Message("user", "আর?")]
    fresh = ids(model.chat(longer, max_tokens=8))
    model.session.reset()
    list(model.chat(QUESTION))
    assert ids(model.chat(longer, max_tokens=8)) == fresh


def test_one_seed_gives_one_answer(model: Model) -> None:
    warm = [ids(model.chat(QUESTION, Sampling(temperature=1.0, seed=seed))) for seed in (1, 1, 2)]
    assert warm[0] == warm[1] != warm[2]


@pytest.mark.parametrize("max_tokens", [0, -1])
def test_fewer_than_one_token_is_refused(model: Model, max_tokens: int) -> None:
    with pytest.raises(ValueError, match="max_tokens must be at least 1"):
        model.chat(QUESTION, max_tokens=max_tokens)


def test_a_completion_counts_and_times_what_it_is_given() -> None:
    def slow() -> Iterator[Piece]:
        time.sleep(0.05)
        yield Piece(text="a", token=7)
        time.sleep(0.1)
        yield Piece(text="b", token=8)
        yield Piece(text="", token=4, finish_reason="stop")

    answer = complete(slow(), prompt_tokens=9)
    assert (answer.text, answer.finish_reason, answer.prompt_tokens, answer.tokens) == ("ab", "stop", 9, 3)
    assert 0.05 <= answer.seconds_to_first_token < 0.1
    assert 10 < answer.tokens_per_second <= 20
