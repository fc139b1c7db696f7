"""Whole characters as a reader sees them: a letter with its signs, a conjunct, an emoji with its parts.

A vowel sign that arrives alone is drawn on a dotted circle until its letter stands before it, and a terminal
that has drawn it does not mend it. So a stream for people holds back the last cluster until the next one
begins. The rule is that of https://unicode.org/reports/tr29 as far as text of a language model meets it.
"""

from __future__ import annotations

import unicodedata

JOINER, NON_JOINER = "\u200d", "\u200c"
VIRAMA_CLASS = 9  # canonical combining class: a following consonant belongs to the same conjunct
REGIONAL_FIRST, REGIONAL_LAST = "\U0001f1e6", "\U0001f1ff"
SKIN_FIRST, SKIN_LAST = "\U0001f3fb", "\U0001f3ff"
# Endless marks are no text: they are shown as they come rather than never.
LONGEST_CLUSTER = 32


class GraphemeStream:
    """Gives text in whole clusters; the pieces joined are the text fed."""

    def __init__(self) -> None:
        self._held = ""

    def feed(self, text: str) -> str:
        """Return what `text` completes: all but the last cluster."""
        whole = self._held + text
        end = last_boundary(whole)
        if len(whole) - end > LONGEST_CLUSTER:
            end = len(whole)
        self._held = whole[end:]
        return whole[:end]

    def flush(self) -> str:
        """Return what is held back."""
        held, self._held = self._held, ""
        return held


def last_boundary(text: str) -> int:
    """Return where the last cluster of `text` begins."""
    place = len(text) - 1
    while place > 0 and belongs(text, place):
        place -= 1
    return max(place, 0)


def belongs(text: str, place: int) -> bool:
    """Return whether the character at `place` continues the cluster of the one before it."""
    before, here = text[place - 1], text[place]
    if before in "\r\n" or here in "\r\n":
        return before == "\r" and here == "\n"
    if here in (JOINER, NON_JOINER) or unicodedata.category(here).startswith("M"):
        return True
    if SKIN_FIRST <= here <= SKIN_LAST or before == JOINER:
        return True
    if unicodedata.combining(before) == VIRAMA_CLASS:
        return unicodedata.category(here).startswith("L")
    if REGIONAL_FIRST <= here <= REGIONAL_LAST:
        flags = len(text[:place]) - len(text[:place].rstrip("".join(map(chr, range(0x1F1E6, 0x1F200)))))
        return flags % 2 == 1
    return False
