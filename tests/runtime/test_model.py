import threading
import time
from pathlib import Path

import pytest

from mothertongue import (
    Answer,
    BundleError,
    Completion,
    DataError,
    Message,
    Model,
    MothertongueError,
    Sampling,
    load,
)

QUESTION = [Message("user", "নদী শব্দের অর্থ কী?")]
TEN = Sampling(max_tokens=10)
REQUESTS, SETTLED = 1_000, 50
MAXIMUM_GROWTH_PERCENT = 2.0


def ids(answer: Answer) -> list[int]:
    return [token.id for token in answer]


def test_a_reply_is_the_answer_in_one_piece(model: Model) -> None:
    tokens = list(model.answer(QUESTION, TEN))
    reply = model.reply(QUESTION, TEN)
    assert isinstance(reply, Completion)
    assert reply.text == "".join(token.text for token in tokens)
    assert (reply.finish_reason, reply.tokens) == ("length", 10)
    assert reply.prompt_tokens == len(model.format.encode(QUESTION))


def test_prose_is_continued_after_exactly_one_beginning_of_text(model: Model) -> None:
    tokenizer = model.format.tokenizer
    answer = model.generate("<|bos|>নদী", Sampling(max_tokens=1))
    assert answer.prompt_tokens == 1 + len(tokenizer.encode("<|bos|>নদী"))
    list(answer)
    with model._pool.borrow([tokenizer.special("<|bos|>")]) as session:
        assert [token for token in session.tokens if token == tokenizer.special("<|bos|>")] == [0]
    assert model.complete("নদী", Sampling(max_tokens=4)).tokens == 4


@pytest.mark.parametrize("prompt", ["", "  \n"])
def test_an_empty_prompt_is_refused(model: Model, prompt: str) -> None:
    with pytest.raises(DataError, match="the prompt is empty"):
        model.generate(prompt)
    with pytest.raises(DataError, match="the prompt is empty"):
        model.answer([Message("user", prompt)])


@pytest.mark.parametrize("text", ["ন" * 10_000_000, "a b " * 2_500_000, "\u0301" * 5_000_000])
def test_a_prompt_of_ten_megabytes_is_refused_with_its_size_in_a_second(model: Model, text: str) -> None:
    start_s = time.monotonic()
    with pytest.raises(DataError, match=r"the prompt has \d+ tokens or more, the model reads at most 63"):
        model.generate(text)
    with pytest.raises(DataError, match=r"the prompt has \d+ tokens or more, the model reads at most 63"):
        model.answer([Message("user", text)])
    assert time.monotonic() - start_s < 5.0


def test_a_prompt_too_long_is_refused_before_the_first_token_is_asked_for(model: Model) -> None:
    with pytest.raises(DataError, match=r"the prompt has .* tokens, the model reads at most 63; shorten it"):
        model.answer([Message("user", "ন " * 100)])


def test_a_bias_beyond_the_vocabulary_is_refused_at_once(model: Model) -> None:
    with pytest.raises(ValueError, match="logit_bias names token 384, the vocabulary has 384"):
        model.answer(QUESTION, Sampling(logit_bias={384: 1.0}))


def test_a_bundle_in_any_folder_is_loaded(copied: Path) -> None:
    assert load(str(copied), threads=1).reply(QUESTION, Sampling(max_tokens=2)).tokens == 2


def test_nothing_is_loaded_that_is_not_verified(copied: Path) -> None:
    (copied / "tokenizer.json").write_bytes(b"{}")
    with pytest.raises(BundleError, match=r"tokenizer\.json: 2 bytes, the manifest says"):
        load(copied)


def test_two_answers_read_in_turn_are_those_read_one_after_the_other(model: Model) -> None:
    other = [Message("user", "আমি ভাত খাই।")]
    alone = ids(model.answer(QUESTION, TEN)), ids(model.answer(other, TEN))
    one, two = model.answer(QUESTION, TEN), model.answer(other, TEN)
    pairs = list(zip(one, two, strict=True))
    assert ([a.id for a, _ in pairs], [b.id for _, b in pairs]) == alone


def test_threads_get_the_answers_that_they_get_alone(bundle: Path) -> None:
    model = load(bundle, threads=1, sessions=4)
    questions = [[Message("user", f"নদী {number}?")] for number in range(4)]
    alone = [model.reply(question, TEN).text for question in questions]
    found: dict[int, list[str]] = {number: [] for number in range(4)}

    def ask(number: int) -> None:
        for _ in range(10):
            found[number].append(model.reply(questions[number], TEN).text)

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {number: [text] * 10 for number, text in enumerate(alone)}


def test_a_cancelled_answer_frees_its_place_at_once(bundle: Path) -> None:
    model = load(bundle, threads=1, sessions=1)
    first = model.answer(QUESTION)
    next(first)
    with pytest.raises(MothertongueError, match="loaded for: 1; finish or cancel one"):
        next(model.answer(QUESTION))
    first.cancel()
    assert len(ids(model.answer(QUESTION, TEN))) == 10


def test_an_answer_that_nobody_keeps_frees_its_place(bundle: Path) -> None:
    model = load(bundle, threads=1, sessions=1)
    next(model.answer(QUESTION))
    assert len(ids(model.answer(QUESTION, TEN))) == 10


def test_a_conversation_continued_computes_only_what_is_new(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    fed: list[int] = []
    run = type(model.engine.session())._run
    monkeypatch.setattr(
        "mothertongue.session.Session._run",
        lambda self, ids, logits: (fed.append(len(ids)), run(self, ids, logits))[1],
    )
    once = Sampling(max_tokens=1)
    list(model.answer(QUESTION, once))
    longer = [*QUESTION, Message("assistant", "a"), Message("user", "b")]
    list(model.answer(longer, once))
    first = len(model.format.encode(QUESTION))
    assert fed == [first, len(model.format.encode(longer)) - first]


def anonymous_kb() -> int:
    """RssAnon + VmSwap of this process: what it holds and cannot read again from a file."""
    status = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    fields = dict(line.split(":", 1) for line in status)
    return sum(int(fields[name].split()[0]) for name in ("RssAnon", "VmSwap"))


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="only Linux says what is anonymous")
def test_a_thousand_requests_in_a_row_hold_no_more_memory_than_the_first_fifty(model: Model) -> None:
    before_kb = 0
    for number in range(REQUESTS):
        question = [Message("user", f"নদী {number % 7} {'ক' * (number % 5)}?")]
        for token in model.answer(question, Sampling(max_tokens=4, temperature=1.0, seed=number)):
            assert token.id >= 0
        if number == SETTLED:
            before_kb = anonymous_kb()
    assert 100 * (anonymous_kb() / before_kb - 1) <= MAXIMUM_GROWTH_PERCENT
