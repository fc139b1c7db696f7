"""How a training looks in a terminal: a few lines, then a bar."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from mothertongue_arbiter.certificate import Verdict
from mothertongue_trainer.events import (
    AuditCheckBegins,
    Audited,
    CertificateStale,
    CheckpointSaved,
    Event,
    MonitorWarned,
    RateMeasured,
    RunOpened,
    StepDone,
)
from mothertongue_trainer.metrics import StepMetrics
from mothertongue_trainer.optimizer import ParameterRow

SHOWN = 3  # changes that the line about a stale certificate names


class TrainingDisplay:
    """Draws the events of a run on standard error; the bar only in a terminal, nothing when `quiet`."""

    def __init__(self, *, quiet: bool = False) -> None:
        self._console = Console(stderr=True, quiet=quiet, highlight=False)
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TaskProgressColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[measured]}"),
            console=self._console,
            disable=quiet or not self._console.is_terminal,
            transient=True,
        )
        self._task = self._bar.add_task("Opening", total=None, measured="")

    def __enter__(self) -> TrainingDisplay:
        self._bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._bar.stop()

    def __call__(self, event: Event) -> None:
        match event:
            case RunOpened():
                self._open(event)
            case AuditCheckBegins(name=name):
                self._bar.update(self._task, description=f"Audit: {name}")
            case CertificateStale() | Audited():
                self._tell_audit(event)
            case RateMeasured():
                share = event.flops_utilisation
                utilisation = "n/a" if share is None else f"{share:.0%}"
                self._say(
                    f"About {event.minutes_left:.1f} minutes at {event.tokens_per_second:,.0f} tokens/s "
                    f"(share of the device's peak: {utilisation})"
                )
            case StepDone():
                self._bar.update(self._task, description="Training", completed=event.step, total=self._steps)
            case StepMetrics():
                self._bar.update(
                    self._task, measured=f"loss {event.loss:.3f}, {event.tokens_per_second:,.0f} tokens/s"
                )
            case MonitorWarned(step=step, lines=lines):
                for line in lines:
                    self._say(f"WARNING: step {step}: {line}")
            case CheckpointSaved(folder=folder):
                self._bar.update(self._task, description=f"Saved {folder.name}")

    def _tell_audit(self, event: CertificateStale | Audited) -> None:
        if isinstance(event, CertificateStale):
            count = len(event.changed)
            said = ", ".join(event.changed[:SHOWN]) + (f" and {count - SHOWN} more" if count > SHOWN else "")
            self._say(f"The certificate is stale ({said}): auditing again.")
            return
        after = f" after {event.step} steps" if event.step else ""
        self._say(
            f"Audit{after}: {event.verdict}, {event.checks} checks, {event.not_run} not run "
            f"({event.certificate})"
        )
        if event.verdict == Verdict.INCONCLUSIVE:
            self._say("WARNING: the audit could not answer everything; the run goes on uncertified.")

    def _open(self, event: RunOpened) -> None:
        self._steps = event.steps
        self._say(
            f"{event.parameter_count / 1e6:,.2f} M parameters, {event.tokens:,} tokens in {event.steps:,} "
            f"steps, {event.compute_dtype} on {event.device}"
        )
        if event.compute_dtype != event.wanted_dtype:
            self._say(
                f"This processor would only emulate {event.wanted_dtype}; {event.compute_dtype} is faster."
            )
        if event.resumed_step:
            self._say(f"Continuing after step {event.resumed_step:,}.")
        else:
            self._say("\n".join(table_lines(event.parameters)))

    def _say(self, text: str) -> None:
        self._console.print(text, markup=False, soft_wrap=True)


def table_lines(rows: Sequence[ParameterRow]) -> list[str]:
    """Return the parameter table as lines of text, the same matrix of all layers on one line."""
    alike: dict[str, list[ParameterRow]] = defaultdict(list)
    for row in rows:
        alike[re.sub(r"\.\d+\.", ".*.", row.name)].append(row)
    lines = [
        f"{'parameter':<46} {'number x shape':>16} {'count':>11}  {'group':<9} {'rule':<5} "
        f"{'rate':>6} {'decay':>5}"
    ]
    for name, members in alike.items():
        first = members[0]
        form = f"{len(members)} x {'x'.join(map(str, first.shape))}"
        count = sum(row.count for row in members)
        lines.append(
            f"{name:<46} {form:>16} {count:>11,}  {first.group:<9} {first.rule:<5} "
            f"{first.learning_rate:>6g} {first.weight_decay:>5g}"
        )
    return lines
