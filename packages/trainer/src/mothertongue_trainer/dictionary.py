"""A dictionary as a corpus: prose, conversations, and the questions that prove what was learned."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mothertongue.chat import Message
from mothertongue_trainer.document import Document
from mothertongue_trainer.entries import Entry, read_entries
from mothertongue_trainer.package_data import fetch_database
from mothertongue_trainer.questions import Question, core_questions
from mothertongue_trainer.recipe import DictionaryConfig
from mothertongue_trainer.turns import Turn, chat_turns
from mothertongue_trainer.words import split_words

LICENCE = "Apache-2.0, as the package states"
LONGEST_MEANING = 160  # characters of an entry's meanings in prose


@dataclass(frozen=True, kw_only=True)
class DictionaryCorpus:
    """All that is made from the dictionary."""

    components: dict[str, list[Document]]
    heldout: list[Document]  # prose of the held-out headwords
    core: list[Question]
    source: str
    licence: str


def dictionary_documents(config: DictionaryConfig, *, heldout_percent: float, seed: int) -> DictionaryCorpus:
    """Fetch the dictionary and return its corpus; the same seed gives the same documents.

    Raises:
        DataError: the package cannot be fetched or is not the pinned one.
    """
    entries = read_entries(fetch_database(config.package, config.sha256))
    random = np.random.default_rng(seed)
    components: dict[str, list[Document]] = {}
    core: list[Question] = []
    words = split_words(entries, config, heldout_percent=heldout_percent)
    if config.chat:
        for component, turns in chat_turns(words, random).items():
            components[component] = [_conversation(turn, component, n) for n, turn in enumerate(turns)]
        core = core_questions(words, random)
    taught = [entry for entry in entries if entry.word not in words.heldout]
    heldout = [entry for entry in entries if entry.word in words.heldout]
    return DictionaryCorpus(
        components={"prose": [*_prose(taught), *_sentences(taught)], **components},
        heldout=_prose(heldout),
        core=core,
        source=f"PyPI {config.package}",
        licence=LICENCE,
    )


def prose(entry: Entry) -> str:
    """Return an entry as a short text: word, part of speech, meanings, English, example."""
    head = f"{entry.word} ({entry.part_of_speech})" if entry.part_of_speech else entry.word
    meanings = entry.meanings[0] if entry.meanings else ""
    for meaning in entry.meanings[1:]:
        if len(meanings) + len(meaning) < LONGEST_MEANING:
            meanings += f"; {meaning}"
    parts = (
        f"{head}: {meanings}।" if meanings else f"{head}।",
        f"ইংরেজিতে {', '.join(entry.glosses)}।" if entry.glosses else "",
        entry.example,
    )
    return " ".join(filter(None, parts))


def _prose(entries: Sequence[Entry]) -> list[Document]:
    return [
        Document(id=f"entry-{number}", language="bn", component="prose", text=prose(entry))
        for number, entry in enumerate(entries)
    ]


def _sentences(entries: Sequence[Entry]) -> list[Document]:
    return [
        Document(id=f"sentence-{number}", language="bn", component="prose", text=entry.example)
        for number, entry in enumerate(entries)
        if entry.example
    ]


def _conversation(turn: Turn, component: str, number: int) -> Document:
    """Return a turn as a document of its own: the model is taught to answer one question at a time."""
    messages = (Message(role="user", content=turn.question), Message(role="assistant", content=turn.answer))
    return Document(id=f"{component}-{number}", language="bn", component=component, messages=messages)
