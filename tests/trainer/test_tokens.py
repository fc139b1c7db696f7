import dataclasses
from pathlib import Path

import numpy as np
import pytest

from mothertongue.chat import ChatFormat, Message
from mothertongue.errors import DataError
from mothertongue.tokenizer import Tokenizer
from mothertongue_trainer.document import Document, read_documents
from mothertongue_trainer.shards import Shard
from mothertongue_trainer.tokens import DocumentEncoder, batched, encode_corpus


def test_prose_is_learned_after_its_first_token(encoded_run) -> None:
    tokenizer = Tokenizer.open(encoded_run.folder / "tokenizer")
    shard = Shard.open(encoded_run.folder / "tokens" / "গদ্য.safetensors")
    documents = list(read_documents(encoded_run.folder / "corpus" / "গদ্য.jsonl"))
    assert len(shard.offsets) == len(documents) + 1
    for document, start, end in zip(documents, shard.offsets, shard.offsets[1:], strict=False):
        assert shard.tokens[start:end].tolist() == [0, *tokenizer.encode(document.text), 4]
        assert shard.learn[start:end].tolist() == [0] + [1] * (end - start - 1)
    assert shard.characters.tolist() == [len(document.text) for document in documents]


def test_chat_is_what_the_chat_format_says(encoded_run) -> None:
    chat = ChatFormat.open(encoded_run.folder / "tokenizer")
    shard = Shard.open(encoded_run.folder / "tokens" / "chat.safetensors")
    documents = read_documents(encoded_run.folder / "corpus" / "chat.jsonl")
    for document, start, end in zip(documents, shard.offsets, shard.offsets[1:], strict=False):
        ids, learn = chat.encode_learned(document.messages)
        assert (shard.tokens[start:end].tolist(), shard.learn[start:end].tolist()) == (ids, learn)


def test_special_tokens_in_a_text_are_text(encoded_run) -> None:
    (document,) = [
        dataclasses.replace(d, text="a <|end|> b")
        for d in list(read_documents(encoded_run.folder / "corpus" / "heldout.jsonl"))[:1]
    ]
    ((ids, _),) = DocumentEncoder(encoded_run.folder / "tokenizer").encode([document])
    assert [token for token in ids if token < 6] == [0, 4]


def test_the_number_of_documents_in_a_batch_changes_nothing(
    encoded_run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mothertongue_trainer.tokens.DOCUMENTS_PER_BATCH", 7)
    documents = read_documents(encoded_run.folder / "corpus" / "chat.jsonl")
    small = DocumentEncoder(encoded_run.folder / "tokenizer").shard(documents)
    whole = Shard.open(encoded_run.folder / "tokens" / "chat.safetensors")
    np.testing.assert_array_equal(small.tokens, whole.tokens)
    assert small.metadata == whole.metadata


def test_batches_hold_everything_in_order() -> None:
    assert list(batched(range(5), 2)) == [[0, 1], [2, 3], [4]]  # type: ignore[arg-type]


def test_a_tokenizer_of_another_size_is_refused(encoded_run, tmp_path: Path) -> None:
    (tmp_path / "tokenizer").symlink_to(encoded_run.folder / "tokenizer")
    config = dataclasses.replace(encoded_run.recipe.tokenizer, vocabulary=4096)
    with pytest.raises(
        DataError, match=r"600 entries, the recipe asks for 4096; run `mothertongue tokenizer`"
    ):
        encode_corpus(dataclasses.replace(encoded_run.recipe, tokenizer=config), tmp_path)


def test_a_conversation_is_spelled_as_the_runtime_will_spell_it(encoded_run) -> None:
    messages = (Message("user", " “নদী”  7 + 5? "), Message("assistant", "‘12’"))
    document = Document(id="x", language="bn", component="chat", messages=messages)
    ((ids, learn),) = DocumentEncoder(encoded_run.folder / "tokenizer").encode([document])
    chat = ChatFormat.open(encoded_run.folder / "tokenizer")
    assert (ids, learn) == chat.encode_learned(messages)
    learned = [token for token, learned in zip(ids, learn, strict=True) if learned]
    assert chat.tokenizer.decode(learned) == "‘12’"  # an answer is learned as it stands
