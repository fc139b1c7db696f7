"""What the rounds say together: medians, ratios, and the table of what was asked. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

OURS, LLAMA, GENAI = "mothertongue", "llamacpp_q8_0", "genai_int8"
FIGURES = (
    "decode_tokens_per_s",
    "prefill_256_tokens_per_s",
    "prefill_1024_tokens_per_s",
    "ttft_ms",
    "peak_mb",
    "load_s",
    "decode_busy_tokens_per_s",
    "idle_cpu_s",
)
SPEEDS = {
    "decode": "decode_tokens_per_s",
    "prefill_256": "prefill_256_tokens_per_s",
    "prefill_1024": "prefill_1024_tokens_per_s",
}


def engine_summary(rounds: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the median of each figure over the rounds that measured it, and its least and greatest."""
    columns = {name: [row[name] for row in rounds if name in row] for name in FIGURES}
    columns = {name: values for name, values in columns.items() if values}
    return {name: median(values) for name, values in columns.items()} | {
        "spread": {name: [min(values), max(values)] for name, values in columns.items()},
        "settings": [row["settings"] for row in rounds][-1],
        "settings_busy": [row["settings_busy"] for row in rounds][-1],
    }


def ratios(engines: Mapping[str, Mapping[str, Any]], *, bound_tokens_per_s: float) -> dict[str, float]:
    """Return ours over theirs; an engine that was not measured has no ratio."""
    ours = engines[OURS]
    found = {}
    for name in (LLAMA, GENAI):
        if name not in engines:
            continue
        for label, figure in SPEEDS.items():
            found[f"{label}_vs_{name}"] = ours[figure] / engines[name][figure]
    busy = "decode_busy_tokens_per_s"
    if LLAMA in engines:
        found[f"decode_busy_vs_{LLAMA}"] = ours[busy] / engines[LLAMA][busy]
    found["decode_busy_vs_idle"] = ours[busy] / ours["decode_tokens_per_s"]
    found["decode_of_bandwidth_bound"] = ours["decode_tokens_per_s"] / bound_tokens_per_s
    return found


@dataclass(frozen=True, kw_only=True)
class Demand:
    """One figure that was asked for."""

    figure: str
    words: str
    measured: float | None  # None: not measured in this run
    limit: float
    at_least: bool  # or at most

    @property
    def met(self) -> bool | None:
        if self.measured is None:
            return None
        return self.measured >= self.limit if self.at_least else self.measured <= self.limit

    def as_dict(self) -> dict[str, Any]:
        return asdict(self) | {"met": self.met}


# What is asked for, with the words for it.
AT_LEAST = {
    "decode_vs_llamacpp_q8_0": (1.3, "decode over llama.cpp Q8_0"),
    "decode_vs_genai_int8": (1.1, "decode over onnxruntime-genai int8"),
    "decode_of_bandwidth_bound": (0.88, "decode over the bandwidth bound"),
    "prefill_256_vs_llamacpp_q8_0": (1.8, "prefill 256 over llama.cpp Q8_0"),
    "prefill_1024_vs_llamacpp_q8_0": (1.8, "prefill 1,024 over llama.cpp Q8_0"),
    "prefill_256_vs_genai_int8": (1.35, "prefill 256 over onnxruntime-genai int8"),
    "prefill_1024_vs_genai_int8": (1.35, "prefill 1,024 over onnxruntime-genai int8"),
    "decode_busy_vs_llamacpp_q8_0": (3.0, "decode beside one busy process, over llama.cpp Q8_0"),
    "decode_busy_vs_idle": (0.7, "decode beside one busy process, over decode alone"),
}
AT_MOST = {
    "load_s": (0.7, "time to load, s"),
    "cold_command_s": (1.0, "nano: from the command to its first letter, s"),
    "peak_of_bundle_and_cache": (1.25, "peak memory over bundle and cache"),
    "python_overhead_ms": (0.3, "Python's part of a token, ms"),
    "anonymous_growth_percent": (2.0, "growth of anonymous memory after 50 requests, %"),
    "idle_cpu_s": (0.1, "CPU time in 5 idle seconds, s"),
    "bundle_bytes_per_parameter": (1.06, "bytes of the bundle for each parameter"),
    "export_minutes": (6.0, "export with proof, minutes"),
    "export_gb": (6.0, "export with proof, peak GB"),
    "bits_per_byte_increase_percent": (0.5, "nano: bits per byte over PyTorch, worst language, %"),
}


def demands(measured: Mapping[str, float]) -> list[Demand]:
    """Return every figure that the project asks for beside what was measured."""
    return [
        Demand(figure=name, words=words, measured=measured.get(name), limit=limit, at_least=asked is AT_LEAST)
        for asked in (AT_LEAST, AT_MOST)
        for name, (limit, words) in asked.items()
    ]


NAMES = {
    OURS: "Mothertongue int8",
    "mothertongue_default": "Mothertongue int8, nothing set",
    LLAMA: "llama.cpp Q8_0",
    GENAI: "onnxruntime-genai int8",
    "genai_our_bundle": "onnxruntime-genai, our bundle",
    "ctranslate2_int8": "CTranslate2 int8",
}
DEMANDS_HEADER = ("figure", "measured", "asked", "met")
ENGINES_HEADER = (
    "engine",
    "prefill 256",
    "prefill 1,024",
    "decode",
    "decode beside one busy process",
    "first token",
    "peak memory",
    "load",
    "idle for 5 s",
)


def engine_rows(result: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """Return a line of the table for each engine, as in ENGINES_HEADER; speeds in tokens/s."""
    rows: list[tuple[str, ...]] = []
    for name, found in result["engines"].items():
        rows.append(
            (
                NAMES[name] + ("" if found["agreement"]["same_model"] else " (other tokens!)"),
                f"{found['prefill_256_tokens_per_s']:,.0f}",
                f"{found['prefill_1024_tokens_per_s']:,.0f}",
                f"{found['decode_tokens_per_s']:,.1f}",
                f"{found['decode_busy_tokens_per_s']:,.1f}",
                f"{found['ttft_ms']:,.0f} ms",
                f"{found['peak_mb']:,.0f} MB",
                f"{found['load_s']:.2f} s",
                f"{found['idle_cpu_s']:.2f} s of CPU",
            )
        )
    return rows


def demand_rows(result: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """Return a line for each figure that was asked for."""
    rows: list[tuple[str, ...]] = []
    for demand in result["figures"]:
        measured = "not measured" if demand["measured"] is None else f"{demand['measured']:.3g}"
        bound = f"{'at least' if demand['at_least'] else 'at most'} {demand['limit']:g}"
        met = {True: "yes", False: "no", None: ""}[demand["met"]]
        rows.append((demand["words"], measured, bound, met))
    return rows
