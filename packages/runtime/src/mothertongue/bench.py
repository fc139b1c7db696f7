"""How fast a bundle is on this machine, beside the bound that its memory sets."""

from __future__ import annotations

import time
from collections.abc import Sequence
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

PROMPT_TOKENS, NEW_TOKENS = 256, 64  # at most; half and a quarter of a short context
WARM_UPS, REPEATS = 1, 7


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
    load_ms: float  # verification included
    prefill: Timing
    time_to_first_token: Timing  # prefill and the choice of one token
    decode: Timing  # one token
    weight_bytes: int
    peak_memory_bytes: int | None
    read_bandwidth_bytes_per_second: float
    bandwidth_bound_tokens_per_second: (
        float  # read_bandwidth / weight_bytes: each weight is read for each token
    )
    percent_of_bandwidth_bound: float
    device: Device
    onnxruntime: str

    def rows(self) -> dict[str, str]:
        """Return the report as a table: what was measured, and the figures with their units."""
        prefill, first, decode = self.prefill, self.time_to_first_token, self.decode
        peak = self.peak_memory_bytes
        return {
            "machine": f"{self.device.cpu}, onnxruntime {self.onnxruntime}",
            "threads": f"{self.threads.count} ({self.threads.reason})",
            "load": f"{self.load_ms:.0f} ms, every byte verified",
            "prefill": f"{prefill.tokens_per_second:,.0f} tokens/s "
            f"({prefill.tokens} tokens: median {prefill.median_ms:.2f} ms, p95 {prefill.p95_ms:.2f} ms)",
            "first token": f"after {first.median_ms:.2f} ms (p95 {first.p95_ms:.2f} ms)",
            "decode": f"{decode.tokens_per_second:,.0f} tokens/s "
            f"(median {decode.median_ms:.3f} ms, p95 {decode.p95_ms:.3f} ms)",
            "bound": f"{self.percent_of_bandwidth_bound:.0f} % of "
            f"{self.bandwidth_bound_tokens_per_second:,.0f} tokens/s = "
            f"{self.read_bandwidth_bytes_per_second / 1e9:.1f} GB/s measured / "
            f"{self.weight_bytes / 1e6:.1f} MB of weights",
            "memory": "not known here" if peak is None else f"{peak / 1e6:.0f} MB at its peak",
        }


def measure(folder: Path, *, threads: int | None = None) -> BenchReport:
    """Return the speed of the bundle in `folder`, medians after a warm-up.

    Raises BundleError as `load` does.
    """
    start_s = time.perf_counter()
    model = load(folder, threads=threads)
    load_ms = since_ms(start_s)
    session = model.session
    prompt = np.random.default_rng(0).integers(
        session.vocabulary, size=min(PROMPT_TOKENS, session.context // 2)
    )
    runs = [measure_once(session, prompt.tolist()) for _ in range(WARM_UPS + REPEATS)][WARM_UPS:]
    prefill_ms, first_ms, steps_ms = zip(*runs, strict=True)
    decode = timing(1, [ms for run_ms in steps_ms for ms in run_ms])
    peak = peak_memory_bytes()  # before the bandwidth's own buffer
    bandwidth = read_bandwidth(session.threads.count)
    weights = sum(
        record.bytes for name, record in model.manifest.files.items() if name.startswith(GRAPH_FILE)
    )
    return BenchReport(
        bundle=str(folder),
        threads=session.threads,
        load_ms=load_ms,
        prefill=timing(len(prompt), prefill_ms),
        time_to_first_token=timing(len(prompt), first_ms),
        decode=decode,
        weight_bytes=weights,
        peak_memory_bytes=peak,
        read_bandwidth_bytes_per_second=bandwidth,
        bandwidth_bound_tokens_per_second=bandwidth / weights,
        percent_of_bandwidth_bound=100 * decode.tokens_per_second * weights / bandwidth,
        device=describe_device(),
        onnxruntime=onnxruntime_version(),
    )


def measure_once(session: Session, prompt: list[int]) -> tuple[float, float, list[float]]:
    """Return the milliseconds of one prefill, of prefill and first token, and of each step after it."""
    greedy, rng = Sampling(), np.random.default_rng(0)
    session.reset()
    start_s = time.perf_counter()
    logits = session.feed(prompt)
    prefill_ms = since_ms(start_s)
    token = sample(logits, greedy, rng)
    first_ms = since_ms(start_s)
    steps_ms = []
    for _ in range(min(NEW_TOKENS, session.context // 4)):
        start_s = time.perf_counter()
        token = sample(session.feed([token]), greedy, rng)
        steps_ms.append(since_ms(start_s))
    return prefill_ms, first_ms, steps_ms


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
