"""Twenty chats that must end: a badly quantized model repeats itself and never says that it is done."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path

from mothertongue.chat import ChatFormat, Message
from mothertongue.session import Session
from mothertongue.tokenizer import END
from mothertongue_export.parity import NEAR_TIE_NATS, Chats
from mothertongue_export.pytorch import PyTorchModel
from mothertongue_trainer.corpus import read_manifest
from mothertongue_trainer.document import Document, read_documents

CHATS = 20
ANSWER_TOKENS = 64
QUESTION_WORDS = 6  # of prose, where a run has no conversations


def questions(conversations: Sequence[Document], prose: Sequence[Document]) -> list[str]:
    """Return `CHATS` questions: those that people asked in `conversations`, else how texts begin."""
    asked = [m.content for document in conversations for m in document.messages[:1] if m.role == "user"]
    begun = [" ".join(document.text.split()[:QUESTION_WORDS]) for document in prose if document.text.strip()]
    pool = list(dict.fromkeys(asked or begun))
    return pool[:CHATS]


def run_conversations(corpus: Path) -> list[Document]:
    """Return conversations of a run's corpus, as many of each component that has any."""
    paths = [corpus / name for name in read_manifest(corpus).files]
    found = [[d for d in itertools.islice(read_documents(path), CHATS) if d.messages] for path in paths]
    spread = itertools.chain.from_iterable(itertools.zip_longest(*filter(None, found)))
    return [document for document in spread if document is not None]


def hold_chats(session: Session, model: PyTorchModel, format_: ChatFormat, asked: Sequence[str]) -> Chats:
    """Return how many answers of `session` end, and how many PyTorch would have ended instead."""
    ended, endless = 0, 0
    end = format_.tokenizer.special(END)
    for question in asked:
        prompt = format_.encode([Message("user", question)])[-session.context // 2 :]
        session.reset()
        logits = session.feed(prompt)
        written: list[int] = []
        while len(written) < ANSWER_TOKENS and session.position < session.context:
            written.append(int(logits.argmax()))
            if written[-1] == end:
                break
            logits = session.feed(written[-1:])
        if written and written[-1] == end:
            ended += 1
        else:
            endless += _would_end(model, prompt, written, end)
    return Chats(asked=len(asked), ended=ended, endless=endless, limit_tokens=ANSWER_TOKENS)


def _would_end(model: PyTorchModel, prompt: Sequence[int], written: Sequence[int], end: int) -> bool:
    """Return whether PyTorch, where the bundle clearly parts from it, goes on to an end."""
    rows = model.logits([[*prompt, *written]])[0, len(prompt) - 1 : -1]
    for place, (row, token) in enumerate(zip(rows, written, strict=True)):
        loss = row.max() - row[token]
        if loss > NEAR_TIE_NATS:
            own = model.greedy([*prompt, *written[:place]], ANSWER_TOKENS - place, end)
            return own[-1:] == [end]
    return False
