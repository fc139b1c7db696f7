"""What a run writes down while it trains, and what its arithmetic costs."""

from __future__ import annotations

import dataclasses
import json
import os
from dataclasses import dataclass
from pathlib import Path

from mothertongue_trainer.recipe import ModelConfig

# Peak of dense bfloat16 products, FLOP/s, from NVIDIA's data sheets; by a part of the device's name.
PEAK_FLOPS = {
    "H100 PCIe": 756e12,
    "H100": 989e12,
    "H200": 989e12,
    "A100": 312e12,
    "L40S": 362e12,
}


@dataclass(frozen=True, kw_only=True)
class StepMetrics:
    """One line of metrics.jsonl."""

    step: int  # steps done
    loss: float  # mean nats per learned token of this step
    lr: float  # of Muon
    tokens: int  # seen since the start of the run, padding included
    tokens_per_second: float  # since the last line
    grad_norm: float  # before clipping
    seconds: float  # trained since the start of the run, interruptions left out


class MetricsLog:
    """metrics.jsonl: one line for every few steps, on disk as soon as it is written."""

    def __init__(self, path: Path, *, resumed_step: int) -> None:
        """Open `path`, without the lines after `resumed_step`: those steps are about to be done again."""
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        kept = [line for line in lines if _step(line) <= resumed_step]
        temporary = path.with_name(path.name + ".partial")
        temporary.write_text("".join(f"{line}\n" for line in kept), encoding="utf-8")
        os.replace(temporary, path)
        self.seconds = float(json.loads(kept[-1])["seconds"]) if kept else 0.0
        self._file = path.open("a", encoding="utf-8")

    def write(self, metrics: StepMetrics) -> None:
        self._file.write(json.dumps(dataclasses.asdict(metrics)) + "\n")
        self._file.flush()

    def __enter__(self) -> MetricsLog:
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()


def _step(line: str) -> float:
    """Return the step of a line, or infinity for one that a crash cut short."""
    try:
        return int(json.loads(line)["step"])
    except ValueError:
        return float("inf")


def flops_per_token(config: ModelConfig, vocabulary: int, *, sequence_tokens: int) -> float:
    """Return the floating-point operations of one training token: 6 M + 12 L H d T.

    M are the weights that are multiplied (blocks and head; an embedding is only looked up): two operations
    each forward, four backward. The second term is attention, without what causality would save (PaLM,
    arXiv:2204.02311, appendix B).
    """
    attention = config.width * config.head_width * 2 * (config.heads + config.kv_heads)
    multiplied = config.layers * (attention + 3 * config.width * config.ffn_width) + vocabulary * config.width
    return 6 * multiplied + 12 * config.layers * config.heads * config.head_width * sequence_tokens


def flops_utilisation(flops_per_second: float, device_name: str) -> float | None:
    """Return the share of the device's bfloat16 peak that is used (MFU), None for an unknown device."""
    peaks = (peak for name, peak in PEAK_FLOPS.items() if name in device_name)
    peak = next(peaks, None)
    return None if peak is None else flops_per_second / peak
