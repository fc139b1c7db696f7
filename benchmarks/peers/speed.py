"""Measure one engine in this process and print what was measured as one JSON object.

    python -m peers.speed '{"engine": "llamacpp", "path": "model.gguf", "threads": 2, ...}'

`rounds.py` starts it, each time in a fresh process of the environment that the engine is installed in.
"""

import dataclasses
import json
import random
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from peers.engines import ENGINES

PREFILL_REPEATS = {256: 3, 1024: 2}
DECODE_PROMPT_TOKENS, DECODE_TOKENS = 256, 128
WARM_UP_TOKENS = 16


@dataclass(frozen=True, kw_only=True)
class Task:
    """What to measure: an engine, its files, and whether only the decoding."""

    engine: str
    path: str
    threads: int | None
    vocabulary: int
    decode_only: bool = False
    idle_s: float = 0.0


def prompt_ids(vocabulary: int, count: int) -> list[int]:
    """Return the prompt that every engine gets: random ids."""
    return random.Random(0).choices(range(vocabulary), k=count)


def measure(task: Task) -> dict[str, Any]:
    start_s = time.perf_counter()
    engine = ENGINES[task.engine](Path(task.path), task.threads)
    found: dict[str, Any] = {"load_s": time.perf_counter() - start_s}
    prompt = prompt_ids(task.vocabulary, max(PREFILL_REPEATS))
    engine.generate(prompt[:DECODE_PROMPT_TOKENS], WARM_UP_TOKENS)
    if not task.decode_only:
        for tokens, repeats in PREFILL_REPEATS.items():
            firsts_s = [engine.generate(prompt[:tokens], 1).first_s for _ in range(repeats)]
            found[f"prefill_{tokens}_tokens_per_s"] = tokens / median(firsts_s)
            found.setdefault("ttft_ms", 1e3 * median(firsts_s))
    written = engine.generate(prompt[:DECODE_PROMPT_TOKENS], 1 + DECODE_TOKENS)
    check_length(written.tokens)
    found |= {
        "decode_tokens_per_s": written.tokens_per_s,
        "tokens": written.tokens,
        "peak_mb": status_kb("VmHWM") * 1024 / 1e6,
        "settings": engine.settings(),
    }
    if task.idle_s:
        found["idle_cpu_s"] = idle_cpu_s(task.idle_s)
    return found


def check_length(tokens: Sequence[int]) -> None:
    if len(tokens) != 1 + DECODE_TOKENS:
        raise RuntimeError(f"{len(tokens)} tokens were written, {1 + DECODE_TOKENS} were asked for")


def idle_cpu_s(seconds: float) -> float:
    """Return the CPU seconds that all threads of this process take while nobody asks for anything."""
    before_s = time.process_time()
    time.sleep(seconds)
    return time.process_time() - before_s


def status_kb(*names: str) -> int:
    """Return the sum of entries of /proc/self/status, in units of 1,024 bytes."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    entries = dict(line.split(":", 1) for line in lines)
    return sum(int(entries[name].split()[0]) for name in names)


if __name__ == "__main__":
    task = Task(**json.loads(sys.argv[1]))
    print(json.dumps(dataclasses.asdict(task) | measure(task)))
