"""What a run tells while it trains: values for whoever draws or records them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from mothertongue_trainer.metrics import StepMetrics
from mothertongue_trainer.optimizer import ParameterRow


@dataclass(frozen=True, kw_only=True)
class RunOpened:
    """Everything is loaded; the audit comes next, unless the run continues."""

    parameters: tuple[ParameterRow, ...]
    parameter_count: int
    device: str
    compute_dtype: str
    wanted_dtype: str
    resumed_step: int  # 0: from the start
    steps: int
    tokens: int


@dataclass(frozen=True, kw_only=True)
class AuditCheckBegins:
    """The audit asks its next question."""

    name: str


@dataclass(frozen=True, kw_only=True)
class CertificateStale:
    """The run continues with a certificate that no longer holds; an audit comes first."""

    changed: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Audited:
    """The arbiter has answered."""

    step: int
    verdict: str
    checks: int
    not_run: int
    certificate: Path


@dataclass(frozen=True, kw_only=True)
class RateMeasured:
    """The first steps were timed: how long the rest will take."""

    tokens_per_second: float
    minutes_left: float
    flops_utilisation: float | None


@dataclass(frozen=True, kw_only=True)
class StepDone:
    """A step is done."""

    step: int
    loss: float


@dataclass(frozen=True, kw_only=True)
class MonitorWarned:
    """The monitor found something; the run goes on."""

    step: int
    lines: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class CheckpointSaved:
    """A checkpoint is on the disk."""

    folder: Path


Event: TypeAlias = (
    RunOpened
    | AuditCheckBegins
    | CertificateStale
    | Audited
    | RateMeasured
    | StepDone
    | StepMetrics
    | MonitorWarned
    | CheckpointSaved
)
Listener: TypeAlias = Callable[[Event], None]
