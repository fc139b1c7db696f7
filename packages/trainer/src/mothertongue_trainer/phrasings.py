"""How people ask: the phrasings of each skill, the Bangla genitive, and the ways in which typing varies."""

from __future__ import annotations

import itertools
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

import numpy as np

VOWEL_SIGNS = "ািীুূৃেৈোৌ"
INDEPENDENT_VOWELS = "অআইঈউঊএঐওঔ"
OPENINGS = (
    "আচ্ছা, ", "বলো তো, ", "বলুন তো, ", "দয়া করে বলো, ", "দয়া করে বলুন, ", "আমাকে বলো, ", "একটু বলো, ",
    "ভাই, ", "আমি জানতে চাই, ", "তুমি কি জানো, ", "আপনি কি বলতে পারেন, ", "এবার বলো, ", "প্লিজ, ",
    "জানতে চাইছি, ", "দাদা, ", "স্যার, ", "আপু, ", "বন্ধু, ", "শোনো, ", "শুনুন, ", "হ্যালো, ", "প্রশ্ন: ",
    "একটা প্রশ্ন, ", "এখন বলো, ", "অনুগ্রহ করে বলুন, ", "সাহায্য করো, ", "তাহলে ",
    "আজ পড়ার সময় মনে হলো, ", "পড়ার জন্য দরকার, ", "ছেলে জিজ্ঞেস করেছে, ", "ক্লাসে জিজ্ঞেস করেছে, ",
    "বই পড়ে জানতে ইচ্ছে হলো, ", "মনে পড়ছে না, ", "ঠিক করে বলো, ", "তাড়াতাড়ি বলো, ",
)  # fmt: skip
CLOSINGS = (
    " বলো তো", " ভাই", " প্লিজ", " দয়া করে বলো", " একটু বলবে", " জানো কি", " বলুন তো", " দাদা", " স্যার",
    " রে", " বলবেন কি", " একটু জানাও", " জানা আছে", " ঠিক করে বলো", " সাহায্য করো", " বুঝতে পারছি না",
    " আমি জানি না", " মনে নেই", " বন্ধু", " গো",
)  # fmt: skip
ENGLISH_OPENINGS = (
    "please, ", "can you tell me, ", "hello, ", "tell me, ", "ok, ", "now, ", "hi, ", "question: ",
    "quick question, ", "for school, ", "I wonder, ", "sir, ", "hey, ", "so, ", "help me, ", "one more, ",
)  # fmt: skip
ENGLISH_CLOSINGS = (
    " please", " for me", " thanks", " I forgot", " for my homework", " if you know", " now",
    " my friend",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Phrasings:
    """The phrasings of one skill; `heldout` ones are never trained."""

    taught: tuple[str, ...]
    composed: tuple[
        tuple[str, ...], ...
    ] = ()  # taught as well: for each pattern, all combinations of the parts
    heldout: tuple[str, ...]

    @property
    def canonical(self) -> str:
        return self.taught[0]


def read_table(name: str) -> dict[str, Any]:
    """Return a TOML table that ships inside the package."""
    text = files("mothertongue_trainer").joinpath(f"data/{name}.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)


def read_phrasings() -> dict[str, Phrasings]:
    """Return the phrasings of every skill that asks for words or numbers."""
    table = read_table("phrasings")
    parts = table.pop("parts")
    return {
        skill: Phrasings(
            taught=tuple(lists["taught"]),
            composed=tuple(tuple(compose(pattern, parts)) for pattern in lists.get("composed", ())),
            heldout=tuple(lists["heldout"]),
        )
        for skill, lists in table.items()
    }


def compose(pattern: str, parts: Mapping[str, Sequence[str]]) -> list[str]:
    """Return `pattern` with its `{part}`s replaced in all combinations; `{w}` and the like stay."""
    pieces = re.split(r"(\{\w+\})", pattern)
    choices = [
        parts.get(piece.strip("{}"), [piece]) if piece.startswith("{") else [piece] for piece in pieces
    ]
    return ["".join(combination) for combination in itertools.product(*choices)]


def genitive(word: str) -> str:
    """Return `word` with its genitive ending: নদী নদীর, আকাশ আকাশের, বই বইয়ের, মা মায়ের, রং রঙের."""
    last = word[-1]
    letters = len(re.findall("[অ-হড়ঢ়য়ৎ]", word))
    if last in INDEPENDENT_VOWELS or (letters == 1 and last in VOWEL_SIGNS):
        return word + "য়ের"
    if last in VOWEL_SIGNS:
        return word + "র"
    if last in "ংৎ":
        return word[:-1] + {"ং": "ঙ", "ৎ": "ত"}[last] + "ের"
    return word + "ের"


def ask(phrasing: str, values: Mapping[str, str]) -> str:
    """Return the question; `{g}` is the genitive of the word `{w}`."""
    if "{g}" in phrasing:
        return phrasing.format(g=genitive(values["w"]), **values)
    return phrasing.format(**values)


def ask_freely(phrasing: str, values: Mapping[str, str], random: np.random.Generator) -> str:
    """Return the question as someone may type it: quoted, polite, without question mark, in lower case."""
    quoted, signed, lowered, polite = random.random(4)
    if quoted < 0.3:  # quotation marks around what is asked for
        mark = '"' if quoted < 0.2 else "'"
        values = {name: f"{mark}{value}{mark}" if name in "we" else value for name, value in values.items()}
        phrasing = phrasing.replace("{g}", "{w} এর")
    question = ask(phrasing, values)
    if signed < 0.25:
        question = question.rstrip("?")
    elif signed < 0.35 and question[-1] not in "?।:=" and " " in question:
        question += "?" if phrasing.isascii() else "।"
    elif signed < 0.40 and question[-1] == "?":
        question = question[:-1] + " ?"
    if phrasing.isascii() and lowered < 0.35:
        question = question[0].lower() + question[1:]
    if polite > 0.16 or " " not in question:
        return question
    if phrasing.isascii():
        if polite < 0.1:
            return _pick(ENGLISH_OPENINGS, random) + question
        return question.rstrip(" ?") + _pick(ENGLISH_CLOSINGS, random)
    if polite < 0.1 or not phrasing.endswith("?"):
        return _pick(OPENINGS, random) + question
    return question.rstrip(" ?।") + _pick(CLOSINGS, random)


def interrupt(phrasing: str, filler: str, random: np.random.Generator) -> str:
    """Return `phrasing` with `filler` between two of its words, or before or after them all."""
    words = phrasing.split(" ")
    words.insert(int(random.integers(len(words) + 1)), filler)
    return " ".join(words)


def _pick(texts: Sequence[str], random: np.random.Generator) -> str:
    return texts[int(random.integers(len(texts)))]
