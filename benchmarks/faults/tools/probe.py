"""Runs in the environment of the tools: each of them, with its defaults, on one batch of each case.

python -m faults.tools.probe JOBS LIMIT_SECONDS CASE ...        one JSON object a line
"""

import contextlib
import io
import json
import sys
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from faults.processes import Failed, answered
from faults.zoo import FAULTS, HEALTHY

# Imported once, not once a case; what is not installed is passed over.
PRELOAD = ("faults.tools.probe", "guardtower", "torch_audit", "torchdiag", "torchtest2")
LEVELS = ("", "warning", "error")
MAKERS = {fault.name: fault.make for fault in FAULTS} | HEALTHY


class WithLoss(nn.Module):
    """The model as these tools like it: it takes the batch and returns its own loss."""

    def __init__(self, run: Any) -> None:
        super().__init__()
        self.inner, self.run = run.model, [run]

    def forward(self, **batch: Any) -> dict[str, Any]:
        return {"loss": self.run[0].loss(self.inner, batch)}


def optimizer_of(run: Any) -> Any:
    optimizer = getattr(run, "optimizer", None)
    optimizer = optimizer[0] if isinstance(optimizer, list) else optimizer
    return optimizer if isinstance(optimizer, torch.optim.Optimizer) else None


def guardtower(run: Any) -> int:
    import guardtower as tool

    report = tool.audit(run.model, lambda: run.loss(run.model, run.batch(0)), optimizer=optimizer_of(run))
    return 2 if report.errors else 1 if report.warnings else 0


def torch_audit(run: Any) -> int:
    import torch_audit as tool

    run.loss(run.model, run.batch(0)).backward()
    ranks = {"INFO": 0, "WARN": 1, "ERROR": 2, "FATAL": 2}
    found = [0]
    inputs = {"input_ids": run.batch(0)["input_ids"]}  # it takes the -100 of labels for an index
    for phase in tool.Phase:
        answer = tool.audit(run.model, phase=phase, batch=inputs, optimizer=optimizer_of(run))
        found += [ranks[finding.severity.value] for finding in answer.findings]
    return max(found)


def torchdiag(run: Any) -> int:
    import torchdiag as tool

    run.loss(run.model, run.batch(0)).backward()
    found = tool.check_gradients(run.model)
    return (
        2 if any(isinstance(one, dict) and one.get("status", "OK") != "OK" for one in found.values()) else 0
    )


def torchtest2(run: Any) -> int:
    import torchtest2 as tool

    optimizer = optimizer_of(run)
    report = tool.check_model(WithLoss(run), run.batch(0), optimizer=optimizer)
    statuses = {result.status.value for result in report.results}
    return 2 if "FAIL" in statuses else 1 if "WARN" in statuses else 0


TOOLS: dict[str, Callable[[Any], int]] = {
    "guardtower": guardtower,
    "torch-audit": torch_audit,
    "torchdiag": torchdiag,
    "torchtest2": torchtest2,
}


def ask(question: tuple[str, str]) -> str:
    """Return what one tool says of one case."""
    case, tool = question
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    make = MAKERS[case]
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            return LEVELS[TOOLS[tool](make())]
    except ModuleNotFoundError:
        return "not installed"
    except Exception as error:  # the tool, or the fault under it
        return f"crashed: {type(error).__name__}: {str(error)[:80]}"


def main() -> None:
    jobs, limit_seconds, *names = sys.argv[1:]
    questions = [(case, tool) for case in names for tool in TOOLS]
    answers: dict[str, dict[str, str]] = {case: {} for case in names}
    for (case, tool), answer in answered(
        ask, questions, jobs=int(jobs), limit_seconds=float(limit_seconds), preload=PRELOAD
    ):
        answers[case][tool] = f"crashed: {answer.reason}" if isinstance(answer, Failed) else answer
        if len(answers[case]) == len(TOOLS):
            print(json.dumps({"case": case} | answers[case], sort_keys=True), flush=True)


if __name__ == "__main__":
    from faults.tools import probe  # under this name its functions reach the processes

    probe.main()
