"""Loss X-ray: the gradient at the logits tells which label each position learned, and with which weight.

For cross-entropy, row t of the gradient at the logits is w_t (softmax - onehot(y_t)): the label is where it
is most negative, and the weight is g[y] / (p[y] - 1). One backward pass of the *real* loss shows what it
was made of.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

LEAST_READABLE = -0.1  # p[y] - 1


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

    @property
    def supervised(self) -> Tensor:
        return self.weights != 0


@contextmanager
def captured_logits(vocabulary: int | None, *, least: int = 2) -> Iterator[list[Tensor]]:
    """Collect the logits of every forward inside, with their gradients kept for later.

    Logits are what a module returns with `vocabulary` entries in the last dimension (at least `least` when
    it is not known). The last one of a forward is what the loss saw.
    """
    captured: list[Tensor] = []
    makers: list[int] = []  # the module of each

    def keep(module: nn.Module, args: Any, output: Any) -> None:
        logits = _tensor(output)
        if logits is None or not logits.requires_grad or any(logits is other for other in captured):
            return
        entries = logits.shape[-1]
        if entries == vocabulary or (vocabulary is None and entries >= least):
            logits.retain_grad()
            inner = {id(part) for part in module.modules() if part is not module}
            while makers and makers[-1] in inner:  # a head whose logits this module then capped or scaled
                makers.pop()
                captured.pop()
            makers.append(id(module))
            captured.append(logits)

    handle = nn.modules.module.register_module_forward_hook(keep)
    try:
        yield captured
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
    return Xray(
        labels=labels,
        weights=weights,
        readable=certainty < LEAST_READABLE,
        residual=float((gradient - expected).norm()) / size if size else 0.0,
        vocabulary=logits.shape[-1],
    )


def _tensor(output: Any) -> Tensor | None:
    output = getattr(output, "logits", output)
    if isinstance(output, list | tuple) and output:
        output = output[0]
    return output if isinstance(output, Tensor) and output.dim() == 3 and output.is_floating_point() else None
