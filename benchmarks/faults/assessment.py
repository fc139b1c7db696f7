"""One case of the zoo: what the battery says of it, what it costs, and what simpler habits say."""

import time
import warnings
from collections.abc import Callable
from fnmatch import fnmatchcase
from statistics import median
from typing import Any

import torch

from faults.architectures import ARCHITECTURES
from faults.baselines import Band, curve_inspection, nonzero_check
from faults.fault import Fault
from faults.zoo import FAULTS, HEALTHY
from mothertongue_arbiter import Certificate, Verdict, audit

FAULT_OF = {fault.name: fault for fault in FAULTS}
GRADIENT_CHECKS = ("gradient presence", "gradient values", "dead elements", "own precision")


def cases() -> list[str]:
    """Return the names of all faults, all healthy runs and all architectures."""
    return [*FAULT_OF, *HEALTHY, *ARCHITECTURES]


def maker(name: str) -> Callable[[], Any]:
    return FAULT_OF[name].make if name in FAULT_OF else HEALTHY.get(name) or ARCHITECTURES[name]


def assess(case: tuple[str, Band | None]) -> dict[str, Any]:
    """Return the row of one case, given the losses of healthy seeds if it is a fault."""
    name, band = case
    torch.set_num_threads(1)  # the tensors are tiny
    warnings.simplefilter("ignore")  # of third parties, about what a fault does on purpose
    fault, make = FAULT_OF.get(name), maker(name)
    begin = time.process_time()
    certificate = audit(make())
    seconds = time.process_time() - begin  # of the CPU: the machine may be busy
    step_seconds = seconds_of_a_step(make())
    row: dict[str, Any] = {
        "failed": [check.name for check in certificate.checks if check.verdict == Verdict.FAIL],
        "inconclusive": [c.name for c in certificate.checks if c.verdict == Verdict.INCONCLUSIVE],
        "seconds": round(seconds, 2),
        "steps": round(seconds / step_seconds) if step_seconds else None,
        "nonzero_alarm": nonzero_check(make()),
    }
    if fault and band:
        row |= {"family": fault.family, "source": fault.source, "curve": curve_inspection(make(), band)}
        if fault.where:
            row["named"], row["localised"] = localisation(fault, certificate)
    return row


def without_an_answer(name: str, reason: str) -> dict[str, Any]:
    """Return the row of a case whose audit itself crashed or hung: found by nobody, and said."""
    row = {"failed": [], "inconclusive": [f"the audit: {reason}"], "nonzero_alarm": False}
    row |= {"seconds": None, "steps": None}
    if name in FAULT_OF:
        fault = FAULT_OF[name]
        row |= {"family": fault.family, "source": fault.source, "curve": "unknown"}
        if fault.where:
            row |= {"named": "", "localised": False}
    return row


def localisation(fault: Fault, certificate: Certificate) -> tuple[str, bool]:
    """Return what the certificate names first about gradients, and whether the fault is there."""
    for check in certificate.checks:
        if check.name in GRADIENT_CHECKS and check.verdict == Verdict.FAIL and check.findings:
            named = check.findings[0].subject
            return named, any(fnmatchcase(named, pattern) for pattern in fault.where)
    return "", False


def seconds_of_a_step(run: Any) -> float | None:
    """Return the median CPU time of a training step; None for a run that has none, or cannot take it."""
    if getattr(run, "train_step", None) is None:
        return None
    seconds = []
    try:
        for step in range(5):
            begin = time.process_time()
            run.train_step(step)
            seconds.append(time.process_time() - begin)
    except Exception:  # the fault stops the training
        return None
    return median(seconds[1:])
