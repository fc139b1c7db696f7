"""Stages of a run: each runs again only when its inputs changed, and an interrupted one continues.

A stage's fingerprint covers its settings, the code that decides its result, the files it reads and the
fingerprint of the stage before it. `stages.json` notes it when the stage starts and confirms it when it ends,
so the next start can tell a finished stage from an interrupted one, and that from one of another recipe.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

State = Literal["fresh", "interrupted", "stale"]


@dataclass(frozen=True, kw_only=True)
class Stage:
    """One step from text to bundle."""

    name: str
    does: str  # one line for the reader
    settings: Any  # JSON values that decide the result
    code: tuple[Path, ...]  # source files that decide the result, compared by content
    files: tuple[Path, ...] = ()  # text from outside the run folder, compared by size and time of change
    output: Path  # exists when the stage is done
    keep: bool = False  # an outdated output cost hours: set it aside instead of overwriting it
    run: Callable[[], None]


@dataclass(frozen=True, kw_only=True)
class StageRecord:
    """What `stages.json` knows of a stage."""

    fingerprint: str
    finished: bool
    seconds: float  # spent so far, interruptions included


class StageLog:
    """The file `stages.json` of a run folder: stage name -> record, rewritten atomically."""

    def __init__(self, run_folder: Path) -> None:
        self._path = run_folder / "stages.json"
        try:
            stored = json.loads(self._path.read_text(encoding="utf-8"))
            self.records = {name: StageRecord(**record) for name, record in stored.items()}
        except (FileNotFoundError, ValueError, TypeError, AttributeError):
            self.records = {}  # no log, or not ours: every stage is stale, nothing is lost

    def write(self, name: str, record: StageRecord) -> None:
        self.records[name] = record
        self._path.parent.mkdir(parents=True, exist_ok=True)
        temporary = self._path.with_suffix(".tmp")
        text = json.dumps({name: asdict(record) for name, record in self.records.items()}, indent=2)
        temporary.write_text(text + "\n", encoding="utf-8")
        os.replace(temporary, self._path)

    def state(self, stage: Stage, fingerprint: str) -> State:
        """Return whether `stage`, which would now have `fingerprint`, has to run."""
        record = self.records.get(stage.name)
        if record is None or record.fingerprint != fingerprint:
            return "stale"
        return "fresh" if record.finished and stage.output.exists() else "interrupted"


def fingerprints(stages: Sequence[Stage]) -> Iterator[tuple[Stage, str]]:
    """Yield each stage with its fingerprint; every stage depends on the one before it."""
    before = ""
    for stage in stages:
        code = [hashlib.sha256(path.read_bytes()).hexdigest() for path in stage.code]
        seen = [(str(path), path.stat().st_size, path.stat().st_mtime_ns) for path in stage.files]
        text = json.dumps([before, stage.name, stage.settings, code, seen], ensure_ascii=False)
        before = hashlib.sha256(text.encode()).hexdigest()
        yield stage, before


def run_stages(stages: Sequence[Stage], log: StageLog, *, announce: Callable[[Stage, State], None]) -> None:
    """Run every stage that is not fresh, in order; `announce` is told of each before it starts."""
    for stage, fingerprint in fingerprints(stages):
        state = log.state(stage, fingerprint)
        announce(stage, state)
        if state != "fresh":
            _run_stage(stage, log, state=state, fingerprint=fingerprint)


def _run_stage(stage: Stage, log: StageLog, *, state: State, fingerprint: str) -> None:
    earlier = log.records.get(stage.name)
    if state == "stale" and earlier and stage.keep:
        _exchange(stage.output, earlier.fingerprint, fingerprint)
    spent = earlier.seconds if earlier and state == "interrupted" else 0.0
    start_s = time.monotonic()

    def note(*, finished: bool) -> None:
        seconds = spent + time.monotonic() - start_s
        log.write(stage.name, StageRecord(fingerprint=fingerprint, finished=finished, seconds=seconds))

    note(finished=False)
    try:
        stage.run()
    except BaseException:  # Ctrl-C as well: the time spent counts, the stage stays unfinished
        note(finished=False)
        raise
    note(finished=True)


def _exchange(output: Path, old: str, new: str) -> None:
    """Set `output` aside under its `old` fingerprint; take back what was set aside under the `new` one."""
    aside = {fingerprint: output.with_name(f"{output.name}-{fingerprint[:8]}") for fingerprint in (old, new)}
    if output.exists():
        os.replace(output, aside[old])
    if aside[new].exists():
        os.replace(aside[new], output)
