"""Training and evaluation modes: dropout and batch norm act in training, and rest in evaluation."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from mothertongue_arbiter.certificate import Check, Finding, Verdict
from mothertongue_arbiter.judgement import named
from mothertongue_arbiter.torch.run.backward import same_start, scalar
from mothertongue_arbiter.torch.run.subject import Subject, Unavailable

ModuleCall = tuple[str, bool, bool]  # its name, whether it was in training mode, whether with gradients
DROPPING = ("drop", "stochastic_depth")  # parts of the names under which a module keeps a probability


@contextmanager
def evaluation(model: nn.Module) -> Iterator[None]:
    """Put the whole model into evaluation mode inside, and each module back into its own afterwards."""
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for module, training in modes.items():
            module.training = training


@contextmanager
def training(model: nn.Module) -> Iterator[None]:
    """Put the whole model into training mode inside, and each module back into its own afterwards."""
    modes = {module: module.training for module in model.modules()}
    model.train()
    try:
        yield
    finally:
        for module, mode in modes.items():
            module.training = mode


def evaluation_mode(subject: Subject) -> Check:
    """The run's own evaluation is one: dropout and batch norm rest, and training goes on as before."""
    evaluate = subject.need("evaluate")
    model = subject.run.model
    acting = acting_modules(model, subject)
    before = {name: module.training for name, module in model.named_modules()}
    weights = {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}
    with watched_modes(model) as calls, torch.enable_grad():
        evaluate()
        gradient_left_on = torch.is_grad_enabled()
    name = "evaluation mode"
    still_acting = in_mode(calls, acting, wanted=False)
    if still_acting:
        evidence = f"in training mode during `evaluate()`: {named(still_acting)}"
        return failed(name, evidence, "model.eval() is missing", still_acting)
    if not gradient_left_on:
        return failed(name, "gradients are off after `evaluate()`", "set_grad_enabled(False) left on")
    moved = [one for one, tensor in model.state_dict().items() if not torch.equal(tensor, weights[one])]
    if moved:
        return failed(name, f"`evaluate()` changes {named(moved)}", "a step or running statistics", moved)
    changed = [
        one for one, module in model.named_modules() if module.training != before[one] and one in acting
    ]
    if changed and hasattr(subject.run, "train_step"):  # many programs say train() at the start of a step
        with watched_modes(model) as calls:
            subject.run.train_step(subject.step + 1)
        changed = in_mode(calls, acting, wanted=True)
    if changed:
        evidence = f"not back in training mode after `evaluate()`: {named(changed)}"
        return failed(name, evidence, "model.train() is missing after the evaluation", changed)
    return passed(name, acting, "at rest during `evaluate()` and back afterwards")


def dropout(subject: Subject) -> Check:
    """What is random in training is random there, and not in evaluation."""
    if not subject.declared.deterministic:
        raise Unavailable("declared as not deterministic")
    model = subject.run.model
    with evaluation(model):
        in_evaluation = _is_random(subject)
    if in_evaluation:
        evidence = "in evaluation mode the loss depends on random numbers"
        return failed("dropout", evidence, "a dropout that does not ask whether the model is training")
    dropping = [name for name, what in acting_modules(model, subject).items() if "norm" not in what.lower()]
    modules = [
        name for name in dropping if isinstance(model.get_submodule(name), nn.modules.dropout._DropoutNd)
    ]
    if not dropping:
        return Check(
            name="dropout", verdict=Verdict.PASS, evidence="no dropout, and no random number in evaluation"
        )
    with training(model):
        if modules and not _is_random(subject):
            evidence = f"no random number in training mode, though there is dropout: {named(modules)}"
            return failed("dropout", evidence, "dropout that is never applied")
    return Check(
        name="dropout", verdict=Verdict.PASS, evidence=f"{len(dropping)} modules drop in training only"
    )


def acting_modules(model: nn.Module, subject: Subject) -> dict[str, str]:
    """Return the names of modules that act differently in training, and what each does.

    A part that is frozen as a whole may rest on purpose.
    """
    found = {}
    for name, module in model.named_modules():
        parameters = list(module.parameters())
        if parameters and not any(parameter.requires_grad for parameter in parameters):
            continue
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            found[name] = type(module).__name__
        elif isinstance(module, nn.modules.dropout._DropoutNd):
            if module.p > 0:
                found[name] = f"dropout {module.p:g}"
        else:
            kept = {
                key: value for key, value in vars(module).items() if any(d in key.lower() for d in DROPPING)
            }
            probabilities = [value for value in kept.values() if isinstance(value, float) and 0 < value < 1]
            if probabilities:
                found[name] = f"dropout {probabilities[0]:g}"
    return found


@contextmanager
def watched_modes(model: nn.Module) -> Iterator[list[ModuleCall]]:
    """Collect every call of a module of `model` inside."""
    names = {id(module): name for name, module in model.named_modules()}
    calls: list[ModuleCall] = []

    def note(module: nn.Module, args: Any) -> None:
        name = names.get(id(module))
        if name is not None:
            calls.append((name, module.training, torch.is_grad_enabled()))

    handle = nn.modules.module.register_module_forward_pre_hook(note)
    try:
        yield calls
    finally:
        handle.remove()


def in_mode(calls: list[ModuleCall], acting: dict[str, str], *, wanted: bool) -> list[str]:
    """Return the acting modules that were never called in the wanted mode, in order of their calls.

    A step may also evaluate something, as a teacher; a part that never trains is the fault.
    """
    right = {name for name, mode, _ in calls if mode is wanted}
    wrong = dict.fromkeys(name for name, mode, _ in calls if mode is not wanted and name in acting)
    return [name for name in wrong if not wanted or name not in right]


def _is_random(subject: Subject) -> bool:
    losses = set()
    for seed in (subject.options.seed, subject.options.seed + 1):
        with torch.no_grad(), same_start(subject.run.model, seed):
            losses.add(float(scalar(subject.run.loss(subject.run.model, subject.batch))))
    return len(losses) > 1


def passed(name: str, acting: dict[str, str], what: str) -> Check:
    """Return the answer that all `acting` modules are as they should be."""
    evidence = (
        f"{len(acting)} modules with dropout or batch norm, {what}" if acting else "nothing acts differently"
    )
    return Check(name=name, verdict=Verdict.PASS, evidence=evidence)


def failed(name: str, evidence: str, cause: str, subjects: list[str] | None = None) -> Check:
    """Return the answer that some modules, `subjects`, are not."""
    findings = tuple(Finding(subject=one, verdict="FAIL") for one in subjects or [])
    return Check(name=name, verdict=Verdict.FAIL, evidence=evidence, cause=cause, findings=findings)
