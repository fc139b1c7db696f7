"""What SGD, Adam, AdamW, Lion and Muon do to a weight, in float64: the reference of a training step.

Written from the papers, not from an implementation, and element by element in the order of the formulas. The
sign and size conventions are those of torch.optim: `change` is what is added to the weight.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from mothertongue_arbiter.declared_optimizer import Group

Array: TypeAlias = npt.NDArray[np.floating]

# Coefficients of the quintic iteration (Keller Jordan, "Muon", 2024): steep at 0, so that small singular
# values come near 1 in five steps. The least norm is that of torch.optim.Muon.
NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)
NEWTON_SCHULZ_STEPS = 5
LEAST_NORM = 1e-7
NOISE_FACTORS = (1.0, 1.19, 1.43, 1.71)
FEW_ELEMENTS = 1 << 13


@dataclass(frozen=True, kw_only=True)
class Moments:
    """What an optimizer remembers of one tensor. Without a gradient it is passed over, and nothing counts."""

    steps: int = 0  # updates of this tensor so far
    first: Array | None = None  # running mean of gradients, or momentum
    second: Array | None = None  # running mean of squared gradients


@dataclass(frozen=True, kw_only=True)
class Update:
    """One application of a rule.

    `terms` is the sum of the absolute values that were added up to `change`, where they may cancel: rounding
    acts on them. `undecided` is the norm of what no finite precision decides: signs of sums that cancel, and
    for Muon what its documented bfloat16 iteration adds to directions without gradient.
    """

    change: Array
    moments: Moments
    terms: Array
    undecided: float = 0.0


def update(
    group: Group,
    weight: Array,
    gradient: Array,
    moments: Moments,
    *,
    rate: float,
    bias_correction: bool = True,
    stored: Callable[[Array], Array] = lambda moment: moment,
) -> Update:
    """Return what one optimizer step of `group` does to `weight`, all arrays of one shape.

    `rate` is the learning rate of this step; `stored` is how moments are kept, as `bfloat16` would.
    """
    if group.algorithm == "sgd":
        return _sgd(group, weight, gradient, moments, rate, stored)
    if group.algorithm == "lion":
        return _lion(group, weight, gradient, moments, rate, stored)
    if group.algorithm == "muon":
        return _muon(group, weight, gradient, moments, rate, stored)
    return _adam(group, weight, gradient, moments, rate, stored, bias_correction)


Stored: TypeAlias = Callable[[Array], Array]


def _sgd(
    group: Group, weight: Array, gradient: Array, moments: Moments, rate: float, stored: Stored
) -> Update:
    """SGD with momentum as torch.optim: the first gradient starts the momentum whole, without dampening."""
    decayed = gradient + group.weight_decay * weight
    terms = np.abs(gradient) + abs(group.weight_decay) * np.abs(weight)
    step, momentum = decayed, None
    if group.momentum:
        earlier = moments.first
        momentum = decayed if earlier is None else group.momentum * earlier + (1 - group.dampening) * decayed
        terms = terms + (0 if earlier is None else group.momentum * np.abs(earlier))
        momentum = stored(momentum)
        step = decayed + group.momentum * momentum if group.nesterov else momentum
    after = Moments(steps=moments.steps + 1, first=momentum)
    return Update(change=-rate * step, moments=after, terms=abs(rate) * terms)


def _adam(
    group: Group,
    weight: Array,
    gradient: Array,
    moments: Moments,
    rate: float,
    stored: Stored,
    bias_correction: bool,
) -> Update:
    """Adam (arXiv:1412.6980), its decay onto the gradient, and AdamW (arXiv:1711.05101), decoupled."""
    beta1, beta2 = group.betas
    decoupled = group.weight_decay if group.algorithm == "adamw" else 0.0
    if group.algorithm == "adam":
        gradient = gradient + group.weight_decay * weight
    earlier = np.zeros_like(weight) if moments.first is None else moments.first
    first = stored(beta1 * earlier + (1 - beta1) * gradient)
    second = 0 if moments.second is None else moments.second
    second = stored(beta2 * second + (1 - beta2) * gradient**2)
    steps = moments.steps + 1
    correction1 = 1 - beta1**steps if bias_correction else 1.0
    correction2 = 1 - beta2**steps if bias_correction else 1.0
    size = np.sqrt(second / correction2) + group.eps
    size = np.where(size > 0, size, np.inf)  # eps 0 and never a gradient: no step
    change = -rate * (first / correction1 / size + decoupled * weight)
    terms = (beta1 * np.abs(earlier) + (1 - beta1) * np.abs(gradient)) / correction1 / size
    terms = abs(rate) * (terms + abs(decoupled) * np.abs(weight))
    return Update(change=change, moments=Moments(steps=steps, first=first, second=second), terms=terms)


def _lion(
    group: Group, weight: Array, gradient: Array, moments: Moments, rate: float, stored: Stored
) -> Update:
    """Lion (arXiv:2302.06675): the sign of a mix of momentum and gradient, and decoupled decay."""
    beta1, beta2 = group.betas
    earlier = np.zeros_like(weight) if moments.first is None else moments.first
    mixed = beta1 * earlier + (1 - beta1) * gradient
    summed = beta1 * np.abs(earlier) + (1 - beta1) * np.abs(gradient)
    undecided = (np.abs(mixed) < SIGN_DECIDED * summed).sum()
    change = -rate * (np.sign(mixed) + group.weight_decay * weight)
    first = stored(beta2 * earlier + (1 - beta2) * gradient)
    return Update(
        change=change,
        moments=Moments(steps=moments.steps + 1, first=first),
        terms=np.abs(change),
        undecided=2 * abs(rate) * math.sqrt(undecided),
    )


SIGN_DECIDED = 1e-5  # relative; float32 sums of terms that cancel further may have either sign


def _muon(
    group: Group, weight: Array, gradient: Array, moments: Moments, rate: float, stored: Stored
) -> Update:
    """Muon (Keller Jordan, 2024): a step along the nearest semi-orthogonal matrix to the momentum."""
    earlier = np.zeros_like(weight) if moments.first is None else moments.first
    momentum = stored(group.momentum * earlier + (1 - group.momentum) * gradient)
    looked_ahead = group.momentum * momentum + (1 - group.momentum) * gradient
    matrix = (looked_ahead if group.nesterov else momentum).reshape(len(weight), -1)
    rows, columns = matrix.shape
    size = {
        "keller": math.sqrt(max(1.0, rows / columns)),
        "moonshot": 0.2 * math.sqrt(max(rows, columns)),
        "none": 1.0,
    }[group.adjust]
    exact = newton_schulz(matrix)
    step = size * exact.reshape(weight.shape) + group.weight_decay * weight
    return Update(
        change=-rate * step,
        moments=Moments(steps=moments.steps + 1, first=momentum),
        terms=abs(rate) * np.abs(step),
        undecided=abs(rate) * size * iteration_noise(matrix, exact),
    )


def iteration_noise(matrix: Array, exact: Array) -> float:
    """Return how far from `exact` the bfloat16 iteration typically ends, as a norm, by trying it.

    The iteration starts from a matrix of norm 1, so a factor changes how its numbers round and nothing else.
    One try tells the noise of a large matrix; that of a few elements, most of them one singular vector's,
    takes several.
    """
    factors = NOISE_FACTORS[: 1 if matrix.size > FEW_ELEMENTS else None]
    tries = [newton_schulz((matrix * factor).astype(np.float32), stored=bfloat16) for factor in factors]
    return math.sqrt(sum(float(np.square(one - exact).sum()) for one in tries) / len(tries))


def newton_schulz(matrix: Array, *, stored: Stored = lambda value: value) -> Array:
    """Return `matrix` (rows, columns) with every singular value moved near 1.

    `stored` is the precision in which each product is kept.
    """
    a, b, c = NEWTON_SCHULZ
    wide = matrix if matrix.shape[0] <= matrix.shape[1] else matrix.T
    x = stored(wide)
    x = stored(x / max(float(np.linalg.norm(x)), LEAST_NORM))
    for _ in range(NEWTON_SCHULZ_STEPS):
        gram = stored(x @ x.T)
        x = stored(a * x + stored(b * gram + c * (gram @ gram)) @ x)
    return x if matrix.shape[0] <= matrix.shape[1] else x.T


def bfloat16(values: Array) -> Array:
    """Return `values` rounded to bfloat16, ties to even, in the dtype they came in."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)
    return rounded.astype(np.uint32).view(np.float32).astype(values.dtype)
