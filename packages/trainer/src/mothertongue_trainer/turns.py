"""Questions and answers: what each component of the chat corpus teaches, in all its phrasings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from mothertongue_trainer.everyday import read_everyday
from mothertongue_trainer.holdout import is_held_out
from mothertongue_trainer.numerals import addends, bangla_digits, read_numerals
from mothertongue_trainer.phrasings import Phrasings, ask_freely, read_phrasings
from mothertongue_trainer.words import WordList

NOT_LEARNED = "দুঃখিত, এই শব্দটি আমি এখনো শিখিনি।"
NO_SENTENCE = "দুঃখিত, এই শব্দ দিয়ে বাক্য লেখা আমি এখনো শিখিনি।"
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
ENGLISH_UNLEARNED = 0.15  # of the unlearned words are asked from English as well


@dataclass(frozen=True, kw_only=True)
class Turn:
    """One question and its answer."""

    question: str
    answer: str


def is_unseen_sum(a: int, b: int) -> bool:
    """Return whether the sum is never trained, in either order."""
    return is_held_out(f"{min(a, b)} + {max(a, b)}", SUMS_HELDOUT_PERCENT)


def chat_turns(words: WordList, random: np.random.Generator) -> dict[str, list[Turn]]:
    """Return the turns of each chat component; no question has two answers."""
    phrasings = read_phrasings()
    everyday = list(_everyday_turns(random))
    makers = {
        "english": _english_turns(words, phrasings, random),
        "bangla": _bangla_turns(words, phrasings, random),
        "definition": _definition_turns(words, phrasings, random),
        "sentence": _sentence_turns(words, phrasings, random),
        "numbers": _number_turns(phrasings, random),
        "sums": _sum_turns(phrasings, random),
        "not_learned": _not_learned_turns(words, phrasings, random),
    }
    greetings = {turn.question.casefold() for turn in everyday}  # "ধন্যবাদ" is thanks, no word to explain
    turns = {
        component: [turn for turn in made if turn.question.casefold() not in greetings]
        for component, made in makers.items()
    }
    return {**turns, "everyday": everyday}


def _asked(
    pool: Sequence[str], values: Mapping[str, str], count: int, answer: str, random: np.random.Generator
) -> Iterator[Turn]:
    """Yield `count` turns: the canonical phrasing first, then others, none twice before all were used."""
    order = [0, *random.permutation(np.arange(1, len(pool)))]
    for number in range(count):
        question = ask_freely(pool[order[number % len(order)]], values, random)
        yield Turn(question=question, answer=answer)


def _english_turns(
    words: WordList, phrasings: dict[str, Phrasings], random: np.random.Generator
) -> Iterator[Turn]:
    english, meaning = phrasings["english"].taught, phrasings["definition"].taught
    for word in words.core:
        values = {"w": word.word}
        # A word without a learned definition answers "what does it mean" in English.
        meanings = 0 if word.definition else QUESTIONS["english"] // 4
        yield from _asked(english, values, QUESTIONS["english"] - meanings, word.senses[0], random)
        yield Turn(question=word.word, answer=word.senses[0])
        yield from _asked(meaning, values, meanings, word.senses[0], random)


def _bangla_turns(
    words: WordList, phrasings: dict[str, Phrasings], random: np.random.Generator
) -> Iterator[Turn]:
    others = {item.english for item in words.english}
    for item in words.english:
        forms = [form for form in item.forms if form == item.english or form not in others]
        for form in forms:
            count = QUESTIONS["bangla"] // len(forms)
            pool = phrasings["bangla"].taught
            yield from _asked(pool, {"e": _written(form, random)}, count // 2, item.words[0], random)
            yield from _asked(pool, {"e": form}, count - count // 2, item.words[0], random)
            yield Turn(question=form, answer=item.words[0])


def _written(english: str, random: np.random.Generator) -> str:
    """Return the word with a capital, as half of all people start a line."""
    return english[0].upper() + english[1:] if random.random() < 0.5 else english


def _definition_turns(
    words: WordList, phrasings: dict[str, Phrasings], random: np.random.Generator
) -> Iterator[Turn]:
    for word in words.core:
        if word.definition:
            pool = phrasings["definition"].taught
            yield from _asked(pool, {"w": word.word}, QUESTIONS["definition"], word.definition, random)


def _sentence_turns(
    words: WordList, phrasings: dict[str, Phrasings], random: np.random.Generator
) -> Iterator[Turn]:
    for word in words.core:
        if word.sentence:
            pool = phrasings["sentence"].taught
            yield from _asked(pool, {"w": word.word}, QUESTIONS["sentence"], word.sentence, random)


def _number_turns(phrasings: dict[str, Phrasings], random: np.random.Generator) -> Iterator[Turn]:
    count = QUESTIONS["numbers"]
    for number in read_numerals():
        values = {"d": number.digits, "n": number.bangla, "w": number.bangla, "e": number.english}
        yield from _asked(phrasings["digits_to_words"].taught, values, count, number.bangla, random)
        yield from _asked(phrasings["words_to_digits"].taught, values, count, number.digits, random)
        yield from _asked(phrasings["digits_to_english"].taught, values, count, number.english, random)
        yield from _asked(phrasings["english"].taught, values, count, number.english, random)
        yield from _asked(phrasings["bangla"].taught, values, count, number.bangla, random)


def _sum_turns(phrasings: dict[str, Phrasings], random: np.random.Generator) -> Iterator[Turn]:
    for a, b in addends():
        if not is_unseen_sum(a, b):
            values = {"a": bangla_digits(a), "b": bangla_digits(b)}
            yield from _asked(
                phrasings["sums"].taught, values, QUESTIONS["sums"], bangla_digits(a + b), random
            )


def _everyday_turns(random: np.random.Generator) -> Iterator[Turn]:
    for turn in read_everyday():
        times = QUESTIONS["everyday"] if len(turn.phrasings.taught) < 100 else 1
        for phrasing in turn.phrasings.taught:
            for _ in range(times):
                question = phrasing.rstrip("?!।") if random.random() < 0.25 else phrasing
                yield Turn(question=question, answer=turn.answer)


def _not_learned_turns(
    words: WordList, phrasings: dict[str, Phrasings], random: np.random.Generator
) -> Iterator[Turn]:
    skills = ("english", "definition", "sentence")
    for word, english in words.unlearned:
        pool = phrasings[skills[random.choice(3, p=(0.4, 0.4, 0.2))]].taught
        phrasing = pool[random.integers(len(pool))]
        yield Turn(question=ask_freely(phrasing, {"w": word}, random), answer=NOT_LEARNED)
        if english and random.random() < ENGLISH_UNLEARNED:
            pool = phrasings["bangla"].taught
            phrasing = pool[random.integers(len(pool))]
            yield Turn(question=ask_freely(phrasing, {"e": english}, random), answer=NOT_LEARNED)
    for item in words.core:
        if not item.sentence:
            pool = phrasings["sentence"].taught
            phrasing = pool[random.integers(len(pool))]
            yield Turn(question=ask_freely(phrasing, {"w": item.word}, random), answer=NO_SENTENCE)
