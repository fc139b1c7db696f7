"""The numbers in which weights, their masters and the moments of the optimizer are kept."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from mothertongue_arbiter.certificate import Check, Finding, Verdict
from mothertongue_arbiter.judgement import named
from mothertongue_arbiter.run import matches
from mothertongue_arbiter.torch.optimizer.steps import Steps
from mothertongue_arbiter.torch.run.subject import Subject, Unavailable
from mothertongue_arbiter.update_history import LOW_PRECISION

NAME = "dtypes"
# v * beta2 rounds back to v for every bfloat16 number from about here, so that v can only grow (measured for
# all of them at 0.999).
RATCHET_BETA = 0.99
RATCHET = "a second moment in low precision can only grow: beta2 * v rounds back to v; keep it in float32"
COUNTER = "a step counter in low precision stops counting; keep it in float32"


def kept_dtypes(subject: Subject, steps: Steps) -> Check:
    """Weights have their declared dtypes, masters exist, and moments can follow the gradients."""
    wrong = _wrong_weights(subject)
    wrong |= dict(_without_master(subject, steps))
    looked_at = [_state(steps, name) for name in steps.watch.held]
    moments = {name: problem for name, problem in _moments(subject, steps) if name not in wrong}
    asked = subject.declared.dtypes or (
        subject.declared.optimizer and subject.declared.optimizer.master_dtype
    )
    if not asked and not any(looked_at):
        raise Unavailable("no dtype is declared, and the optimizer shows no state")
    bad = wrong | moments
    evidence = f"{len(steps.watch.held)} tensors and their moments"
    if bad:
        evidence = named([f"{name}: {problem}" for name, problem in bad.items()])
    causes = list(dict.fromkeys(cause for name in moments for cause in _causes(moments[name])))
    return Check(
        name=NAME,
        verdict=Verdict.FAIL if bad else Verdict.PASS,
        evidence=evidence,
        cause="; ".join(causes)
        or ("a cast of the whole model, or an optimizer made before it" if bad else ""),
        findings=tuple(Finding(subject=name, verdict="FAIL", detail=bad[name]) for name in bad),
    )


def _causes(problem: str) -> Iterator[str]:
    yield COUNTER if "counter" in problem else RATCHET


def _wrong_weights(subject: Subject) -> dict[str, str]:
    """Return the parameters that have not the dtype of the first declared pattern that names them."""
    found = {}
    for name, parameter in subject.run.model.named_parameters():
        own = _named_dtype(parameter)
        wanted = next(
            (dtype for pattern, dtype in subject.declared.dtypes.items() if matches(name, (pattern,))), own
        )
        if own != wanted.removeprefix("torch."):
            found[name] = f"{own}, declared {wanted}"
    return found


def _without_master(subject: Subject, steps: Steps) -> Iterator[tuple[str, str]]:
    """Yield the low-precision weights that the optimizer updates themselves, where masters are declared."""
    optimizer = subject.declared.optimizer
    if optimizer is None or optimizer.master_dtype is None:
        return
    wanted = optimizer.master_dtype.removeprefix("torch.")
    for name, parameter in subject.run.model.named_parameters():
        if _named_dtype(parameter) == wanted or subject.declared.is_frozen(name):
            continue
        master = steps.watch.masters.get(name)
        if master is not None and _named_dtype(master) != wanted:
            yield name, f"its master is {_named_dtype(master)}, declared {wanted}"
        state = _state(steps, name)
        held = any(_is_master(one, parameter, wanted) for one in state.values())
        if master is None and state and not held:
            yield name, f"the optimizer has no {wanted} copy of it and updates {_named_dtype(parameter)}"


def _is_master(value: Any, weight: Tensor, wanted: str) -> bool:
    if not isinstance(value, Tensor) or _named_dtype(value) != wanted or value.shape != weight.shape:
        return False
    return torch.equal(value.to(weight), weight.detach())


def _moments(subject: Subject, steps: Steps) -> Iterator[tuple[str, str]]:
    for name in steps.watch.held:
        state = _state(steps, name)
        second, counter = state.get("exp_avg_sq"), state.get("step")
        if _is_coarse(second) and _beta2(subject, steps, name) >= RATCHET_BETA:
            yield name, f"second moment in {_named_dtype(second)}"
        elif _is_coarse(counter):
            yield name, f"step counter in {_named_dtype(counter)}"


def _state(steps: Steps, name: str) -> Mapping[str, Any]:
    """Return what an optimizer remembers of `name` now; empty where it shows nothing."""
    return steps.watch.state_of(name) or {}


def _beta2(subject: Subject, steps: Steps, name: str) -> float:
    """Return the second beta, of the optimizer or as declared; 1 where nobody says."""
    for record in steps.records:
        for call in record.calls:
            if name in call and "betas" in call[name].numbers:
                return float(call[name].numbers["betas"][1])
    optimizer = subject.declared.optimizer
    groups = optimizer.groups if optimizer is not None else ()
    return next((group.betas[1] for group in groups if matches(name, group.parameters)), 1.0)


def _is_coarse(value: Any) -> bool:
    is_float = isinstance(value, Tensor) and value.is_floating_point()
    return is_float and torch.finfo(value.dtype).eps >= LOW_PRECISION


def _named_dtype(tensor: Any) -> str:
    return str(tensor.dtype).removeprefix("torch.")
