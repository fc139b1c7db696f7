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
GENERATED_EVERYDAY = 100  # everyday questions made from patterns


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
    except UnicodeDecodeError:
        raise DataError(f"{path}: not UTF-8; prepare the corpus again") from None
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


@dataclass(frozen=True, kw_only=True)
class Fact:
    """Something that was taught, whatever way it is asked."""

    skill: str  # of the exam
    asked_as: str  # the skill whose phrasings ask for it
    values: Mapping[str, str]  # what fills the phrasing
    answers: tuple[str, ...]

    def question(self, phrasing: str, skill: str) -> Question:
        return Question(skill=skill, question=ask(phrasing, self.values), answers=self.answers)


def core_questions(words: WordList, random: np.random.Generator) -> list[Question]:
    """Return the questions of every skill, each fact once in its canonical phrasing."""
    phrasings = read_phrasings()
    facts = [*_word_facts(words), *_number_facts(), *_sum_facts()]
    return [
        *(fact.question(phrasings[fact.asked_as].canonical, fact.skill) for fact in facts),
        *_unseen_phrasings(facts, phrasings, random),
        *_unknown_questions(words, phrasings, random),
        *_everyday_questions(random),
    ]


def _word_facts(words: WordList) -> Iterator[Fact]:
    for word in words.core:
        values = {"w": word.word}
        yield Fact(skill="english", asked_as="english", values=values, answers=word.senses)
        if word.definition:
            yield Fact(skill="definition", asked_as="definition", values=values, answers=(word.definition,))
        if word.sentence:
            yield Fact(skill="sentence", asked_as="sentence", values=values, answers=(word.sentence,))
    for item in words.english:
        yield Fact(skill="bangla", asked_as="bangla", values={"e": item.english}, answers=item.words)


def _number_facts() -> Iterator[Fact]:
    for number in read_numerals():
        values = {"d": number.digits, "n": number.bangla, "w": number.bangla, "e": number.english}
        for asked_as, answer in (
            ("digits_to_words", number.bangla),
            ("words_to_digits", number.digits),
            ("digits_to_english", number.english),
            ("english", number.english),
            ("bangla", number.bangla),
        ):
            yield Fact(skill="numbers", asked_as=asked_as, values=values, answers=(answer,))


def _sum_facts() -> Iterator[Fact]:
    for a, b in addends():
        skill = "sums_unseen" if is_unseen_sum(a, b) else "sums_seen"
        values = {"a": bangla_digits(a), "b": bangla_digits(b)}
        yield Fact(skill=skill, asked_as="sums", values=values, answers=(bangla_digits(a + b),))


def _everyday_questions(random: np.random.Generator) -> Iterator[Question]:
    """Yield every exchange that a person wrote, and a few of the many that are made from patterns."""
    generated = []
    for turn in read_everyday():
        for phrasing in turn.phrasings.taught:
            question = Question(skill="everyday", question=phrasing, answers=(turn.answer,))
            if turn.generated:
                generated.append(question)
            else:
                yield question
    for index in random.choice(len(generated), size=min(GENERATED_EVERYDAY, len(generated)), replace=False):
        yield generated[index]


def _unseen_phrasings(
    facts: Sequence[Fact], phrasings: dict[str, Phrasings], random: np.random.Generator
) -> Iterator[Question]:
    """Yield learned facts in phrasings that were never trained."""
    for skill in ("english", "bangla", "definition", "sentence", "sums_seen"):
        own = [fact for fact in facts if fact.skill == skill]
        for phrasing in phrasings[own[0].asked_as].heldout if own else ():
            for index in random.choice(len(own), size=min(UNSEEN_PER_PHRASING, len(own)), replace=False):
                yield own[index].question(phrasing, "unseen_phrasing")
    for turn in read_everyday():
        for phrasing in turn.phrasings.heldout:
            yield Question(skill="unseen_phrasing", question=phrasing, answers=(turn.answer,))


def _unknown_questions(
    words: WordList, phrasings: dict[str, Phrasings], random: np.random.Generator
) -> Iterator[Question]:
    """Yield held-out words asked as known ones are."""
    pool = [phrasings["english"].canonical, phrasings["definition"].canonical]
    for word in sorted(filter(BANGLA_WORD.fullmatch, words.heldout)):
        question = ask(pool[random.integers(len(pool))], {"w": word})
        yield Question(skill="unknown", question=question, answers=())
