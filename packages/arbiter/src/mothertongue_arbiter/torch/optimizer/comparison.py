"""The gradient that an optimizer was handed, next to that of the whole batch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median

from torch import Tensor

from mothertongue_arbiter.run import Declared, matches
from mothertongue_arbiter.torch.gradients.rounding import OwnPrecision
from mothertongue_arbiter.torch.optimizer.watching import Recorded

LEAST_TOLERANCE = 1e-4  # relative; sums in another order
CLIP_EPS = 1e-6  # torch.nn.utils.clip_grad_norm_ divides by norm + 1e-6

Gradients = Mapping[str, Tensor | None]


@dataclass(frozen=True, kw_only=True)
class Compared:
    """The gradient handed over in one step, next to that of the whole batch."""

    step: int
    handed: Gradients
    reference: Gradients
    unlike: tuple[str, ...]  # tensors that are not the reference times the common factor
    factor: float  # that factor
    expected: float  # the factor that the declared clipping explains
    norm: float  # of the whole reference
    tolerance: float  # relative, of the factor

    @property
    def as_declared(self) -> bool:
        return abs(self.factor - self.expected) <= self.tolerance * self.expected


def compare(record: Recorded, reference: Gradients, rounding: OwnPrecision, declared: Declared) -> Compared:
    """Compare the gradients of `record`, which clipping scales by one common factor."""
    handed, optimizer = record.handed or {}, declared.optimizer
    if optimizer is not None and (limit := optimizer.clip_value) is not None:
        reference = {
            name: None if one is None else one.clamp(-limit, limit) for name, one in reference.items()
        }
    factors = []
    for name, gradient in reference.items():
        got = handed.get(name)
        if gradient is not None and got is not None and bool(gradient.any()):
            factors.append(along(got, gradient))
    factor = median(factors) if factors else 1.0
    tolerances = {name: max(rounding.tolerances[name], LEAST_TOLERANCE) for name in reference}
    unlike = tuple(
        name
        for name, gradient in reference.items()
        if min(apart(handed.get(name), gradient, factor * scale) for scale in _scales(name, declared))
        > tolerances[name]
    )
    norm = norm_of(reference)
    clip = None if optimizer is None else optimizer.clip_norm
    return Compared(
        step=record.step,
        handed=handed,
        reference=reference,
        unlike=unlike,
        factor=factor,
        expected=1.0 if clip is None else min(1.0, clip / (norm + CLIP_EPS)),
        norm=norm,
        tolerance=2 * median(tolerances.values()) if tolerances else LEAST_TOLERANCE,
    )


def _scales(name: str, declared: Declared) -> list[float]:
    """Return 1, and the declared factor of `name`: it may be put on before or after this moment."""
    declared_scales = [
        scale for pattern, scale in declared.gradient_scale.items() if matches(name, (pattern,))
    ]
    return [1.0, *declared_scales]


def norm_of(gradients: Gradients) -> float:
    """Return the norm of all `gradients` together."""
    return math.sqrt(sum(float(one.double().square().sum()) for one in gradients.values() if one is not None))


def along(got: Tensor, reference: Tensor) -> float:
    """Return how many times `reference` is in `got`."""
    wide = reference.double()
    return float((got.double() * wide).sum() / wide.square().sum())


def apart(got: Tensor | None, reference: Tensor | None, factor: float) -> float:
    """Return how far `got` is from `factor` times `reference`, relative to that."""
    if reference is None or not bool(reference.any()):
        return 0.0 if got is None or not bool(got.any()) else math.inf
    scaled = reference.double() * factor
    size = float(scaled.norm())
    return float(((0 if got is None else got.double()) - scaled).norm()) / size if size else math.inf
