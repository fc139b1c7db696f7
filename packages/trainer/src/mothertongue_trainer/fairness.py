"""How fair a tokenizer is: what a text costs in each language and script, on text it was not trained on.

A byte-level tokenizer never fails; it only cuts a language that it does not fit into crumbs. At 1.4
characters a token against 3.9 a context holds a third of the text, and nats per token hide it. So fertility
is measured, reported and a gate.
"""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from mothertongue.errors import CheckFailed, DataError
from mothertongue.tokenizer import Tokenizer
from mothertongue_trainer.document import Document
from mothertongue_trainer.recipe import TokenizerConfig

CHARACTERS_PER_LANGUAGE = 2_000_000  # measured; more changes no figure that is printed


@dataclass(frozen=True, kw_only=True)
class Fertility:
    """What some text costs. Characters are Unicode code points in NFC, words what white space separates."""

    characters: int = 0
    bytes: int = 0
    words: int = 0
    tokens: int = 0
    partial_tokens: int = 0  # that hold a piece of a character: no valid UTF-8 on their own

    @property
    def characters_per_token(self) -> float:
        return self.characters / self.tokens

    @property
    def bytes_per_token(self) -> float:
        return self.bytes / self.tokens

    @property
    def tokens_per_word(self) -> float:
        return self.tokens / self.words

    @property
    def partial_percent(self) -> float:
        return 100 * self.partial_tokens / self.tokens

    def as_dict(self) -> dict[str, float]:
        return {
            **asdict(self),
            "characters_per_token": self.characters_per_token,
            "bytes_per_token": self.bytes_per_token,
            "tokens_per_word": self.tokens_per_word,
            "partial_percent": self.partial_percent,
        }


@dataclass(frozen=True, kw_only=True)
class TokenizerReport:
    """How fair a tokenizer is on held-out text."""

    vocabulary: int
    unused_entries: int  # never seen in the held-out text, special tokens left out
    languages: dict[str, Fertility]
    scripts: dict[
        str, Fertility
    ]  # of the words whose first letter is of that script, each with a space before it

    def as_dict(self) -> dict[str, Any]:
        return {
            "vocabulary": self.vocabulary,
            "unused_entries": self.unused_entries,
            "languages": {name: fertility.as_dict() for name, fertility in self.languages.items()},
            "scripts": {name: fertility.as_dict() for name, fertility in self.scripts.items()},
        }

    def table(self) -> str:
        """Return the report as lines of text for a terminal."""
        heading = f"{'held-out text':<16}{'characters':>12}{'chars/token':>13}{'bytes/token':>13}"
        lines = [f"{heading}{'tokens/word':>13}{'partial UTF-8':>15}"]
        for name, f in [*self.languages.items(), *self.scripts.items()]:
            figures = f"{f.characters:>12,}{f.characters_per_token:>13.2f}{f.bytes_per_token:>13.2f}"
            lines.append(f"{name:<16}{figures}{f.tokens_per_word:>13.2f}{f.partial_percent:>14.2f}%")
        lines.append(f"{self.unused_entries:,} of {self.vocabulary:,} entries never used in it")
        return "\n".join(lines)


def measure(tokenizer: Tokenizer, documents: Iterable[Document]) -> TokenizerReport:
    """Return what `tokenizer` makes of the prose in `documents`, `CHARACTERS_PER_LANGUAGE` at most."""
    pieces = [tokenizer.token_bytes(token) for token in range(tokenizer.vocabulary)]
    partial = {token for token, piece in enumerate(pieces) if _is_partial(piece)}
    languages: dict[str, Counter[str]] = {}
    scripts: dict[str, Counter[str]] = {}
    words = Counter[str]()
    used: set[int] = set()

    def add(tally: Counter[str], text: str, times: int = 1) -> list[int]:
        ids = tokenizer.encode(text)
        tally["characters"] += times * len(text)
        tally["bytes"] += times * len(text.encode())
        tally["words"] += times * len(text.split())
        tally["tokens"] += times * len(ids)
        tally["partial_tokens"] += times * sum(token in partial for token in ids)
        return ids

    for document in documents:
        tally = languages.setdefault(document.language, Counter())
        if tally["characters"] < CHARACTERS_PER_LANGUAGE:
            used.update(add(tally, document.text))
            words.update(document.text.split())
    for word, times in words.items():
        script = _script(word)
        if script:
            # White space ends a piece of the split pattern: a word costs here what it costs in the text.
            add(scripts.setdefault(script, Counter()), f" {word}", times)
    return TokenizerReport(
        vocabulary=tokenizer.vocabulary,
        unused_entries=sum(map(bool, pieces)) - len(used),
        languages=_largest_first(languages),
        scripts=_largest_first(scripts),
    )


def check_fairness(report: TokenizerReport, config: TokenizerConfig) -> None:
    """Hold the report against the gate of the recipe.

    Raises:
        CheckFailed: a language gets fewer characters a token than it should.
        DataError: a language of the gate has no held-out text, so nothing can be said.
    """
    for language, minimum in config.minimum_characters_per_token.items():
        if language not in report.languages:
            raise DataError(
                f"tokenizer.minimum_characters_per_token.{language}: no held-out text in '{language}'; "
                f"languages found are {', '.join(report.languages)}"
            )
        found = report.languages[language].characters_per_token
        if found < minimum:
            raise CheckFailed(
                f"tokenizer: {found:.2f} characters a token in '{language}' on held-out text, at least "
                f"{minimum} expected; give '{language}' a larger share or raise tokenizer.vocabulary\n"
                f"{report.table()}"
            )


def _is_partial(piece: bytes) -> bool:
    try:
        piece.decode()
    except UnicodeDecodeError:
        return True
    return False


def _script(word: str) -> str | None:
    """Return the script of the first letter of `word`: the first word of its Unicode name, as Bengali."""
    letter = next(filter(str.isalpha, word), None)
    return unicodedata.name(letter, "Unknown").split()[0].capitalize() if letter else None


def _largest_first(tallies: dict[str, Counter[str]]) -> dict[str, Fertility]:
    ordered = sorted(tallies.items(), key=lambda item: -item[1]["characters"])
    return {name: Fertility(**tally) for name, tally in ordered}
