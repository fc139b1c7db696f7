from pathlib import Path

import pytest

from mothertongue import BundleError, Completion, DataError, Message, Model, load

QUESTION = [Message("user", "নদী শব্দের অর্থ কী?")]


def test_a_reply_is_the_chat_in_one_piece(model: Model) -> None:
    pieces = list(model.chat(QUESTION, max_tokens=10))
    reply = model.reply(QUESTION, max_tokens=10)
    assert isinstance(reply, Completion)
    assert reply.text == "".join(piece.text for piece in pieces)
    assert (reply.finish_reason, reply.tokens) == ("length", 10)
    assert reply.prompt_tokens == len(model.format.encode(QUESTION))


def test_prose_is_continued_after_the_beginning_of_a_document(model: Model) -> None:
    list(model.generate("নদী", max_tokens=1))
    tokenizer = model.format.tokenizer
    assert list(model.session.tokens) == [tokenizer.special("<|bos|>"), *tokenizer.encode("নদী")]
    assert model.complete("নদী", max_tokens=4).tokens == 4


@pytest.mark.parametrize("prompt", ["", "  \n"])
def test_an_empty_prompt_is_refused(model: Model, prompt: str) -> None:
    with pytest.raises(DataError, match="the prompt is empty"):
        model.generate(prompt)
    with pytest.raises(DataError, match="the prompt is empty"):
        model.chat([Message("user", prompt)])


def test_a_bundle_in_any_folder_is_loaded(copied: Path) -> None:
    assert load(str(copied), threads=1).reply(QUESTION, max_tokens=2).tokens == 2


def test_nothing_is_loaded_that_is_not_verified(copied: Path) -> None:
    (copied / "tokenizer.json").write_bytes(b"{}")
    with pytest.raises(BundleError, match=r"tokenizer\.json: 2 bytes, the manifest says"):
        load(copied)
