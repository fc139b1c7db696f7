"""The core questions: everything that was taught, asked once, and the probes of what was not."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from mothertongue.errors import DataError
from mothertongue_trainer.entries import BANGLA_WORD
from mothertongue_trainer.everyday import read_everyday
from mothertongue_trainer.numerals import addends, bangla_digits, read_numerals
from mothertongue_trainer.phrasings import Phrasings, ask, read_phrasings
from mothertongue_trainer.turns import is_unseen_sum
from mothertongue_trainer.words import WordList

UNSEEN_PER_PHRASING = 60  # questions in each held-out phrasing


@dataclass(frozen=True, kw_only=True)
class Question:
    """A question of the exam. No answers: the right answer is that this was not learned."""

    skill: str
    question: str
    answers: tuple[str, ...]


def read_questions(path: Path) -> list[Question]:
    """Return the questions in a core.jsonl.

    Raises:
        DataError: no such file, or a line in another form.
    """
    questions = []
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        raise DataError(f"{path}: not found; run `mothertongue prepare` first") from None
    for number, line in enumerate(lines, start=1):
        try:
            values = json.loads(line)
            skill, question, answers = values["skill"], values["question"], tuple(values["answers"])
        except (ValueError, KeyError, TypeError):
            raise DataError(
                f"{path}:{number}: not a question (skill, question, answers); prepare the corpus again"
            ) from None
        questions.append(Question(skill=skill, question=question, answers=answers))
    return questions


def core_questions(words: WordList, random: np.random.Generator) -> list[Question]:
    """Return the questions of every skill, each fact once in its canonical phrasing."""
    phrasings = read_phrasings()
    taught = [
        *_word_facts(words),
        *_number_facts(),
        *_sum_facts(),
    ]
    return [
        *(
            _question(skill, phrasings[asked].canonical, values, answers)
            for skill, asked, values, answers in taught
        ),
        *_everyday_questions(),
        *_unseen_phrasings(taught, phrasings, random),
        *_unknown_questions(words, phrasings, random),
    ]


# skill of the exam, skill whose phrasings ask for it, what is asked for, accepted answers
Fact = tuple[str, str, Mapping[str, str], tuple[str, ...]]


def _question(skill: str, phrasing: str, values: Mapping[str, str], answers: tuple[str, ...]) -> Question:
    return Question(skill=skill, question=ask(phrasing, values), answers=answers)


def _word_facts(words: WordList) -> Iterator[Fact]:
    for word in words.core:
        yield "english", "english", {"w": word.word}, word.senses
        if word.definition:
            yield "definition", "definition", {"w": word.word}, (word.definition,)
        if word.sentence:
            yield "sentence", "sentence", {"w": word.word}, (word.sentence,)
    for item in words.english:
        yield "bangla", "bangla", {"e": item.english}, item.words


def _number_facts() -> Iterator[Fact]:
    for number in read_numerals():
        yield "numbers", "digits_to_words", {"d": number.digits}, (number.bangla,)
        yield "numbers", "words_to_digits", {"n": number.bangla}, (number.digits,)
        yield "numbers", "digits_to_english", {"d": number.digits}, (number.english,)
        yield "numbers", "english", {"w": number.bangla}, (number.english,)
        yield "numbers", "bangla", {"e": number.english}, (number.bangla,)


def _sum_facts() -> Iterator[Fact]:
    for a, b in addends():
        skill = "sums_unseen" if is_unseen_sum(a, b) else "sums_seen"
        yield skill, "sums", {"a": bangla_digits(a), "b": bangla_digits(b)}, (bangla_digits(a + b),)


def _everyday_questions() -> Iterator[Question]:
    for turn in read_everyday():
        for phrasing in turn.phrasings.taught:
            yield Question(skill="everyday", question=phrasing, answers=(turn.answer,))


def _unseen_phrasings(
    taught: Sequence[Fact], phrasings: dict[str, Phrasings], random: np.random.Generator
) -> Iterator[Question]:
    """Yield learned facts in phrasings that were never trained."""
    for skill in ("english", "bangla", "definition", "sentence", "sums_seen"):
        facts = [fact for fact in taught if fact[0] == skill]
        if facts:
            for phrasing in phrasings[facts[0][1]].heldout:
                for index in random.choice(
                    len(facts), size=min(UNSEEN_PER_PHRASING, len(facts)), replace=False
                ):
                    yield _question("unseen_phrasing", phrasing, facts[index][2], facts[index][3])
    for turn in read_everyday():
        for phrasing in turn.phrasings.heldout[:UNSEEN_PER_PHRASING]:
            yield Question(skill="unseen_phrasing", question=phrasing, answers=(turn.answer,))


def _unknown_questions(
    words: WordList, phrasings: dict[str, Phrasings], random: np.random.Generator
) -> Iterator[Question]:
    """Yield held-out words asked as known ones are."""
    pool = [phrasings["english"].canonical, phrasings["definition"].canonical]
    for word in sorted(filter(BANGLA_WORD.fullmatch, words.heldout)):
        yield _question("unknown", pool[random.integers(len(pool))], {"w": word}, ())
