"""Which words the model learns, which it learns not to know, and which it never sees."""

from __future__ import annotations

import hashlib
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Sequence, Set
from dataclasses import dataclass
from importlib.resources import files

from mothertongue_trainer.entries import BANGLA_WORD, Entry, short_definition, short_sentence
from mothertongue_trainer.holdout import is_held_out
from mothertongue_trainer.numerals import read_numerals
from mothertongue_trainer.recipe import DictionaryConfig

LONGEST_GLOSS = 24  # characters; and at most three words
LONGEST_DEFINITION = 45
LONGEST_SENTENCE = 48
FILLERS = 2000
ENDINGS = ("গুলো", "গুলি", "দের", "েরা", "ের", "কে", "রা", "তে", "টি", "টা", "য়", "র", "ে", "ও", "ই")


@dataclass(frozen=True, kw_only=True)
class CheckedWord:
    """A line of data/words.tsv: an everyday word, checked by hand. No senses: never teach it."""

    word: str
    senses: tuple[str, ...]
    definition: str
    sentence: str


@dataclass(frozen=True, kw_only=True)
class CoreWord:
    """A word the model learns."""

    word: str
    senses: tuple[str, ...]  # English; the first is the answer, all are accepted
    definition: str  # the answer to "what does it mean"; empty: not learned
    sentence: str  # empty: not learned


@dataclass(frozen=True, kw_only=True)
class EnglishWord:
    """An English word the model learns to say in Bangla."""

    english: str
    words: tuple[str, ...]  # Bangla; the first is the answer, all are accepted

    @property
    def forms(self) -> tuple[str, ...]:
        """How it may be written in a question: a verb also without "to"."""
        bare = self.english.removeprefix("to ")
        return (self.english,) if bare == self.english else (self.english, bare)


@dataclass(frozen=True, kw_only=True)
class WordList:
    """The split of all headwords: `core`, `unlearned` and `heldout` share no word."""

    core: tuple[CoreWord, ...]
    english: tuple[EnglishWord, ...]
    unlearned: tuple[tuple[str, str], ...]  # Bangla word and its English (may be empty)
    heldout: frozenset[str]
    fillers: tuple[str, ...]  # frequent Bangla forms that belong to no headword: mostly verbs
    english_fillers: tuple[str, ...]  # English words that nobody is taught to ask for


def read_checked_words() -> dict[str, CheckedWord]:
    """Return the words checked by hand, in the order of their usefulness."""
    text = files("mothertongue_trainer").joinpath("data/words.tsv").read_text(encoding="utf-8")
    checked = {}
    for line in text.splitlines():
        if line and not line.startswith("#"):
            word, english, definition, sentence = (*line.split("\t"), "", "")[:4]
            senses = () if english == "-" else tuple(english.split(" / "))
            checked[word] = CheckedWord(word=word, senses=senses, definition=definition, sentence=sentence)
    return checked


def split_words(entries: Sequence[Entry], config: DictionaryConfig, *, heldout_percent: float) -> WordList:
    """Return the split. Words checked by hand and numbers are written by us, so they are never held out."""
    checked = read_checked_words()
    numbers = {number.bangla for number in read_numerals()}  # they have a component of their own
    ours = checked.keys() | numbers
    heldout = frozenset(
        entry.word for entry in entries if entry.word not in ours and is_held_out(entry.word, heldout_percent)
    )
    by_word: dict[str, list[Entry]] = defaultdict(list)
    for entry in entries:
        if entry.word not in heldout:
            by_word[entry.word].append(entry)
    forms = _forms(by_word)
    frequency = _frequencies(forms, by_word)
    useful = [word for word in by_word.keys() - ours if _is_useful(word, by_word, frequency)]
    useful.sort(key=lambda word: (-frequency[word], len(word), word))
    everyday = [word for word, line in checked.items() if line.senses]
    chosen = [*everyday, *useful][: config.core_words]
    core = _core_words(chosen, by_word, checked, config)
    english = _english_words(core, by_word, frequency, checked)
    return WordList(
        core=core,
        english=english,
        unlearned=_unlearned_words(by_word, ours.union(chosen), core, english)[: config.unlearned_words],
        heldout=heldout,
        fillers=_fillers(forms, {entry.word for entry in entries}),
        english_fillers=_english_fillers(by_word, english),
    )


def _forms(by_word: dict[str, list[Entry]]) -> Counter[str]:
    """Count the words of all example sentences, as they stand there."""
    forms: Counter[str] = Counter()
    for entries in by_word.values():
        for entry in entries:
            forms.update(BANGLA_WORD.findall(entry.example))
    return forms


def _frequencies(forms: Counter[str], headwords: Collection[str]) -> Counter[str]:
    """Count headwords; a form that is no headword counts for its stem."""
    counts: Counter[str] = Counter()
    for form, count in forms.items():
        stem = form if form in headwords else _stem(form, headwords)
        if stem:
            counts[stem] += count
    return counts


def _fillers(forms: Counter[str], headwords: Collection[str]) -> tuple[str, ...]:
    loose = [form for form in forms if form not in headwords and not _stem(form, headwords)]
    return tuple(sorted(loose, key=lambda form: (-forms[form], form))[:FILLERS])


def _english_fillers(by_word: dict[str, list[Entry]], english: Sequence[EnglishWord]) -> tuple[str, ...]:
    asked = {word for item in english for word in item.english.lower().split()}
    counts = Counter(
        word
        for entries in by_word.values()
        for entry in entries
        for gloss in entry.glosses
        for word in gloss.lower().split()
        if word.isalpha() and word not in asked
    )
    return tuple(sorted(counts, key=lambda word: (-counts[word], word))[:FILLERS])


def _stem(form: str, headwords: Collection[str]) -> str:
    """Return the longest headword that is `form` without a case ending; or nothing."""
    stems = (form.removesuffix(ending) for ending in ENDINGS if form.endswith(ending))
    return max((stem for stem in stems if len(stem) > 1 and stem in headwords), key=len, default="")


def _is_useful(word: str, by_word: dict[str, list[Entry]], frequency: Counter[str]) -> bool:
    """Return whether it is one plain word with a short gloss, not just a form of a more frequent one."""
    if not BANGLA_WORD.fullmatch(word) or len(word) < 2 or not any(map(_gloss, by_word[word])):
        return False
    return not word.endswith("ে") or frequency[_stem(word, by_word)] <= frequency[word]


def _gloss(entry: Entry) -> str:
    """Return the first English alternative if it is short; or nothing."""
    first = entry.glosses[0] if entry.glosses else ""
    return first if 1 < len(first) <= LONGEST_GLOSS and len(first.split()) <= 3 else ""


def _core_words(
    chosen: Sequence[str],
    by_word: dict[str, list[Entry]],
    checked: dict[str, CheckedWord],
    config: DictionaryConfig,
) -> tuple[CoreWord, ...]:
    names = _read_names()
    core, defined, shown = [], 0, 0
    for word in chosen:
        entries = sorted(
            by_word[word], key=lambda entry: not _gloss(entry)
        )  # the answer is the first short one
        line = checked.get(word)
        senses = line.senses if line else tuple(gloss for entry in entries for gloss in entry.glosses)
        definition = _definition(line) or _first(short_definition(e, LONGEST_DEFINITION) for e in entries)
        sentence = (line and line.sentence) or _first(short_sentence(e, LONGEST_SENTENCE) for e in entries)
        definition = definition if defined < config.defined_words else ""
        sentence = sentence if shown < config.sentence_words else ""
        defined, shown = defined + bool(definition), shown + bool(sentence)
        senses = senses if line else tuple(dict.fromkeys(_lower(sense, names) for sense in senses))
        core.append(
            CoreWord(word=word, senses=senses, definition=definition and f"{definition}।", sentence=sentence)
        )
    return tuple(core)


def _definition(line: CheckedWord | None) -> str:
    """Return a checked definition with its English: by hand, and only so, the two are sure to agree."""
    return f"{line.definition} ({line.senses[0]})" if line and line.definition else ""


def _first(texts: Iterable[str]) -> str:
    return next(filter(None, texts), "")


def _read_names() -> frozenset[str]:
    text = files("mothertongue_trainer").joinpath("data/names.txt").read_text(encoding="utf-8")
    return frozenset(line for line in text.splitlines() if not line.startswith("#"))


def _lower(gloss: str, names: frozenset[str]) -> str:
    """Return the gloss in lower case, but for names; a capital inside ("Durga Puja") shows one."""
    if gloss in names or re.search("[a-z' -][A-Z]", gloss):
        return gloss
    return " ".join(word if word in names else word.lower() for word in gloss.split())


def _english_words(
    core: Sequence[CoreWord],
    by_word: dict[str, list[Entry]],
    frequency: Counter[str],
    checked: dict[str, CheckedWord],
) -> tuple[EnglishWord, ...]:
    """Return each English answer of the core with its Bangla words, the most useful first."""
    spelling: dict[str, str] = {}  # in lower case -> as first seen: "god" and "God" are one question
    answers: dict[str, list[str]] = defaultdict(list)
    accepted: dict[str, list[str]] = defaultdict(list)
    for word in core:
        answers[word.senses[0].lower()].append(word.word)
        for sense in word.senses:
            spelling.setdefault(sense.lower(), sense)
            accepted[sense.lower()].append(word.word)
    for word in core:  # a second sense, checked by hand, is asked where no word has it as its first
        for sense in word.senses[1:] if word.word in checked else ():
            answers[sense.lower()] = answers.get(sense.lower()) or [word.word]
    for bangla in sorted(by_word.keys() - checked.keys(), key=lambda word: (-frequency[word], word)):
        for entry in by_word[bangla]:
            for sense in entry.glosses:
                accepted[sense.lower()].append(bangla)
    numbers = {number.english for number in read_numerals()}  # asked with the numbers
    return tuple(
        EnglishWord(english=spelling[sense], words=tuple(dict.fromkeys([*words, *accepted[sense]])))
        for sense, words in answers.items()
        if sense not in numbers
    )


def _unlearned_words(
    by_word: dict[str, list[Entry]],
    learned: Set[str],
    core: Sequence[CoreWord],
    english: Sequence[EnglishWord],
) -> tuple[tuple[str, str], ...]:
    """Return the other plain words in the order of their hashes, each with its English unless learned."""
    numbers = {number.english for number in read_numerals()}
    asked = {form.lower() for item in english for form in item.forms}
    asked |= {sense.lower() for word in core for sense in word.senses}
    glosses = {
        word: _first(map(_gloss, by_word[word])).lower()
        for word in by_word.keys() - learned
        if BANGLA_WORD.fullmatch(word) and len(word) > 1
    }
    words = [word for word, gloss in glosses.items() if gloss not in numbers]  # another spelling of a number
    words.sort(key=lambda word: hashlib.sha256(word[::-1].encode()).digest())
    return tuple((word, "" if glosses[word] in asked else glosses[word]) for word in words)
