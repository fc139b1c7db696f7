from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from mothertongue.chat import Message
from mothertongue_export.chats import ANSWER_TOKENS, CHATS, hold_chats, questions
from mothertongue_trainer.document import Document

END, V = 4, 12


def conversation(number: int) -> Document:
    messages = (Message("user", f"question {number}"), Message("assistant", "answer"))
    return Document(id=str(number), language="en", component="chat", messages=messages)


def test_questions_are_those_of_conversations_or_beginnings_of_texts() -> None:
    prose = [Document(id="1", language="en", component="", text="one two three four five six seven eight")]
    assert questions([conversation(number) for number in range(30)], prose) == [
        f"question {number}" for number in range(CHATS)
    ]
    assert questions([conversation(1)] * 30, prose) == ["question 1"]
    assert questions([], prose) == ["one two three four five six"]


class Format:
    tokenizer = type("Tokenizer", (), {"special": staticmethod(lambda token: END)})()

    def encode(self, messages: Sequence[Message]) -> list[int]:
        return [0, 1, 2]


class Writer:
    """Writes token 7, and the end as the token numbered `length`; as a session and as a model."""

    context = 256

    def __init__(self, length: int, margin: float = 5.0) -> None:
        self.length, self.margin, self.position = length, margin, 0

    def row(self, written: int) -> np.ndarray[Any, np.dtype[np.float32]]:
        row = np.zeros(V, np.float32)
        row[END if written == self.length - 1 else 7] = self.margin
        return row

    def reset(self) -> None:
        self.position = 0

    def feed(self, ids: Sequence[int]) -> np.ndarray[Any, np.dtype[np.float32]]:
        self.position += len(ids)
        return self.row(self.position - 3)

    def logits(self, ids: Sequence[Sequence[int]]) -> np.ndarray[Any, np.dtype[np.float32]]:
        return np.stack([self.row(place - 2) for place in range(len(ids[0]))])[None]

    def greedy(self, prompt: Sequence[int], count: int, end: int) -> list[int]:
        ids = [int(self.row(len(prompt) - 3 + place).argmax()) for place in range(count)]
        return ids[: ids.index(end) + 1] if end in ids else ids


NEVER = 10_000


@pytest.mark.parametrize(
    ("bundle", "torch", "ended", "endless"),
    [
        (Writer(5), Writer(5), 2, 0),
        (Writer(NEVER), Writer(NEVER), 0, 0),  # so was it taught
        (Writer(NEVER), Writer(9), 0, 2),
        (Writer(NEVER), Writer(9, margin=0.05), 0, 0),  # a near-tie
        (Writer(ANSWER_TOKENS), Writer(3), 2, 0),
    ],
)
def test_an_answer_is_endless_only_where_pytorch_would_have_ended_it(
    bundle: Any, torch: Any, ended: int, endless: int
) -> None:
    format_: Any = Format()
    chats = hold_chats(bundle, torch, format_, ["one", "two"])
    assert (chats.asked, chats.ended, chats.endless) == (2, ended, endless)
