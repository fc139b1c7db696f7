"""The golden set of a bundle: a few beginnings and what the proved model wrote after them.

int8 kernels differ between processors, and some have been wrong. A golden text ends before the first choice
that another rounding could turn, so a correct kernel repeats all of it. `doctor` and `verify` run this test.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mothertongue.errors import BundleError
from mothertongue.session import Session

GOLDEN_FILE = "golden.json"


@dataclass(frozen=True, kw_only=True)
class GoldenText:
    """A beginning, and the most probable ids after it."""

    prompt_ids: Sequence[int]
    greedy_ids: Sequence[int]


def read_golden(folder: Path) -> list[GoldenText]:
    """Return the golden set of the bundle in `folder`; raise BundleError if there is none."""
    path = folder / GOLDEN_FILE
    try:
        return [GoldenText(**text) for text in json.loads(path.read_text(encoding="utf-8"))["texts"]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BundleError(f"{path}: no golden set ({error!r}); export the bundle again") from None


def golden_findings(texts: Sequence[GoldenText], session: Session) -> list[str]:
    """Return a sentence for each golden text that `session` does not repeat."""
    findings = []
    for number, text in enumerate(texts, start=1):
        session.reset()
        logits = session.feed(text.prompt_ids)
        for place, expected in enumerate(text.greedy_ids, start=1):
            if logits.argmax() != expected:
                findings.append(
                    f"golden text {number}: token {place} is {logits.argmax()}, {expected} was proved; "
                    "onnxruntime computes another model on this processor"
                )
                break
            logits = session.feed([expected])
    return findings
