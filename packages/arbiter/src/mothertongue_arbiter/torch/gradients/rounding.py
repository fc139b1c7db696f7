"""The gradient of the run's own precision, against itself and against float64."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from mothertongue_arbiter.certificate import Check, Finding, Verdict
from mothertongue_arbiter.judgement import named, off_by
from mothertongue_arbiter.torch.run.backward import Backward, backward, distance, same_start
from mothertongue_arbiter.torch.run.precision import line_by_line
from mothertongue_arbiter.torch.run.subject import ExactSubject, Subject, Unavailable

NUDGES = 2
REPEATS = 2  # odd and even backward passes may differ
# The error of a whole backward, in nudges of one rounding of the weights; activations are rounded as well.
# Healthy runs stay below this in bfloat16 and in float32.
NUDGES_ALLOWED = 10.0
ROUNDINGS_ALLOWED = 16.0  # for a tensor that the nudges happen not to move
UNRESOLVED = 0.5  # a tensor whose tolerance is larger says nothing in this precision


@dataclass(frozen=True, kw_only=True)
class OwnPrecision:
    """What the run's own precision resolves: the tolerance of each gradient, relative to its norm."""

    dtype: str
    epsilon: float  # the spacing of its numbers at 1
    tolerances: Mapping[str, float]
    loss_tolerance: float = float("inf")  # absolute


class _Spy(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Sees the lowest floating-point precision in which a step computes."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.dtypes: set[torch.dtype] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = func(*args, **(kwargs or {}))
        self.dtypes.update(
            leaf.dtype
            for leaf in tree_leaves(output)
            if isinstance(leaf, Tensor) and leaf.is_floating_point()
        )
        return output


def measure_rounding(subject: Subject) -> OwnPrecision:
    """Nudge every weight by one rounding of the run's own precision, and see how far its gradient moves."""
    own = subject.own
    start = same_start(subject.run.model, subject.options.seed)
    with torch.no_grad(), line_by_line(), start, _Spy() as spy:
        subject.run.loss(subject.run.model, subject.batch)
    epsilon, dtype = max((torch.finfo(dtype).eps, str(dtype).removeprefix("torch.")) for dtype in spy.dtypes)
    moved, loss_moved = dict.fromkeys(own.gradients, 0.0), 0.0
    for nudge in range(NUDGES):
        nudged = _nudged(subject, epsilon, seed=nudge)
        loss_moved = max(loss_moved, abs(nudged.loss - own.loss))
        for name in moved:
            moved[name] = max(moved[name], distance(nudged.gradients, own.gradients, name))
    floor = ROUNDINGS_ALLOWED * epsilon
    return OwnPrecision(
        dtype=dtype,
        epsilon=epsilon,
        tolerances={name: max(NUDGES_ALLOWED * moved[name], floor) for name in moved},
        loss_tolerance=max(NUDGES_ALLOWED * loss_moved, floor * abs(own.loss)),
    )


def _nudged(subject: Subject, epsilon: float, *, seed: int) -> Backward:
    model = subject.run.model
    generator = torch.Generator().manual_seed(seed)
    home = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    try:
        for parameter in model.parameters():
            noise = torch.rand(parameter.shape, generator=generator).to(parameter.device) * 2 - 1
            parameter.data.copy_(parameter.data * (1 + epsilon * noise))
        return backward(subject.run, subject.batch, seed=subject.options.seed)
    finally:
        for name, parameter in model.named_parameters():
            parameter.data.copy_(home[name])


def determinism(subject: Subject, rounding: OwnPrecision) -> Check:
    """The same step twice gives the same gradient, within the rounding of the run's own precision."""
    if not subject.declared.deterministic:
        raise Unavailable("declared as not deterministic")
    apart = dict.fromkeys(rounding.tolerances, 0.0)
    for _ in range(REPEATS):
        again = backward(subject.run, subject.batch, seed=subject.options.seed)
        for name in apart:
            apart[name] = max(apart[name], distance(again.gradients, subject.own.gradients, name))
    bad = [name for name, far in apart.items() if not far <= ROUNDINGS_ALLOWED * rounding.epsilon]
    worst = max(apart.values(), default=0.0)
    same = "bit for bit" if worst == 0 else f"within rounding ({worst:.1e})"
    return Check(
        name="same step twice",
        verdict=Verdict.FAIL if bad else Verdict.PASS,
        evidence=f"gradients {worst:.1e} apart: {named(bad)}" if bad else f"the gradient repeats {same}",
        cause="a data race, unwritten memory, or state that one backward leaves to the next" if bad else "",
    )


def own_precision(subject: ExactSubject, own: Backward, rounding: OwnPrecision) -> Check:
    """The gradient that training uses is the float64 gradient, up to the rounding of its precision."""
    if subject.is_random:
        raise Unavailable("the loss draws random numbers (dropout), differently in each precision")
    names = [name for name in subject.judge.witness.names() if not subject.declared.is_frozen(name)]
    resolved = [name for name in names if rounding.tolerances[name] <= UNRESOLVED]
    far = {name: distance(own.gradients, subject.exact.gradients, name) for name in resolved}
    bad = [name for name in reversed(resolved) if not far[name] <= rounding.tolerances[name]]
    if bad:
        _same_function(subject, own, rounding)
        return Check(
            name="own precision",
            verdict=Verdict.FAIL,
            evidence=f"{rounding.dtype} gradient is not the float64 one: {len(bad)} of {len(names)} tensors, "
            f"off by {far[bad[0]]:.1e} where rounding explains {rounding.tolerances[bad[0]]:.1e}; "
            f"nearest the loss: {named(bad)}",
            cause=f"the backward that is used only in {rounding.dtype}, just after {bad[0]}",
            findings=off_by(bad, far),
        )
    worst = max(far.values(), default=0.0)
    unresolved = f"; {len(names) - len(resolved)} too small to resolve" if len(resolved) < len(names) else ""
    return Check(
        name="own precision",
        verdict=Verdict.PASS if resolved else Verdict.INCONCLUSIVE,
        evidence=f"{rounding.dtype} gradients within {worst:.1e} of float64, by rounding{unresolved}",
    )


def _same_function(subject: ExactSubject, own: Backward, rounding: OwnPrecision) -> None:
    """Raise Unavailable where the loss itself is another function in each precision, and so is its gradient.

    A choice (of an expert, a code, a branch) or a state that each forward moves, as of a power iteration.
    """
    if not subject.declared.deterministic:
        raise Unavailable("declared as not deterministic, so that no two gradients can be compared")
    exact = subject.exact.loss
    if abs(own.loss - exact) > rounding.loss_tolerance:  # false as well where one is not a number
        raise Unavailable(
            f"the loss is {own.loss:.9g} in {rounding.dtype} and {exact:.9g} in float64, where rounding "
            f"explains {rounding.loss_tolerance:.1e}: a choice or a state differs, and the gradient with it"
        )


def lower_casts(subject: ExactSubject) -> Check:
    """Which modules cast to a lower precision; promoted here, so that the certificate is one of float64."""
    casts = subject.mode.casts
    listed = [f"{module or 'model'} to {dtype}" for module, dtype in casts]
    return Check(
        name="float64",
        verdict=Verdict.PASS,
        evidence=f"{len(casts)} casts to lower precision promoted: {named(listed)}"
        if casts
        else "no lower casts",
        findings=tuple(Finding(subject=module, verdict="CAST", detail=dtype) for module, dtype in casts),
    )
