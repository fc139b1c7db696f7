"""Loss X-ray: the gradient at the logits tells which label each position learned, and with which weight.

For cross-entropy, row t of the gradient at the logits is w_t (softmax - onehot(y_t)): the label is where it
is most negative, and the weight is g[y] / (p[y] - 1). One backward pass of the *real* loss shows what it
was made of.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

LEAST_READABLE = -0.1  # p[y] - 1
LEAST_RESIDUAL = 1e-6  # below, nothing but a cross-entropy is there
EXPLAINED_RESIDUAL = 0.1  # of that of plain labels, if something else is to explain the gradient
ALIKE = 1e-3  # smoothing at all positions


@dataclass(frozen=True, kw_only=True)
class Xray:
    """Per position, as (rows, tokens); a position with weight 0 learns nothing."""

    labels: Tensor  # int64; meaningless where the weight is 0
    weights: Tensor
    readable: (
        Tensor  # bool; where the token is not predicted already, so that low precision carries the weight
    )
    residual: float  # how far the gradient is from that of a cross-entropy, relative
    vocabulary: int
    temperature: float = 1.0  # by which the loss divides these logits
    smoothing: float | None = 0.0  # of the labels; None where all logits are equal, which hides it

    @property
    def supervised(self) -> Tensor:
        return self.weights != 0


@contextmanager
def captured_logits(vocabulary: int | None, *, least: int = 2) -> Iterator[list[Tensor]]:
    """Collect the logits of every forward inside, with their gradients kept for later.

    Logits are what a module returns with `vocabulary` entries in the last dimension (at least `least` when
    it is not known). The last one of a forward is what the loss saw.
    """
    found: list[Tensor] = []
    captured: list[tuple[nn.Module, Tensor]] = []

    def keep(module: nn.Module, args: Any, output: Any) -> None:
        logits = _tensor(output)
        recomputed = torch._C._current_graph_task_id() >= 0  # by activation checkpointing, in the backward
        if logits is None or not logits.requires_grad or recomputed:
            return
        entries = logits.shape[-1]
        if entries == vocabulary or (vocabulary is None and entries >= least):
            inner = {id(part) for part in module.modules()} - {id(module)}
            while captured and id(captured[-1][0]) in inner:  # a head whose logits this module hands on
                found.pop()
                captured.pop()
            logits.retain_grad()
            captured.append((module, logits))
            found.append(logits)

    handle = nn.modules.module.register_module_forward_hook(keep)
    try:
        yield found
    finally:
        handle.remove()


def xray(logits: Tensor) -> Xray:
    """Read labels and weights from logits (rows, tokens, vocabulary) that a backward pass went through."""
    gradient = logits.grad
    if gradient is None:
        gradient = torch.zeros_like(logits)
    gradient, probabilities = gradient.double(), logits.detach().double().softmax(-1)
    labels = gradient.argmin(-1)
    at_label = labels.unsqueeze(-1)
    certainty = probabilities.gather(-1, at_label).squeeze(-1) - 1
    weights = gradient.gather(-1, at_label).squeeze(-1) / certainty.clamp(max=-1e-12)
    expected = weights.unsqueeze(-1) * probabilities
    expected.scatter_add_(-1, at_label, -weights.unsqueeze(-1))
    size = float(gradient.norm())
    found = Xray(
        labels=labels,
        weights=weights,
        readable=certainty < LEAST_READABLE,
        residual=float((gradient - expected).norm()) / size if size else 0.0,
        vocabulary=logits.shape[-1],
    )
    if not math.isfinite(size) or not size:
        return found
    if found.residual < LEAST_RESIDUAL:
        spread = float(probabilities.amax() - probabilities.amin())
        return found if spread > LEAST_RESIDUAL else replace(found, smoothing=None)
    return _tempered(_smoothed(found, gradient, probabilities), gradient, logits.detach().double())


def _tempered(plain: Xray, gradient: Tensor, logits: Tensor) -> Xray:
    """Read a cross-entropy of logits / T for some T; return `plain` where none fits.

    But for its label the gradient of a position is w / T softmax(logits / T), whose logarithm has the slope
    1 / T along the logits.
    """
    other = torch.ones_like(gradient).scatter_(-1, plain.labels.unsqueeze(-1), 0.0) * (gradient > 0)
    share = other / other.sum(-1, keepdim=True).clamp(min=1)
    x = (logits - (share * logits).sum(-1, keepdim=True)) * other
    log = gradient.clamp(min=1e-300).log()
    slope = float((x * log).sum() / x.square().sum().clamp(min=1e-300))
    if not 0 < slope < math.inf:
        return plain
    probabilities = (logits * slope).softmax(-1)
    onehot = torch.zeros_like(probabilities).scatter_(-1, plain.labels.unsqueeze(-1), 1.0)
    one = (probabilities - onehot) * slope
    weights = (gradient * one).sum(-1) / one.square().sum(-1).clamp(min=1e-300)
    residual = float((gradient - weights.unsqueeze(-1) * one).norm() / gradient.norm())
    if residual > plain.residual * EXPLAINED_RESIDUAL or residual > LEAST_RESIDUAL:
        return plain
    return replace(plain, weights=weights, residual=residual, smoothing=0.0, temperature=1 / slope)


def _smoothed(plain: Xray, gradient: Tensor, probabilities: Tensor) -> Xray:
    """Read a cross-entropy whose labels are smoothed alike by some e; return `plain` where none fits.

    Its gradient at a position is w (p - onehot) + w e (onehot - 1 / V): two numbers, by least squares.
    """
    onehot = torch.zeros_like(probabilities).scatter_(-1, plain.labels.unsqueeze(-1), 1.0)
    one, two = probabilities - onehot, onehot - 1 / plain.vocabulary
    oo, ot, tt = ((a * b).sum(-1) for a, b in ((one, one), (one, two), (two, two)))
    go, gt = (gradient * one).sum(-1), (gradient * two).sum(-1)
    determinant = (oo * tt - ot * ot).clamp(min=1e-30)
    weights, smoothed = (go * tt - gt * ot) / determinant, (gt * oo - go * ot) / determinant
    rest = gradient - weights.unsqueeze(-1) * one - smoothed.unsqueeze(-1) * two
    residual = float(rest.norm() / gradient.norm())
    learned = gradient.abs().amax(-1) > 0
    each = smoothed[learned] / weights[learned]
    alike = float((each - each.median()).abs().max()) < ALIKE and 0 < float(each.median()) < 1
    if not alike or residual > plain.residual * EXPLAINED_RESIDUAL:
        return plain
    weights = torch.where(learned, weights, 0.0)
    return replace(plain, weights=weights, residual=residual, smoothing=float(each.median()))


def _tensor(output: Any) -> Tensor | None:
    output = getattr(output, "logits", output)
    if isinstance(output, list | tuple) and output:
        output = output[0]
    return output if isinstance(output, Tensor) and output.dim() == 3 and output.is_floating_point() else None
