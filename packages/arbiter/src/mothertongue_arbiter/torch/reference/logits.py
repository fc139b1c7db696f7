"""The reference: logits and gradients of an independent forward with the same weights.

What every check without a reference must miss is seen here: a missing attention scale, another epsilon, a
rotary pairing or base that nobody meant, gate and up exchanged, a norm left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from mothertongue_arbiter.certificate import Check, Verdict
from mothertongue_arbiter.torch.forward.modes import evaluation
from mothertongue_arbiter.torch.forward.padding import real_positions
from mothertongue_arbiter.torch.reference.naming import own_names
from mothertongue_arbiter.torch.reference.plain_forward import architecture_of, plain_forward, weight_names
from mothertongue_arbiter.torch.reference.transformers_forward import transformers_logits
from mothertongue_arbiter.torch.run.backward import fix_random_numbers, logits_of
from mothertongue_arbiter.torch.run.batches import POSITION_NAMES, named_tensor
from mothertongue_arbiter.torch.run.subject import ExactSubject, Unavailable

SMALL = 1e-3  # root mean square of an embedding of which the epsilon of a norm is no longer a small part


@dataclass(frozen=True, kw_only=True)
class Reference:
    """Logits (B, T, V), right where they are `known` (B, T), and what modules should return on the way."""

    source: str
    logits: Tensor
    known: Tensor
    trace: dict[str, Tensor] = field(default_factory=dict)  # by the names of the run's own modules


def reference_forward(subject: ExactSubject) -> Check:
    """The logits are those of an independent forward, also when the embedding is small."""
    subject.need("forward")
    with evaluation(subject.run.model):
        for size in ("as they are", "with a small embedding"):
            with _small_embedding(subject, size != "as they are"):
                check = _compared(subject, size)
            if check.verdict != Verdict.PASS:
                return check
    return check


def reference(subject: ExactSubject) -> Reference:
    """Return the logits of `run.reference`, or of the declared architecture.

    Raises:
        Unavailable: there is neither, or the architecture cannot be built.
    """
    run, declared = subject.run, subject.declared
    real = real_positions(subject)
    own = getattr(run, "reference", None)
    if own is not None:
        fix_random_numbers(subject.options.seed)
        return Reference(source="`reference`", logits=logits_of(own(run.model, subject.batch)), known=real)
    if declared.architecture is None:
        raise Unavailable("the run has no `reference` and declares no `architecture`")
    try:
        shape = architecture_of(declared.architecture)
    except ValueError as error:
        if not str(error).startswith("another kind"):
            raise Unavailable(f"`architecture`: {error}") from None
        logits, known = transformers_logits(subject, declared.architecture)
        return Reference(source="transformers", logits=logits, known=known & real)
    needed, possible = weight_names(shape)
    parameters = dict(run.model.named_parameters(remove_duplicate=False))
    names = own_names([*needed, *possible], parameters, declared.architecture.get("names"))
    absent = [name for name in needed if name not in names]
    if absent:
        raise Unavailable(f"`architecture`: no parameter is {absent[0]}; say it in `names`")
    used = {id(parameters[own]) for own in names.values()}
    extra = [own for own, parameter in parameters.items() if id(parameter) not in used]
    if extra:
        raise Unavailable(f"`architecture`: a decoder of this kind has no {extra[0]}")
    positions = named_tensor(subject.batch, POSITION_NAMES)
    if positions is None:
        positions = torch.arange(subject.ids.shape[1], device=subject.ids.device)
    logits, trace = plain_forward(
        subject.ids,
        {name: parameters[own] for name, own in names.items()},
        shape,
        seen=_seen(subject, real),
        positions=positions.expand(subject.ids.shape),
    )
    modules = own_modules(names, shape.layers)
    renamed = {modules[name]: output for name, output in trace.items() if name in modules}
    return Reference(source="a plain forward", logits=logits, known=real, trace=renamed)


def own_modules(names: dict[str, str], layers: int) -> dict[str, str]:
    """Return the run's own module for each Hugging Face module whose weight it has, and for whole layers."""
    modules = {
        name.removesuffix(".weight"): own.removesuffix(".weight")
        for name, own in names.items()
        if name.endswith(".weight") and own.endswith(".weight")
    }
    for layer in range(layers):
        block = f"model.layers.{layer}"
        inside = [own.split(".") for name, own in names.items() if name.startswith(f"{block}.")]
        shared = []
        for parts in zip(*inside, strict=False):
            if len(set(parts)) > 1:
                break
            shared.append(parts[0])
        if shared and shared[-1].isdigit():
            modules[block] = ".".join(shared)
    return modules


def _compared(subject: ExactSubject, size: str) -> Check:
    with torch.no_grad(), _outputs(subject.run.model) as outputs:
        found = subject.logits(subject.batch)
    with torch.no_grad():
        expected = reference(subject)
    length = found.shape[1]
    logits, known = expected.logits[:, :length], expected.known[:, :length]
    if logits.shape != found.shape:
        return _failed(f"logits {tuple(found.shape)}, {expected.source} has {tuple(logits.shape)}", "")
    apart = (found - logits).abs().amax(-1) / logits[known].abs().max().clamp(min=1e-30)
    apart = torch.where(known, apart, 0.0)
    worst = float(apart.nan_to_num(nan=torch.inf).max())
    if worst > subject.same_at_other_positions:
        row, position = (apart > subject.same_at_other_positions).nonzero()[0].tolist()
        evidence = (
            f"logits differ from {expected.source} by {worst:.1e} {size}, first in row {row} at {position}"
        )
        return _failed(evidence, *_place(subject, expected, outputs, known))
    return Check(
        name="reference forward",
        verdict=Verdict.PASS,
        evidence=f"logits within {worst:.1e} of {expected.source}, also with a small embedding",
    )


def _place(
    subject: ExactSubject, expected: Reference, outputs: dict[str, Tensor], known: Tensor
) -> tuple[str, str]:
    """Return the likely cause and the first module whose output differs; empty when it cannot be told."""
    agreeing = "the embedding"
    for module, should in expected.trace.items():
        output = outputs.get(module)
        if output is None or output.shape != should.shape:
            continue
        size = should[known].abs().max().clamp(min=1e-30)
        if not float((output - should)[known].abs().max() / size) <= subject.same_at_other_positions:
            return f"{module} is the first whose output differs, after {agreeing}", module
        agreeing = module
    return (f"after {agreeing}, the last whose output agrees" if expected.trace else ""), ""


@contextmanager
def _outputs(model: nn.Module) -> Iterator[dict[str, Tensor]]:
    """Collect the first output of every module of `model`, by its name."""
    outputs: dict[str, Tensor] = {}
    handles = []
    for name, module in model.named_modules():

        def keep(module: nn.Module, args: Any, output: Any, name: str = name) -> None:
            first = output[0] if isinstance(output, list | tuple) and output else output
            if isinstance(first, Tensor):
                outputs.setdefault(name, first.detach())

        handles.append(module.register_forward_hook(keep))
    try:
        yield outputs
    finally:
        for handle in handles:
            handle.remove()


def _seen(subject: ExactSubject, real: Tensor) -> Tensor:
    """Return which position looks at which, (B, T, T): earlier ones of its document, and itself."""
    length = subject.ids.shape[1]
    seen = torch.ones(length, length, dtype=torch.bool, device=real.device).tril() & real[:, None, :]
    if subject.declared.isolated_documents and subject.documents is not None:
        seen = seen & (subject.documents[:, :, None] == subject.documents[:, None, :])
    return seen | torch.eye(length, dtype=torch.bool, device=real.device)


@contextmanager
def _small_embedding(subject: ExactSubject, small: bool) -> Iterator[None]:
    """Shrink the weight that is used first, if it is a matrix."""
    first = dict(subject.run.model.named_parameters())[subject.judge.witness.names()[0]]
    home = first.detach().clone()
    size = float(home.square().mean().sqrt())
    try:
        if small and first.dim() == 2 and size > SMALL:
            first.data.mul_(SMALL / size)
        yield
    finally:
        first.data.copy_(home)


def _failed(evidence: str, cause: str, module: str = "") -> Check:
    cause = cause or "another architecture than the reference has"
    return Check(
        name="reference forward", verdict=Verdict.FAIL, evidence=evidence, cause=cause, module=module
    )
