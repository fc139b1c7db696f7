"""A rebuilt run is the same program: equal weights, equal batches, and the same loss in another precision."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from mothertongue_arbiter.certificate import Check, Finding, Verdict
from mothertongue_arbiter.judgement import named
from mothertongue_arbiter.run import TrainingRun
from mothertongue_arbiter.torch.run.backward import fix_random_numbers, scalar
from mothertongue_arbiter.torch.run.batches import in_float64
from mothertongue_arbiter.torch.run.digest import digest, digests
from mothertongue_arbiter.torch.run.fresh import fresh_run, rebuilt
from mothertongue_arbiter.torch.run.subject import Subject, Unavailable

COMPARED_BATCHES = 3
LARGEST_DIFFERENCE = 0.02  # of the loss, relative: bfloat16 against float64 stays below 0.003


def rebuild(subject: Subject) -> Check:
    """Two rebuilt runs begin with equal weights and read equal batches; one in float64 has the same loss."""
    subject.need("rebuild")
    one, other = (fresh_run(subject.run, seed=subject.options.seed) for _ in range(2))
    evidence = "a bare module"
    if one is not None and other is not None:
        unlike = _unlike(one.model, other.model)
        if unlike and subject.declared.deterministic:
            return Check(
                name="rebuild",
                verdict=Verdict.FAIL,
                evidence=f"built twice, {len(unlike)} tensors differ: {named(unlike)}",
                cause="the initialisation draws numbers that are not seeded",
                findings=tuple(Finding(subject=name, verdict="DIFFERS") for name in unlike),
            )
        step = _unlike_batch(one, other)
        if step is not None and subject.declared.deterministic:
            evidence = f"built twice, batch({step}) is another one"
            return _failed(evidence, "the data order is not a function of the seed and the step")
        evidence = f"built twice, equal weights and {COMPARED_BATCHES} equal batches"
        if _unlike(one.model, subject.run.model):
            evidence += "; the weights of this run are others, as after steps or by another seed"
    apart = _apart_in_float64(subject)
    if apart is not None and apart > LARGEST_DIFFERENCE:
        return _failed(
            f"rebuilt in float64 with the same weights, the loss differs by {apart:.1%}",
            "`rebuild` builds another model or loss than the one that is trained",
        )
    evidence += "" if apart is None else f"; in float64 the same loss within {apart:.1e}"
    return Check(name="rebuild", verdict=Verdict.PASS, evidence=evidence)


def _failed(evidence: str, cause: str) -> Check:
    return Check(name="rebuild", verdict=Verdict.FAIL, evidence=evidence, cause=cause)


def _unlike(one: nn.Module, other: nn.Module) -> list[str]:
    theirs = dict(other.named_parameters())
    return [
        name
        for name, parameter in one.named_parameters()
        if name not in theirs or digest(parameter) != digest(theirs[name])
    ]


def _unlike_batch(one: TrainingRun, other: TrainingRun) -> int | None:
    for step in range(COMPARED_BATCHES):
        if digests(one.batch(step)) != digests(other.batch(step)):
            return step
    return None


def _apart_in_float64(subject: Subject) -> float | None:
    """Return how far off the loss of a rebuilt float64 model with these weights is; None if unknown."""
    if subject.is_random:
        return None
    made: Any = rebuilt(subject.run, torch.float64, seed=subject.options.seed)
    run, model = (subject.run, made) if isinstance(made, nn.Module) else (made, getattr(made, "model", None))
    if not isinstance(model, nn.Module) or model is subject.run.model:
        return None
    try:
        model.load_state_dict(subject.run.model.state_dict())
    except RuntimeError as error:
        first_line = (str(error).splitlines() or [""])[0]
        raise Unavailable(f"`rebuild(torch.float64)` has other tensors than the run: {first_line}") from None
    own = _loss(subject, subject.run, subject.run.model, subject.batch)
    try:
        wide = _loss(subject, run, model, in_float64(subject.batch))
    except Exception as error:  # as numbers of float64 in an operation that insists on float32
        first_line = (str(error).splitlines() or [""])[0]
        raise Unavailable(f"`rebuild(torch.float64)` makes a model that cannot run: {first_line}") from None
    return abs(own - wide) / max(abs(own), 1e-12)


def _loss(subject: Subject, run: Any, model: nn.Module, batch: Any) -> float:
    fix_random_numbers(subject.options.seed)
    with torch.no_grad():
        return float(scalar(run.loss(model, batch)))
