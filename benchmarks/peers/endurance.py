"""What only our own engine is measured for: Python's part of a token, and 1,000 requests in a row.

python -m peers.endurance '{"path": "bundles/base", "threads": 2, "requests": 1000}'
"""

import json
import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

from peers.speed import status_kb

PROMPT = "নদীর ধারে একটা গ্রাম, and a long road to the town. "
OVERHEAD_TOKENS = 128
REQUEST_TOKENS, SETTLED_AFTER = 2, 50
COLD_REPEATS = 5


class TimedGraph:
    """An onnxruntime session that adds up how long it computes."""

    def __init__(self, graph: Any) -> None:
        self._graph = graph
        self.seconds = 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._graph, name)

    def run_with_iobinding(self, binding: Any) -> None:
        start_s = time.perf_counter()
        self._graph.run_with_iobinding(binding)
        self.seconds += time.perf_counter() - start_s


def python_overhead_ms(model: Any) -> float:
    """Return the milliseconds of a token of `model.generate`, with streaming, that are not onnxruntime's."""
    from mothertongue import Sampling

    graph = model.engine._graph = TimedGraph(model.engine._graph)
    answer = iter(model.generate(PROMPT * 4, Sampling(max_tokens=OVERHEAD_TOKENS)))
    next(answer)
    start_s, before_s = time.perf_counter(), graph.seconds
    tokens = sum(1 for _ in answer)
    total_s, computed_s = time.perf_counter() - start_s, graph.seconds - before_s
    if tokens == 0:
        raise RuntimeError("the model ended its text at once; nothing could be timed")
    return 1e3 * (total_s - computed_s) / tokens


def anonymous_growth_percent(model: Any, requests: int) -> dict[str, float]:
    """Return how anonymous memory grows from the 50th to the last of `requests`, of different lengths."""
    from mothertongue import Sampling

    settled_kb = 0
    for number in range(1, requests + 1):
        model.complete(PROMPT[: 8 + number % 24], Sampling(max_tokens=REQUEST_TOKENS))
        if number == min(SETTLED_AFTER, requests):
            settled_kb = status_kb("RssAnon", "VmSwap")
    last_kb = status_kb("RssAnon", "VmSwap")
    return {
        "requests": requests,
        "anonymous_mb_after_50": settled_kb * 1024 / 1e6,
        "anonymous_mb_at_the_end": last_kb * 1024 / 1e6,
        "anonymous_growth_percent": 100 * (last_kb / settled_kb - 1),
    }


def cold_command_s(bundle: Path) -> float:
    """Return the seconds from starting `mothertongue generate` to the first letter on its standard output."""
    command = [str(Path(sys.executable).with_name("mothertongue")), "generate", str(bundle)]
    times_s = []
    for _ in range(COLD_REPEATS):
        start_s = time.perf_counter()
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
            assert process.stdin
            assert process.stdout
            process.stdin.write("নদী".encode())
            process.stdin.close()
            first = process.stdout.read(1)
            times_s.append(time.perf_counter() - start_s)
            process.stdout.read()
        if not first or process.returncode != 0:
            raise RuntimeError(f"mothertongue generate {bundle}: ended with {process.returncode}")
    return median(times_s)


def measure(path: Path, threads: int, requests: int) -> dict[str, Any]:
    from mothertongue import load

    model = load(path, threads=threads)
    cache_mb = model.engine.session().cache_bytes / 1e6
    growth = anonymous_growth_percent(model, requests)
    return growth | {"python_overhead_ms": python_overhead_ms(model), "cache_mb": cache_mb}


if __name__ == "__main__":
    task = json.loads(sys.argv[1])
    print(json.dumps(measure(Path(task["path"]), task["threads"], task["requests"])))
