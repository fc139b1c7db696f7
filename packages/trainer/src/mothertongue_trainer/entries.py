"""Dictionary entries, cleaned for readers.

The source marks homographs (বা¹), parts of speech (বি., ক্রিবি.), labels ((আল.)) and pronunciations
(/জল ওঠা/), appends sub-entries to a meaning, and puts spaces before case endings (আকাশ এ). None of that
belongs in an answer.
"""

from __future__ import annotations

import json
import re
import sqlite3
import unicodedata
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from mothertongue.errors import DataError

HOMOGRAPH_MARKS = re.compile("[¹²³⁴⁵⁶⁷⁸⁹⁰'`]")
BANGLA_WORD = re.compile("[\u0981-\u09e3]+")  # letters and marks, no digits
GLOSS = re.compile("[A-Za-z][A-Za-z' -]*")
UNFIT_GLOSS = re.compile(  # notes of the source's makers, and glosses of a mere form of a word
    "dialect|variant|imperative|archaic|obsolete|slang|prefix|suffix|typo|context|phonetic|poetic|having |"
    "letter of|^would |^will |^[(]?I |definite article",
    re.IGNORECASE,
)
LABELS = re.compile(r"\([^()]*\)|(?:^|(?<=[\s।]))(?:বি|বিণ|ক্রিবি|ক্রিবিণ|অব্য|সর্ব|অসক্রি|ক্রি|স্ত্রী)\.")
NOT_PLAIN = re.compile("[^\u0980-\u09ff ,;\u200c\u200d-]|[০-৯]")
# ও is left alone: apart from its word it means "and".
SEPARATE_ENDING = re.compile(r"(?<!\S)(\S+) (এর?|র|রা|কে|তে|টি|টা|য়|ই|দের|গুলো|গুলি|টির|ের)(?=[\s,।?!]|$)")
CONSONANT = re.compile("[ক-হৎড়ঢ়য়]$")


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One cleaned entry; homographs share `word`."""

    word: str
    part_of_speech: str  # in Bangla, may be empty
    meanings: tuple[str, ...]  # without labels, sub-entries and the final danda
    glosses: tuple[str, ...]  # short English alternatives, the source's order, its capital letters
    example: str  # one sentence, or empty


def read_entries(database: Path) -> list[Entry]:
    """Return every entry of the dictionary, in the source's order.

    Raises:
        DataError: the file is not the dictionary's database.
    """
    query = "SELECT word, part_of_speech, meanings, english_translation, examples FROM words ORDER BY id"
    try:
        with closing(sqlite3.connect(f"{database.absolute().as_uri()}?mode=ro", uri=True)) as connection:
            rows = connection.execute(query).fetchall()
        return [entry for row in rows if (entry := _entry(*row)).word]
    except (sqlite3.Error, ValueError, TypeError) as error:
        raise DataError(
            f"{database}: not a dictionary of words ({error}); delete it and start again"
        ) from None


def _entry(
    word: str, part_of_speech: str | None, meanings: str | None, english: str | None, examples: str | None
) -> Entry:
    clean = clean_word(word)
    sentences = json.loads(examples or "[]")
    return Entry(
        word=clean,
        part_of_speech=_normal(part_of_speech or ""),
        meanings=tuple(filter(None, map(clean_meaning, json.loads(meanings or "[]")))),
        glosses=clean_glosses(english or ""),
        example=clean_example(sentences[0], clean) if sentences else "",
    )


def _normal(text: str) -> str:
    return " ".join(unicodedata.normalize("NFC", text).split())


def clean_word(word: str) -> str:
    """Return the headword without homograph marks."""
    return HOMOGRAPH_MARKS.sub("", _normal(word)).strip(" -")


def clean_meaning(meaning: str) -> str:
    """Return one meaning as plain text, or nothing if only marks were in it."""
    text = LABELS.sub(" ", _without_sub_entry(_normal(meaning)))
    text = re.sub(r"(?<=\w)- (?=\w)", "", text)  # hyphens of the printed page
    text = re.sub(r"\s+([,;।?!])", r"\1", " ".join(text.split())).strip(" ।,;.")
    return "" if re.fullmatch(r"[\d০-৯\W]*", text) else text


def _without_sub_entry(meaning: str) -> str:
    """Return what comes before a sub-entry: "সহজবোধ্য। জল ওঠা /জল ওঠা/ ..." gives "সহজবোধ্য।"."""
    before, _, after = meaning.partition("/")
    if not after:
        return before
    headwords = len(after.partition("/")[0].split())  # its pronunciation has a word for each of its words
    return " ".join(before.split()[: -headwords or None])


def clean_glosses(english: str) -> tuple[str, ...]:
    """Return the short English alternatives: "River / Stream (small)" gives River, Stream."""
    if UNFIT_GLOSS.search(english):
        return ()
    parts = (
        re.sub(r"\s+", " ", part).strip() for part in re.split("[/;,]", re.sub(r"\([^)]*\)", "", english))
    )
    return tuple(dict.fromkeys(part for part in parts if GLOSS.fullmatch(part)))


def clean_example(sentence: str, word: str) -> str:
    """Return an example without homograph marks and with case endings joined to their word."""

    def join(match: re.Match[str]) -> str:
        before, ending = match.groups()
        if before != word:
            return match.group()
        if not ending.startswith("এ"):
            return word + ending
        return word + "ে" + ending[1:] if CONSONANT.search(word) else match.group()

    text = SEPARATE_ENDING.sub(join, re.sub("[¹²³⁴⁵⁶]", "", _normal(sentence)))
    return re.sub(r"\s+([,;।?!])", r"\1", text)


def short_definition(entry: Entry, longest: int) -> str:
    """Return the first meaning if it is plain Bangla of at most `longest` characters; or nothing.

    A meaning that is too long loses synonyms from its end, never a part of its sentence. A later one would
    often be figurative, so it is never taken instead.
    """
    text = entry.meanings[0].split("।")[0].split(";")[0].strip() if entry.meanings else ""
    while len(text) > longest and "," in text:
        text, _, synonym = text.rpartition(",")
        if len(synonym.split()) > 1:
            return ""
    fits = 4 <= len(text) <= longest and text != entry.word and not text.endswith("রূপ")
    return "" if NOT_PLAIN.search(text) or not fits else text


def short_sentence(entry: Entry, longest: int) -> str:
    """Return the example if it is short, plain and shows the word itself; or nothing."""
    text = entry.example
    plain = not re.search("[^\u0980-\u09ff ,।?!\u200c\u200d-]", text)
    shows = f" {entry.word}" in f" {text}" and f"{entry.word} বা " not in text
    return text if plain and shows and 8 <= len(text) <= longest and text[-1] in "।?!" else ""
