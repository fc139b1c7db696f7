"""Everyday exchanges: greetings, thanks, who are you, one honest sentence for what this model cannot do."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from mothertongue_trainer.numerals import LARGEST_ADDEND, bangla_digits
from mothertongue_trainer.phrasings import Phrasings, read_table


@dataclass(frozen=True, kw_only=True)
class EverydayTurn:
    """Many ways to say the same, and one answer."""

    phrasings: Phrasings
    answer: str
    generated: bool = False  # many phrasings from few patterns


def read_everyday() -> list[EverydayTurn]:
    """Return the exchanges; off-topic requests and the sums that were not learned come last."""
    table = read_table("everyday")
    return [
        *(_turn(turn["taught"], turn["heldout"], turn["answer"]) for turn in table["turn"]),
        _turn(table["other"]["taught"], table["other"]["heldout"], table["elsewhere"]["answer"]),
        _elsewhere(table["elsewhere"]),
        _arithmetic(table["arithmetic"]),
    ]


def _turn(
    taught: Iterable[str], heldout: Iterable[str], answer: str, *, generated: bool = False
) -> EverydayTurn:
    phrasings = Phrasings(taught=tuple(dict.fromkeys(taught)), heldout=tuple(heldout))
    return EverydayTurn(phrasings=phrasings, answer=answer, generated=generated)


def _elsewhere(table: dict[str, Any]) -> EverydayTurn:
    """Return requests for a text about any topic."""
    taught, heldout = (
        [text.format(t=topic) for text in table[part] for topic in table["topics"]]
        for part in ("taught", "heldout")
    )
    return _turn(taught, heldout, table["answer"], generated=True)


def _arithmetic(table: dict[str, Any]) -> EverydayTurn:
    """Return sums beyond the learned ones, and differences, products and quotients."""
    small = [(a, b) for a in range(3, 50, 9) for b in range(1, a, 11)]
    large = [(a, b) for a in range(LARGEST_ADDEND + 2, 100, 6) for b in range(5, 100, 17)]
    taught = [*_written(table["not_sums"], small), *_written(table["large_sums"], large)]
    heldout = _written(table["heldout"], [(9, 4), (18, 6)])
    return _turn(taught, heldout, table["answer"], generated=True)


def _written(phrasings: Iterable[str], pairs: Iterable[tuple[int, int]]) -> list[str]:
    digits = [(bangla_digits(a), bangla_digits(b)) for a, b in pairs]
    return [phrasing.format(a=a, b=b) for phrasing in phrasings for a, b in digits]
