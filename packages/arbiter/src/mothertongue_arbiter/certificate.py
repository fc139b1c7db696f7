"""The certificate: what was checked, what was found, and what was not checked."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

# A certificate says how good its own battery is. tests/arbiter counts these faults again.
MUTATION_SCORE = (
    "tests/arbiter: {caught} of {faults} injected faults caught, {alarms} of {healthy} healthy runs alarmed; "
    "faults and checks have the same authors, so this is a mutation score and no field detection rate"
)


class Verdict(StrEnum):
    """The answer of a check, and of the whole certificate."""

    PASS = "PASS"
    FAIL = "FAIL"
    INCONCLUSIVE = "INCONCLUSIVE"


class TensorVerdict(StrEnum):
    """The answer about the gradient of one tensor."""

    OK = "OK"
    SEVERED = "SEVERED"  # no gradient, and yet the loss depends on it
    WRONG = "WRONG"  # a gradient that is not the derivative of the loss
    NONFINITE = "NONFINITE"
    DEAD_HERE = "DEAD-HERE"  # no gradient, and the loss does not depend on it at this point
    DEAD_AFTER_K = "DEAD-AFTER-k"  # still so after k steps, and not declared
    PARTLY_DEAD = "PARTLY-DEAD"  # some of its elements are severed
    DECLARED = "DECLARED"
    INCONCLUSIVE = "INCONCLUSIVE"


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing found about one tensor, module, token or row."""

    subject: str
    verdict: str
    detail: str = ""


@dataclass(frozen=True, kw_only=True)
class Check:
    """What one check found. `evidence` is one line; `cause` is the likely one, of a check that failed."""

    name: str
    verdict: Verdict
    evidence: str
    cause: str = ""
    seconds: float = 0.0
    findings: tuple[Finding, ...] = ()


@dataclass(frozen=True, kw_only=True)
class NotRun:
    """A check that could not be run, and what it would need."""

    name: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class Certificate:
    """Every check that was run and every one that was not, about one step of one training run."""

    step: int
    checks: tuple[Check, ...]
    not_run: tuple[NotRun, ...]
    shapes: Mapping[str, tuple[int, ...]]
    dtypes: Mapping[str, str]
    seconds: float
    seeds: Mapping[str, int] = field(default_factory=dict)
    device: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)
    commit: str | None = None  # of the audited program's working folder
    notes: tuple[str, ...] = ()  # what the run says of itself

    @property
    def verdict(self) -> Verdict:
        """FAIL if any check fails; INCONCLUSIVE if any is, or if there is none; else PASS."""
        verdicts = {check.verdict for check in self.checks}
        if Verdict.FAIL in verdicts:
            return Verdict.FAIL
        return Verdict.PASS if verdicts == {Verdict.PASS} else Verdict.INCONCLUSIVE

    def as_dict(self) -> dict[str, Any]:
        """Return the certificate as plain JSON values, the verdict first."""
        return {"verdict": self.verdict, **asdict(self), "mutation_score": mutation_score()}

    def write(self, path: Path) -> None:
        """Write the certificate as JSON to `path`, which never holds half of one."""
        path.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps(self.as_dict(), ensure_ascii=False, indent=2) + "\n"
        descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with open(descriptor, "w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            Path(temporary).chmod(0o644)
            os.replace(temporary, path)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise


SCORE = {"faults": 37, "caught": 37, "healthy": 18, "alarms": 0}


def mutation_score() -> str:
    """Return the sentence by which a certificate states the quality of the battery that issued it."""
    return MUTATION_SCORE.format(**SCORE)
