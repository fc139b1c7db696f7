"""Whether each engine computed the same model: its greedy tokens, judged by our logits after the same text.

    python -m peers.agreement '{"path": "bundles/base", "threads": 2, "vocabulary": 49152, "written": {...}}'

A token is the first choice or a near-tie: int8 rounds a logit by some hundredths of the logits' deviation,
and an engine with other scales rounds otherwise. An engine that computes something else is off by whole
deviations.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from peers.speed import DECODE_PROMPT_TOKENS, prompt_ids

JUDGED_TOKENS = 32
NEAR_TIE_DEVIATIONS = 0.5
LEAST_DISTANCE = (
    1.5  # deviations between the first choice and the average token: else nothing can be told apart
)


def verdict(logits: np.ndarray, tokens: Sequence[int]) -> dict[str, Any]:
    """Judge `tokens` by `logits` (T, V), row t after the prompt and the tokens before t."""
    best, deviation = logits.max(axis=1), logits.std(axis=1)
    behind = (best - logits[np.arange(len(tokens)), list(tokens)]) / deviation
    told_apart = ((best - logits.mean(axis=1)) / deviation >= LEAST_DISTANCE).all()
    return {
        "tokens": len(tokens),
        "first_choices": int((behind == 0).sum()),
        "near_ties": int(((behind > 0) & (behind <= NEAR_TIE_DEVIATIONS)).sum()),
        "farthest_deviations": float(behind.max()),
        "same_model": bool(told_apart and (behind <= NEAR_TIE_DEVIATIONS).all()),
    }


def judge(
    path: Path, threads: int, vocabulary: int, written: Mapping[str, Sequence[int]]
) -> dict[str, dict[str, Any]]:
    """Return the verdict on what each engine wrote after the prompt of the decode measurement."""
    from mothertongue import load

    session = load(path, threads=threads).engine.session()
    prompt = prompt_ids(vocabulary, DECODE_PROMPT_TOKENS)
    verdicts = {}
    for engine, tokens in written.items():
        judged = list(tokens[:JUDGED_TOKENS])
        session.reset()
        rows = [session.feed(prompt), *(session.feed([token]) for token in judged[:-1])]
        verdicts[engine] = verdict(np.stack(rows), judged)
    return verdicts


if __name__ == "__main__":
    task = json.loads(sys.argv[1])
    print(json.dumps(judge(Path(task["path"]), task["threads"], task["vocabulary"], task["written"])))
