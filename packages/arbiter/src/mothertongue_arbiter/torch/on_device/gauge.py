"""Measure what one optimizer step does to every tensor, on its device and without waiting for it.

Norms of gradients and weights are those of the whole tensor. Updates are measured on at most `SAMPLED`
elements of each, spread evenly, so that no copy of the model is kept: exact for small tensors, to some
percent for large ones.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

SAMPLED = 1024
GRADIENT, BEFORE, AFTER, UPDATE, ALIVE, STILL, COUNTER = range(7)  # the rows of a measurement


class Gauge:
    """Buffers for the tensors `parameters`, allocated once on the device of the first."""

    def __init__(self, parameters: Mapping[str, nn.Parameter]) -> None:
        self._parameters = list(parameters.values())
        local = [_local(parameter) for parameter in self._parameters]
        self.device = local[0].device
        double = any(part.dtype == torch.float64 for part in local)
        self._dtype = torch.float64 if double else torch.float32
        counts = [min(part.numel(), SAMPLED) for part in local]
        shape = (len(local), max(counts))
        self._before, self._after, self._slopes = (
            torch.zeros(shape, dtype=self._dtype, device=self.device) for _ in range(3)
        )
        self._rows = [
            [row[:count] for row, count in zip(buffer, counts, strict=True)]
            for buffer in (self._before, self._after, self._slopes)
        ]
        stretch = [math.sqrt(part.numel() / max(n, 1)) for part, n in zip(local, counts, strict=True)]
        self._stretch = torch.tensor(stretch, dtype=self._dtype, device=self.device)
        self._zero = torch.zeros((), dtype=self._dtype, device=self.device)
        self._table = torch.zeros((7, len(local)), dtype=self._dtype, device=self.device)

    @torch.no_grad()
    def arm(self) -> None:
        """Remember the weights before a step."""
        weights = [_local(parameter.detach()) for parameter in self._parameters]
        torch._foreach_copy_(self._rows[0], [_sample(weight) for weight in weights])
        self._table[BEFORE] = self._norms(weights)

    @torch.no_grad()
    def measure(self, optimizers: Sequence[Any]) -> Tensor:
        """Return a new tensor (7, P) about the step since `arm`; its rows are named above."""
        weights = [_local(parameter.detach()) for parameter in self._parameters]
        gradients = [None if p.grad is None else _dense(_local(p.grad)) for p in self._parameters]
        present = [gradient for gradient in gradients if gradient is not None]
        table, slopes = self._table, self._rows[2]
        norms = iter(self._norms(present)) if present else iter(())
        table[GRADIENT] = torch.stack([self._zero if one is None else next(norms) for one in gradients])
        table[AFTER] = self._norms(weights)
        torch._foreach_copy_(self._rows[1], [_sample(weight) for weight in weights])
        self._slopes.zero_()
        if present:
            with_gradient = [row for row, one in zip(slopes, gradients, strict=True) if one is not None]
            torch._foreach_copy_(with_gradient, [_sample(gradient) for gradient in present])
        update = self._after - self._before
        alive = self._slopes != 0
        table[UPDATE] = torch.linalg.vector_norm(update, dim=1) * self._stretch
        table[ALIVE] = alive.sum(1)
        table[STILL] = (alive & (update == 0)).sum(1)
        table[COUNTER] = self._counters(optimizers)
        return table.clone()

    def _norms(self, tensors: list[Tensor]) -> Tensor:
        norms = torch._foreach_norm(tensors, 2, dtype=self._dtype)
        return torch.stack([norm.to(self.device, non_blocking=True) for norm in norms])

    def _counters(self, optimizers: Sequence[Any]) -> Tensor:
        """Return how many steps the optimizer counted for each tensor, NaN where it keeps no count."""
        counters = [_counter(parameter, optimizers) for parameter in self._parameters]
        if any(isinstance(one, Tensor) and one.device.type != "cpu" for one in counters):
            parts = [torch.as_tensor(one).to(self._zero, non_blocking=True) for one in counters]
            return torch.stack(parts)
        return torch.tensor([float(one) for one in counters], dtype=self._dtype).to(
            self.device, non_blocking=True
        )


def _counter(parameter: nn.Parameter, optimizers: Iterable[Any]) -> Tensor | float:
    for optimizer in optimizers:
        state = getattr(optimizer, "state", {})
        count = state[parameter].get("step") if parameter in state else None
        if isinstance(count, int | float) or (isinstance(count, Tensor) and count.numel() == 1):
            return count.reshape(()) if isinstance(count, Tensor) else float(count)
    return float("nan")


def _local(tensor: Tensor) -> Tensor:
    """Return this rank's part of a sharded tensor."""
    part: Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return part


def _dense(gradient: Tensor) -> Tensor:
    return gradient.to_dense() if gradient.is_sparse else gradient


def _sample(tensor: Tensor) -> Tensor:
    """Return at most `SAMPLED` elements, evenly spread; a view wherever the tensor has no gaps."""
    flat = tensor.reshape(-1) if tensor.is_contiguous() else _in_memory_order(tensor)
    count = min(flat.numel(), SAMPLED)
    stride = max(flat.numel() // SAMPLED, 1)
    # An odd stride meets every column of a matrix whose width is even.
    stride -= 1 - stride % 2 if stride > 1 else 0
    return flat[: count * stride : stride]


def _in_memory_order(tensor: Tensor) -> Tensor:
    order = sorted(range(tensor.dim()), key=tensor.stride, reverse=True)
    return tensor.permute(order).reshape(-1)
