"""The certificate: what was checked, what was found, and what was not checked."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from enum import StrEnum
from importlib.resources import files
from pathlib import Path
from typing import Any, Self

from mothertongue_arbiter.errors import ArbiterError
from mothertongue_arbiter.writing import write_together

# A certificate says how good its own battery is. The benchmark of the faults writes the figures.
MUTATION_SCORE = (
    "{caught} of {faults} injected faults caught, {alarms} of {healthy} healthy runs alarmed (battery "
    "{battery}); faults and checks have the same authors, so this says little of faults in the field"
)
SCORE_FILE = "mutation_score.json"


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
    module: str = ""  # that contains the fault, as far as it can be told
    seconds: float = 0.0
    findings: tuple[Finding, ...] = ()


@dataclass(frozen=True, kw_only=True)
class NotRun:
    """A check that could not be run, and what it would need."""

    name: str
    reason: str
    seconds: float = 0.0  # spent on finding that out


@dataclass(frozen=True, kw_only=True)
class Certificate:
    """Every check that was run and every one that was not, about one step of one training run."""

    step: int
    checks: tuple[Check, ...]
    not_run: tuple[NotRun, ...]
    shapes: Mapping[str, tuple[int, ...]]
    dtypes: Mapping[str, str]
    seconds: float
    float64_seconds: float = 0.0  # of these, for what was computed in float64
    step_seconds: float | None = None  # of one training step of this run; None where none was timed
    seeds: Mapping[str, int] = field(default_factory=dict)
    device: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)
    commit: str | None = None  # of the audited program's working folder
    dirty: bool | None = None  # whether that folder had changes that are in no commit
    scope: Mapping[str, str] = field(default_factory=dict)  # what it depends on, each with its sha256
    notes: tuple[str, ...] = ()  # what the run says of itself

    @property
    def verdict(self) -> Verdict:
        """FAIL if any check fails; INCONCLUSIVE if any is, or if there is none; else PASS."""
        verdicts = {check.verdict for check in self.checks}
        if Verdict.FAIL in verdicts:
            return Verdict.FAIL
        return Verdict.PASS if verdicts == {Verdict.PASS} else Verdict.INCONCLUSIVE

    @property
    def training_steps(self) -> float | None:
        """What was asked beside float64, in training steps of the same run; None where none was timed."""
        return None if not self.step_seconds else (self.seconds - self.float64_seconds) / self.step_seconds

    @property
    def scope_sha256(self) -> str:
        """The hash of everything that this certificate depends on."""
        return hashlib.sha256(json.dumps(dict(self.scope), sort_keys=True).encode()).hexdigest()

    def staleness(self, now: Mapping[str, str]) -> tuple[str, ...]:
        """Return what has changed since, given the scope of the same run `now`; nothing while it is valid."""
        if not self.scope:
            return ("it does not say what it depends on",)
        names = sorted(self.scope.keys() | now.keys())
        return tuple(name for name in names if self.scope.get(name) != now.get(name))

    def as_dict(self) -> dict[str, Any]:
        """Return the certificate as plain JSON values, the verdict first."""
        stated = {"verdict": self.verdict, **asdict(self), "mutation_score": mutation_score()}
        steps = self.training_steps
        cost = {"training_steps": None if steps is None else round(steps, 1)}
        return {**stated, **cost, "scope_sha256": self.scope_sha256}

    def write(self, path: Path) -> None:
        """Write the certificate as JSON to `path` and as a page of text beside it, or neither of them."""
        from mothertongue_arbiter.view import text_page  # the view knows the certificate, not the reverse

        text = json.dumps(self.as_dict(), ensure_ascii=False, indent=2) + "\n"
        write_together({path.with_suffix(".txt"): text_page(self), path: text})

    @classmethod
    def read(cls, path: Path) -> Self:
        """Return the certificate in `path`.

        Raises:
            ArbiterError: there is none, or it is none of this version.
        """
        try:
            stated = json.loads(path.read_text(encoding="utf-8"))
            return cls(
                **_known(cls, stated)
                | {
                    "checks": tuple(_check(one) for one in stated["checks"]),
                    "not_run": tuple(NotRun(**_known(NotRun, one)) for one in stated["not_run"]),
                    "shapes": {name: tuple(shape) for name, shape in stated["shapes"].items()},
                    "notes": tuple(stated.get("notes", ())),
                }
            )
        except OSError as error:
            raise ArbiterError(f"{path}: {error.strerror}; a certificate.json expected") from None
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ArbiterError(f"{path}: no certificate of this version ({error})") from None


def _check(stated: dict[str, Any]) -> Check:
    findings = tuple(Finding(**_known(Finding, one)) for one in stated.get("findings", []))
    return Check(**_known(Check, stated) | {"verdict": Verdict(stated["verdict"]), "findings": findings})


def _known(kind: Any, stated: dict[str, Any]) -> dict[str, Any]:
    """Return what is `stated` of the fields of `kind`; a later version may state more."""
    return {one.name: stated[one.name] for one in fields(kind) if one.name in stated}


def mutation_score() -> str:
    """Return the sentence by which a certificate states the quality of the battery that issued it."""
    stated = files("mothertongue_arbiter").joinpath(SCORE_FILE).read_text(encoding="utf-8")
    return MUTATION_SCORE.format(**json.loads(stated))
