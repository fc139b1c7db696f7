"""Write the golden set: a few beginnings and what the proved bundle wrote after them, clear choices only."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path

from mothertongue.golden import GOLDEN_FILE, GoldenText
from mothertongue.session import Session
from mothertongue_export.comparison import log_softmax

GOLDEN_TOKENS = 24  # of one text, at most
SET_TOKENS = 64  # of all of them, about: 0.4 B parameters repeat them in a second
# Kernels that round activations differently moved logits by up to 0.1; a wrong one moves them by whole nats.
CLEAR_CHOICE_NATS = 0.5


def write_golden(folder: Path, session: Session, prompts: Iterable[Sequence[int]]) -> None:
    """Write golden.json into `folder`: what `session` writes after `prompts`, until that is enough."""
    texts: list[GoldenText] = []
    for ids in prompts:
        if sum(len(text.greedy_ids) for text in texts) >= SET_TOKENS:
            break
        if written := clear_choices(session, ids):
            texts.append(GoldenText(prompt_ids=ids, greedy_ids=written))
    content = json.dumps({"texts": [asdict(text) for text in texts]})
    (folder / GOLDEN_FILE).write_text(content + "\n", encoding="utf-8")


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
