"""How fast a bundle is on this machine, beside the bound that its memory sets."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np

from mothertongue.bundle import GRAPH_FILE, onnxruntime_version
from mothertongue.device import Device, describe_device, peak_memory_bytes, read_bandwidth
from mothertongue.model import load
from mothertongue.sampling import Sampling, sample
from mothertongue.session import Session
from mothertongue.threads import ThreadChoice

# The prompts that engines are compared by; a context too short for one takes half of itself instead.
PREFILL_TOKENS = (256, 1024)
DECODE_TOKENS = 64  # at most; a quarter of a short context
WARM_UPS, REPEATS = 1, 5
# Ends with the program that began it, even if that one is killed.
BUSY_PROGRAM = "import os\nparent = os.getppid()\nwhile os.getppid() == parent:\n    sum(range(100_000))"


@dataclass(frozen=True, kw_only=True)
class Timing:
    """One thing, measured several times."""

    tokens: int
    median_ms: float
    p95_ms: float
    tokens_per_second: float  # of the median


@dataclass(frozen=True, kw_only=True)
class BenchReport:
    """The speed of one bundle on one machine."""

    bundle: str
    threads: ThreadChoice
    spinning: bool  # whether threads span between operators at the end
    busy_processes: int  # that ran beside it
    load_ms: float  # verification and warm-up included
    prefill: Sequence[Timing]
    time_to_first_token: Timing  # of the first prefill: the prompt, and the choice of one token
    decode: Timing  # one token
    weight_bytes: int
    cache_bytes: int  # of one full context
    peak_memory_bytes: int | None  # of the whole program
    read_bandwidth_bytes_per_second: float
    bandwidth_bound_tokens_per_second: float  # read_bandwidth / weight_bytes: each token reads every weight
    percent_of_bandwidth_bound: float
    device: Device
    onnxruntime: str

    def rows(self) -> dict[str, str]:
        """Return the report as a table: what was measured, and the figures with their units."""
        first, decode = self.time_to_first_token, self.decode
        peak = self.peak_memory_bytes
        rows = {
            "machine": f"{self.device.cpu}, onnxruntime {self.onnxruntime}",
            "threads": f"{self.threads.count} ({self.threads.reason}), "
            f"{'spinning' if self.spinning else 'not spinning'}",
            "beside it": f"{self.busy_processes or 'no'} busy process"
            + ("" if self.busy_processes == 1 else "es"),
            "load": f"{self.load_ms:.0f} ms, every byte verified",
        }
        for timing in self.prefill:
            rows[f"prefill {timing.tokens}"] = f"{timing.tokens_per_second:,.0f} tokens/s {spread(timing)}"
        return rows | {
            "first token": f"after {first.median_ms:.2f} ms (p95 {first.p95_ms:.2f} ms)",
            "decode": f"{decode.tokens_per_second:,.0f} tokens/s {spread(decode)}",
            "bound": f"{self.percent_of_bandwidth_bound:.0f} % of "
            f"{self.bandwidth_bound_tokens_per_second:,.0f} tokens/s = "
            f"{self.read_bandwidth_bytes_per_second / 1e9:.1f} GB/s measured / "
            f"{self.weight_bytes / 1e6:.1f} MB of weights",
            "memory": ("not known here" if peak is None else f"{peak / 1e6:.0f} MB at its peak")
            + f", of it up to {self.cache_bytes / 1e6:.0f} MB of cache",
        }


def spread(timing: Timing) -> str:
    """Return the median and the 95th percentile in words."""
    return f"(median {timing.median_ms:.3f} ms, p95 {timing.p95_ms:.3f} ms)"


def measure(folder: Path, *, threads: int | None = None, busy: int = 0) -> BenchReport:
    """Return the speed of the bundle in `folder`, medians after a warm-up, beside `busy` busy processes.

    Raises BundleError as `load` does.
    """
    with busy_processes(busy):
        start_s = time.perf_counter()
        model = load(folder, threads=threads)
        load_ms = since_ms(start_s)
        session = model.engine.session()
        lengths = sorted({min(tokens, session.context // 2) for tokens in PREFILL_TOKENS})
        runs = [measure_prefill(session, length) for length in lengths]
        session.rewind(lengths[0])
        steps_ms = measure_decode(session)
        peak = peak_memory_bytes()  # before the bandwidth's own buffer
        bandwidth = read_bandwidth(model.engine.threads.count)
    decode = timing(1, steps_ms)
    weights = sum(
        record.bytes for name, record in model.manifest.files.items() if name.startswith(GRAPH_FILE)
    )
    return BenchReport(
        bundle=str(folder),
        threads=model.engine.threads,
        spinning=model.engine.spinning,
        busy_processes=busy,
        load_ms=load_ms,
        prefill=[
            timing(length, [run[0] for run in times]) for length, times in zip(lengths, runs, strict=True)
        ],
        time_to_first_token=timing(lengths[0], [run[1] for run in runs[0]]),
        decode=decode,
        weight_bytes=weights,
        cache_bytes=session.cache_bytes,
        peak_memory_bytes=peak,
        read_bandwidth_bytes_per_second=bandwidth,
        bandwidth_bound_tokens_per_second=bandwidth / weights,
        percent_of_bandwidth_bound=100 * decode.tokens_per_second * weights / bandwidth,
        device=describe_device(),
        onnxruntime=onnxruntime_version(),
    )


@contextmanager
def busy_processes(count: int) -> Iterator[None]:
    """Keep `count` processes busy that do nothing else."""
    processes = [subprocess.Popen([sys.executable, "-c", BUSY_PROGRAM]) for _ in range(count)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def measure_prefill(session: Session, length: int) -> list[tuple[float, float]]:
    """Return the milliseconds of each prefill of `length` ids, and of it and the choice of one token."""
    prompt = np.random.default_rng(0).integers(session.vocabulary, size=length).tolist()
    greedy, rng = Sampling(), np.random.default_rng(0)
    times_ms = []
    for _ in range(WARM_UPS + REPEATS):
        session.reset()
        start_s = time.perf_counter()
        logits = session.feed(prompt)
        prefill_ms = since_ms(start_s)
        sample(logits, greedy, rng)
        times_ms.append((prefill_ms, since_ms(start_s)))
    return times_ms[WARM_UPS:]


def measure_decode(session: Session) -> list[float]:
    """Return the milliseconds of each token that follows the prompt now in the cache."""
    greedy, rng = Sampling(), np.random.default_rng(0)
    start, token = session.position, 0
    steps_ms = []
    for repeat in range(WARM_UPS + REPEATS):
        session.rewind(start)
        for _ in range(min(DECODE_TOKENS, session.context // 4)):
            start_s = time.perf_counter()
            token = sample(session.feed([token]), greedy, rng)
            if repeat >= WARM_UPS:
                steps_ms.append(since_ms(start_s))
    return steps_ms


def since_ms(start_s: float) -> float:
    """Return the milliseconds since `start_s`, a reading of `time.perf_counter`."""
    return 1e3 * (time.perf_counter() - start_s)


def timing(tokens: int, times_ms: Sequence[float]) -> Timing:
    """Return the summary of `times_ms`, each for `tokens` tokens."""
    return Timing(
        tokens=tokens,
        median_ms=median(times_ms),
        p95_ms=float(np.percentile(times_ms, 95)),
        tokens_per_second=1e3 * tokens / median(times_ms),
    )
