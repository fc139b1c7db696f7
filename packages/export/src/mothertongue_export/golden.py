"""The golden set: a few beginnings and what the proved bundle wrote after them, to be checked on any machine.

int8 kernels differ between processors, and some have been wrong. A golden text ends before the first choice that
another rounding could turn, so a correct kernel repeats all of it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from mothertongue.errors import BundleError
from mothertongue.session import Session
from mothertongue_export.comparison import log_softmax

GOLDEN_FILE = "golden.json"
GOLDEN_TOKENS = 24
# Kernels that round activations differently moved logits by up to 0.1; a wrong kernel moves them by whole nats.
CLEAR_CHOICE_NATS = 0.5


def write_golden(folder: Path, session: Session, prompts: Iterable[list[int]]) -> None:
    """Write golden.json into `folder`: each of `prompts` with the ids that `session` chooses after it."""
    texts = [{"prompt_ids": prompt, "greedy_ids": clear_choices(session, prompt)} for prompt in prompts]
    (folder / GOLDEN_FILE).write_text(json.dumps({"texts": texts}) + "\n", encoding="utf-8")


def golden_findings(folder: Path, session: Session) -> list[str]:
    """Return a sentence for each golden text in `folder` that `session` does not repeat.

    Raises:
        BundleError: golden.json is missing or not one.
    """
    path = folder / GOLDEN_FILE
    try:
        texts = json.loads(path.read_text(encoding="utf-8"))["texts"]
        pairs = [(text["prompt_ids"], text["greedy_ids"]) for text in texts]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BundleError(f"{path}: no golden set ({error!r}); export the bundle again") from None
    findings = []
    for number, (prompt, expected) in enumerate(pairs):
        found = greedy(session, prompt, len(expected))
        if found != expected:
            same = next(i for i, pair in enumerate(zip(found, expected, strict=True)) if pair[0] != pair[1])
            findings.append(
                f"golden text {number}: token {same} is {found[same]}, {expected[same]} was proved; "
                "the int8 kernels of this processor or onnxruntime compute another model"
            )
    return findings


def greedy(session: Session, prompt: list[int], tokens: int) -> list[int]:
    """Return the `tokens` most probable ids after `prompt`."""
    session.reset()
    logits = session.feed(prompt)
    ids: list[int] = []
    while len(ids) < tokens:
        ids.append(int(logits.argmax()))
        logits = session.feed(ids[-1:])
    return ids


def clear_choices(session: Session, prompt: list[int]) -> list[int]:
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
