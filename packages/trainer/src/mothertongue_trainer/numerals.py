"""Bangla numerals: the digits, the number words from 0 to 100, and small sums."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.resources import files

LARGEST_ADDEND = 20
DIGITS = str.maketrans("0123456789", "০১২৩৪৫৬৭৮৯")


@dataclass(frozen=True, kw_only=True)
class Numeral:
    """One number, three ways."""

    digits: str  # Bangla digits
    bangla: str
    english: str


def bangla_digits(value: int) -> str:
    """Return `value` in Bangla digits."""
    return str(value).translate(DIGITS)


def read_numerals() -> list[Numeral]:
    """Return the numbers 0 to 100, in order."""
    text = files("mothertongue_trainer").joinpath("data/numerals.tsv").read_text(encoding="utf-8")
    rows = (line.split("\t") for line in text.splitlines())
    return [
        Numeral(digits=bangla_digits(int(value)), bangla=bangla, english=english)
        for value, bangla, english in rows
    ]


def addends() -> list[tuple[int, int]]:
    """Return all ordered pairs that are asked as sums."""
    values = range(LARGEST_ADDEND + 1)
    return [(a, b) for a in values for b in values]
