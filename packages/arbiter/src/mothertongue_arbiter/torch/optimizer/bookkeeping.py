"""What the optimizer holds, and which weights are one."""

from __future__ import annotations

from collections import Counter
from operator import attrgetter
from typing import Any

from torch import Tensor, nn

from mothertongue_arbiter.certificate import Check, Finding, Verdict
from mothertongue_arbiter.judgement import named
from mothertongue_arbiter.run import matches
from mothertongue_arbiter.torch.optimizer.watching import masters_of
from mothertongue_arbiter.torch.run.fresh import replicas_of
from mothertongue_arbiter.torch.run.state import optimizers_of
from mothertongue_arbiter.torch.run.subject import Subject, Unavailable


def coverage(subject: Subject) -> Check:
    """The optimizer holds every trainable tensor exactly once, and nothing else."""
    optimizers = optimizers_of(subject.run)
    groups = [group for optimizer in optimizers for group in getattr(optimizer, "param_groups", [])]
    if not groups:
        raise Unavailable("the run has no `optimizer` with `param_groups`")
    parameters = dict(subject.run.model.named_parameters())
    updated = parameters | _declared_masters(subject, optimizers)
    names = {id(tensor): name for name, tensor in updated.items()}
    held = Counter(id(parameter) for group in groups for parameter in group["params"])
    problems = [
        (name, problem)
        for name, parameter in parameters.items()
        if (problem := _problem(name, parameter.requires_grad, held[id(updated[name])], subject))
    ]
    problems += [(name, "decayed") for name in _decayed(subject, groups, names)]
    known = {
        id(parameter) for model in replicas_of(subject.run) for parameter in model.parameters()
    } | names.keys()
    stale = sum(1 for group in groups for parameter in group["params"] if id(parameter) not in known)
    problems += [("optimizer", f"{stale} tensors that the model does not have")] if stale else []
    if not problems:
        count = sum(1 for tensor in updated.values() if id(tensor) in held)
        evidence = f"{count} tensors, each exactly once, in {len(groups)} groups"
        return Check(name="optimizer coverage", verdict=Verdict.PASS, evidence=evidence)
    return Check(
        name="optimizer coverage",
        verdict=Verdict.FAIL,
        evidence=named([f"{name}: {problem}" for name, problem in problems]),
        cause="a name filter, or an optimizer made before the model got its final tensors",
        findings=tuple(Finding(subject=name, verdict="FAIL", detail=problem) for name, problem in problems),
    )


def _declared_masters(subject: Subject, optimizers: list[Any]) -> dict[str, Tensor]:
    """Return what the optimizer holds in place of weights of low precision, if that is declared."""
    optimizer = subject.declared.optimizer
    if optimizer is None or optimizer.master_dtype is None:
        return {}
    return masters_of(subject.run, optimizers)


def _problem(name: str, trainable: bool, times: int, subject: Subject) -> str:
    if subject.declared.is_frozen(name):
        return "declared frozen, but trained" if trainable and times else ""
    if not trainable:
        return "frozen, but not declared so"
    if times == 0:
        return "not in the optimizer"
    return f"{times} times in the optimizer" if times > 1 else ""


def _decayed(subject: Subject, groups: list[dict[str, Any]], names: dict[int, str]) -> list[str]:
    """Return the names that are declared without weight decay and get some."""
    decayed = [group for group in groups if group.get("weight_decay")]
    held = [names.get(id(parameter), "") for group in decayed for parameter in group["params"]]
    return [name for name in held if matches(name, subject.declared.no_weight_decay)]


def ties(subject: Subject) -> Check:
    """Weights that are declared tied are one tensor."""
    model = subject.run.model
    pairs = [
        (_weight(model, one), _weight(model, other), f"{one} = {other}")
        for one, other in subject.declared.tied
    ]
    pairs += _configured_tie(model)
    repeated = _repeated_layers(subject)
    if repeated:
        return Check(
            name="tied weights",
            verdict=Verdict.FAIL,
            evidence=f"one layer in several places, no tie declared: {named(repeated)}",
            cause="[Block()] * n makes one block and lists it n times",
        )
    if not pairs:
        raise Unavailable("no tie is declared")
    lost = [name for one, other, name in pairs if one.data_ptr() != other.data_ptr()]
    return Check(
        name="tied weights",
        verdict=Verdict.FAIL if lost else Verdict.PASS,
        evidence=f"two tensors, one declared: {named(lost)}" if lost else named([name for *_, name in pairs]),
        cause="a copy, a load or a wrapper that replaced one of the two" if lost else "",
    )


def _repeated_layers(subject: Subject) -> list[str]:
    """Return the layers that a list holds more than once, unless the author declares a tie inside it."""
    if getattr(subject.run, "declared", None) is None:
        return []
    tied = [path for pair in subject.declared.tied for path in pair]
    repeated = []
    for name, layers in subject.run.model.named_modules():
        if isinstance(layers, nn.ModuleList) and not any(path.startswith(f"{name}.") for path in tied):
            first: dict[int, int] = {}
            for number, layer in enumerate(layers):
                earlier = first.setdefault(id(layer), number)
                if earlier != number and any(True for _ in layer.parameters()):
                    repeated.append(f"{name}.{number} is {name}.{earlier}")
    return repeated


def _weight(model: nn.Module, path: str) -> Tensor:
    try:
        weight = attrgetter(path)(model)
    except AttributeError:
        raise Unavailable(f"`declared.tied`: the model has no {path}") from None
    assert isinstance(weight, Tensor), f"declared.tied: {path} is no tensor"
    return weight


def _configured_tie(model: Any) -> list[tuple[Tensor, Tensor, str]]:
    """Return the tie that the configuration of a transformers model asks for."""
    if not getattr(getattr(model, "config", None), "tie_word_embeddings", False):
        return []
    head = model.get_output_embeddings()
    return [] if head is None else [(model.get_input_embeddings().weight, head.weight, "tie_word_embeddings")]
