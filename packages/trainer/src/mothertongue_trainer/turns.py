"""Questions and answers: what each component of the chat corpus teaches, in all its phrasings."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from mothertongue_trainer.everyday import read_everyday
from mothertongue_trainer.holdout import is_held_out
from mothertongue_trainer.numerals import addends, bangla_digits, read_numerals
from mothertongue_trainer.phrasings import Phrasings, ask, ask_freely, interrupt, read_phrasings
from mothertongue_trainer.words import WordList

NOT_LEARNED = "দুঃখিত, শব্দটি এখনো শিখিনি।"
NO_SENTENCE = "দুঃখিত, বাক্যটি এখনো শিখিনি।"
SUMS_HELDOUT_PERCENT = 12.0
# Questions made for each fact. With the shares of recipes/nano.toml a run sees each one to four times.
QUESTIONS = {
    "english": 16,
    "bangla": 16,
    "definition": 12,
    "sentence": 10,
    "numbers": 7,
    "sums": 40,
    "everyday": 4,
}
MEANINGS = 4  # of the 16: "what does it mean", for a word without a learned definition, answered in English
ENGLISH_UNLEARNED = 0.15  # of the unlearned words are asked from English as well
# An unfamiliar word beside the one asked for made the model say that it had not learned that: for half of the
# questions in unseen phrasings. So some questions, of learned and unlearned words alike, hold a word to pass
# over. More of them slow the learning and weaken the refusal of words that are really unknown.
INTERRUPTED = 0.025
# How unlearned words are asked for, "bare" without a question: as learned ones are. Where a way of asking is
# rarer among them, the model takes it as a sign that the word is known, and invents an answer.
REFUSED_SKILLS = {"bare": 0.05, "english": 0.4, "definition": 0.35, "sentence": 0.2}
REFUSED_QUESTIONS = {
    "bangla": QUESTIONS["bangla"],
    "english": QUESTIONS["english"] - MEANINGS,
    "definition": MEANINGS,
    "sentence": QUESTIONS["sentence"],
}

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Turn:
    """One question and its answer."""

    question: str
    answer: str


def is_unseen_sum(a: int, b: int) -> bool:
    """Return whether the sum is never trained, in either order."""
    return is_held_out(f"{min(a, b)} + {max(a, b)}", SUMS_HELDOUT_PERCENT)


class Questioner:
    """Asks for a fact in the taught phrasings of a skill, typed as people type."""

    def __init__(self, words: WordList, random: np.random.Generator) -> None:
        self.random = random
        self._phrasings = read_phrasings()
        self._fillers = {False: words.fillers, True: words.english_fillers}

    def many(self, skill: str, values: Mapping[str, str], answer: str, count: int) -> Iterator[Turn]:
        """Yield `count` turns: the canonical phrasing as it is, then composed and listed ones in turn."""
        phrasings = self._phrasings[skill]
        listed = self.random.permutation(len(phrasings.taught))
        for number in range(count):
            phrasing = phrasings.taught[listed[number % len(listed)]]
            yield Turn(question=self._question(phrasings, number, phrasing, values), answer=answer)

    def one(self, skill: str, values: Mapping[str, str], answer: str, *, of: int) -> Turn:
        """Return one of the turns that `many` would yield for a count of `of`."""
        phrasings = self._phrasings[skill]
        number = int(self.random.integers(of))
        question = self._question(phrasings, number, self._any(phrasings.taught), values)
        return Turn(question=question, answer=answer)

    def _question(self, phrasings: Phrasings, number: int, listed: str, values: Mapping[str, str]) -> str:
        if number == 0:
            return ask(phrasings.canonical, values)
        return self._typed(self._composed(phrasings) if number % 2 and phrasings.composed else listed, values)

    def _typed(self, phrasing: str, values: Mapping[str, str]) -> str:
        fillers = self._fillers[phrasing.isascii()]
        about_a_word = re.search(r"\{[wge]\}", phrasing) and " " in phrasing
        if fillers and about_a_word and self.random.random() < INTERRUPTED:
            phrasing = interrupt(phrasing, self._any(fillers), self.random)
        return ask_freely(phrasing, values, self.random)

    def _composed(self, phrasings: Phrasings) -> str:
        """Return a composed phrasing, every pattern as often as another, however many combinations it has."""
        return self._any(self._any(phrasings.composed))

    def _any(self, choices: Sequence[T]) -> T:
        return choices[int(self.random.integers(len(choices)))]


def chat_turns(words: WordList, random: np.random.Generator) -> dict[str, list[Turn]]:
    """Return the turns of each chat component; an everyday turn wins over one that asks the same."""
    questioner = Questioner(words, random)
    everyday = list(_everyday_turns(random))
    makers = {
        "english": _english_turns(words, questioner),
        "bangla": _bangla_turns(words, questioner),
        "definition": _definition_turns(words, questioner),
        "sentence": _sentence_turns(words, questioner),
        "numbers": _number_turns(questioner),
        "sums": _sum_turns(questioner),
        "not_learned": _not_learned_turns(words, questioner),
    }
    taken = {turn.question.casefold() for turn in everyday}  # "ধন্যবাদ" is thanks, no word to explain
    turns = {
        component: [turn for turn in made if turn.question.casefold() not in taken]
        for component, made in makers.items()
    }
    return {**turns, "everyday": everyday}


def _english_turns(words: WordList, questioner: Questioner) -> Iterator[Turn]:
    for word in words.core:
        values, answer = {"w": word.word}, word.senses[0]
        meanings = 0 if word.definition else MEANINGS
        yield Turn(question=word.word, answer=answer)
        yield from questioner.many("english", values, answer, QUESTIONS["english"] - meanings)
        yield from questioner.many("definition", values, answer, meanings)


def _bangla_turns(words: WordList, questioner: Questioner) -> Iterator[Turn]:
    others = {item.english for item in words.english}
    for item in words.english:
        forms = [form for form in item.forms if form == item.english or form not in others]
        for form in forms:
            count, answer = QUESTIONS["bangla"] // len(forms), item.words[0]
            yield Turn(question=form, answer=answer)
            yield from questioner.many("bangla", {"e": form}, answer, count - count // 4)
            yield from questioner.many("bangla", {"e": form[0].upper() + form[1:]}, answer, count // 4)


def _definition_turns(words: WordList, questioner: Questioner) -> Iterator[Turn]:
    for word in words.core:
        if word.definition:
            yield from questioner.many(
                "definition", {"w": word.word}, word.definition, QUESTIONS["definition"]
            )


def _sentence_turns(words: WordList, questioner: Questioner) -> Iterator[Turn]:
    for word in words.core:
        if word.sentence:
            yield from questioner.many("sentence", {"w": word.word}, word.sentence, QUESTIONS["sentence"])


def _number_turns(questioner: Questioner) -> Iterator[Turn]:
    for number in read_numerals():
        values = {"d": number.digits, "n": number.bangla, "w": number.bangla, "e": number.english}
        for skill, answer in (
            ("digits_to_words", number.bangla),
            ("words_to_digits", number.digits),
            ("digits_to_english", number.english),
            ("english", number.english),
            ("bangla", number.bangla),
        ):
            yield from questioner.many(skill, values, answer, QUESTIONS["numbers"])


def _sum_turns(questioner: Questioner) -> Iterator[Turn]:
    for a, b in addends():
        if not is_unseen_sum(a, b):
            values = {"a": bangla_digits(a), "b": bangla_digits(b)}
            yield from questioner.many("sums", values, bangla_digits(a + b), QUESTIONS["sums"])


def _everyday_turns(random: np.random.Generator) -> Iterator[Turn]:
    for turn in read_everyday():
        times = QUESTIONS["everyday"] if len(turn.phrasings.taught) < 100 else 1
        for phrasing in turn.phrasings.taught:
            for _ in range(times):
                question = phrasing.rstrip("?!।") if random.random() < 0.25 else phrasing
                yield Turn(question=question, answer=turn.answer)


def _not_learned_turns(words: WordList, questioner: Questioner) -> Iterator[Turn]:
    random = questioner.random
    skills = random.choice(list(REFUSED_SKILLS), size=len(words.unlearned), p=list(REFUSED_SKILLS.values()))
    for skill, (word, english) in zip(skills, words.unlearned, strict=True):
        if skill == "bare":
            yield Turn(question=word, answer=NOT_LEARNED)
        else:
            yield questioner.one(skill, {"w": word}, NOT_LEARNED, of=REFUSED_QUESTIONS[skill])
        if english and random.random() < ENGLISH_UNLEARNED:
            yield questioner.one("bangla", {"e": english}, NOT_LEARNED, of=REFUSED_QUESTIONS["bangla"])
    for item in words.core:
        if not item.sentence:
            yield questioner.one("sentence", {"w": item.word}, NO_SENTENCE, of=QUESTIONS["sentence"])
