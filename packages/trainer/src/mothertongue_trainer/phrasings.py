"""How people ask: the phrasings of each skill, the Bangla genitive, and the ways in which typing varies."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

import numpy as np

VOWEL_SIGNS = "ািীুূৃেৈোৌ"
INDEPENDENT_VOWELS = "অআইঈউঊএঐওঔ"
OPENINGS = ("আচ্ছা, ", "বলো তো, ", "বলুন তো, ", "দয়া করে বলো, ", "দয়া করে বলুন, ", "আমাকে বলো, ")


@dataclass(frozen=True, kw_only=True)
class Phrasings:
    """The phrasings of one skill; `heldout` ones are never trained."""

    taught: tuple[str, ...]
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
    return {
        skill: Phrasings(taught=tuple(lists["taught"]), heldout=tuple(lists["heldout"]))
        for skill, lists in read_table("phrasings").items()
    }


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
    chance = random.random(4)
    if chance[0] < 0.3:  # quotation marks around what is asked for
        mark = '"' if chance[0] < 0.2 else "'"
        values = {name: f"{mark}{value}{mark}" if name in "we" else value for name, value in values.items()}
        phrasing = phrasing.replace("{g}", "{w} এর")
    question = ask(phrasing, values)
    if chance[1] < 0.25:
        question = question.rstrip("?")
    elif chance[1] < 0.35 and question[-1].isalnum() and " " in question:
        question += "?" if phrasing.isascii() else "।"
    elif chance[1] < 0.40 and question[-1] == "?":
        question = question[:-1] + " ?"
    if phrasing.isascii():
        return question[0].lower() + question[1:] if chance[2] < 0.35 else question
    if chance[3] < 0.12 and " " in question:
        return OPENINGS[int(chance[3] / 0.12 * len(OPENINGS))] + question
    return question
