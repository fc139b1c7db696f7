"""Measure every engine in turn, round after round (A B C A B C ...), each time in a fresh process."""

import dataclasses
import json
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mothertongue.bench import busy_processes
from mothertongue.device import read_bandwidth
from peers.conversion import child_environment
from peers.speed import Task

IDLE_S = 5.0
LIMIT_S = 900  # for one process; a base-size one takes half a minute


class MeasurementFailed(Exception):
    """A measuring process ended with an error; the message has its last line."""


@dataclass(frozen=True, kw_only=True)
class Contestant:
    """One row of the table: an engine, its files, the interpreter that has it, and its threads."""

    name: str
    engine: str
    path: str
    python: Path
    threads: int | None  # None: the engine's own choice

    def task(self, vocabulary: int, **how: Any) -> Task:
        return Task(engine=self.engine, path=self.path, threads=self.threads, vocabulary=vocabulary, **how)


def run_rounds(
    contestants: Sequence[Contestant],
    *,
    vocabulary: int,
    rounds: int,
    threads: int,
    say: Callable[[str], None],
) -> tuple[dict[str, list[dict[str, Any]]], list[float]]:
    """Return what was measured of each engine, a dict a round, and the read bandwidth of each round.

    An engine that fails once is dropped and said so; ours raises.
    """
    measured: dict[str, list[dict[str, Any]]] = {contestant.name: [] for contestant in contestants}
    dropped: set[str] = set()
    bandwidths = []
    for number in range(rounds):
        bandwidths.append(read_bandwidth(threads))
        for contestant in contestants:
            if contestant.name in dropped:
                continue
            say(f"round {number + 1} of {rounds}: {contestant.name}")
            try:
                measured[contestant.name].append(one_round(contestant, vocabulary, first=number == 0))
            except MeasurementFailed as error:
                if contestant.engine == "mothertongue":
                    raise
                say(f"{contestant.name} is left out: {error}")
                dropped.add(contestant.name)
    return {name: rows for name, rows in measured.items() if name not in dropped}, bandwidths


def one_round(contestant: Contestant, vocabulary: int, *, first: bool) -> dict[str, Any]:
    """Measure one engine alone, then its decoding beside one busy process; idle only the first time."""
    alone = contestant.task(vocabulary, idle_s=IDLE_S if first else 0.0)
    row = run_child(contestant.python, "speed", dataclasses.asdict(alone))
    with busy_processes(1):
        busy = contestant.task(vocabulary, decode_only=True)
        beside = run_child(contestant.python, "speed", dataclasses.asdict(busy))
    return row | {
        "decode_busy_tokens_per_s": beside["decode_tokens_per_s"],
        "settings_busy": beside["settings"],
    }


def run_child(python: Path, module: str, task: Mapping[str, Any]) -> dict[str, Any]:
    """Return the JSON object that `python -m peers.MODULE TASK` prints last; raise MeasurementFailed."""
    command = [python, "-m", f"peers.{module}", json.dumps(task)]
    try:
        process = subprocess.run(
            command,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            timeout=LIMIT_S,
            env=child_environment(),
        )
    except subprocess.TimeoutExpired:
        raise MeasurementFailed(f"{module}: no result after {LIMIT_S} s") from None
    if process.returncode != 0:
        raise MeasurementFailed(f"{module} ended with {process.returncode}: {last_line(process.stderr)}")
    return read_report(process.stdout)


def read_report(output: str) -> dict[str, Any]:
    """Return the JSON object on the last line of `output`, where libraries may have printed before."""
    try:
        report = json.loads(last_line(output))
    except ValueError:
        raise MeasurementFailed(f"no report, but: {last_line(output)}") from None
    if not isinstance(report, dict):
        raise MeasurementFailed(f"no report, but: {last_line(output)}")
    return report


def last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1] if lines else "no message"
