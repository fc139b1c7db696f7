"""The golden set: a few beginnings and what the proved bundle wrote after them, for any machine to repeat.

int8 kernels differ between processors, and some have been wrong. A golden text ends before the first choice
that another rounding could turn, so a correct kernel repeats all of it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from mothertongue.errors import BundleError
from mothertongue.session import Session
from mothertongue_export.comparison import log_softmax

GOLDEN_FILE = "golden.json"
GOLDEN_TOKENS = 24
# Kernels that round activations differently moved logits by up to 0.1; a wrong one moves them by whole nats.
CLEAR_CHOICE_NATS = 0.5


@dataclass(frozen=True, kw_only=True)
class GoldenText:
    """A beginning, and the most probable ids after it."""

    prompt_ids: Sequence[int]
    greedy_ids: Sequence[int]


def write_golden(folder: Path, session: Session, prompts: Iterable[Sequence[int]]) -> None:
    """Write golden.json into `folder`: what `session` writes after each of `prompts`."""
    texts = [GoldenText(prompt_ids=ids, greedy_ids=clear_choices(session, ids)) for ids in prompts]
    content = json.dumps({"texts": [asdict(text) for text in texts]})
    (folder / GOLDEN_FILE).write_text(content + "\n", encoding="utf-8")


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


def clear_choices(session: Session, prompt: Sequence[int]) -> list[int]:
    """Return the most probable ids after `prompt`, up to the first choice that is not clear."""
    session.reset()
    logits = session.feed(prompt)
    ids: list[int] = []
    while len(ids) < GOLDEN_TOKENS and session.position < session.context:
        second, first = sorted(log_softmax(logits))[-2:]
        if first - second < CLEAR_CHOICE_NATS:
            break
        ids.append(int(logits.argmax()))
        logits = session.feed(ids[-1:])
    return ids
