"""What a gradient is made of that is not that of its batch: micro-batches of unequal weights, other data."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from mothertongue_arbiter.torch.data.rows import ranks_of, rows_of_rank
from mothertongue_arbiter.torch.optimizer.comparison import Gradients
from mothertongue_arbiter.torch.optimizer.watching import Recorded
from mothertongue_arbiter.torch.run.backward import backward, real
from mothertongue_arbiter.torch.run.subject import Subject

SAME = 1e-3  # what is left, relative; single precision, and weights that a step has rounded


def mixture(subject: Subject, record: Recorded) -> str | None:
    """Name the known mistake that `record.handed` is a mixture of; None where it is none."""
    parts = _micro_batches(subject, record.step)
    others = [subject.run.batch(step) for step in (record.step - 1, record.step + 1) if step >= 0]
    handed = _flat(record.handed or {}, record)
    for batches, cause in (
        (parts, "micro-batches are dropped, or weigh unlike their tokens"),
        (others, "it is that of the data of another step"),
    ):
        if batches and _is_mixed(
            handed, [_flat(one, record) for one in _gradients(subject, record, batches)]
        ):
            return cause
    return None


def centralised(handed: Gradients, reference: Gradients) -> bool:
    """Return whether `handed` is `reference` less its mean over all dimensions but the first, of matrices."""
    for name, gradient in reference.items():
        got = handed.get(name)
        if gradient is None or not bool(gradient.any()):
            continue
        if gradient.dim() > 1:
            gradient = gradient - gradient.mean(tuple(range(1, gradient.dim())), keepdim=True)
        size = float(gradient.norm())
        if got is None or float((got - gradient).norm()) > SAME * size:
            return False
    return True


def _micro_batches(subject: Subject, step: int) -> list[Any]:
    """Return those of all ranks, where there are several."""
    if not hasattr(subject.run, "micro_batches"):
        return []
    parts = [part for rank in range(ranks_of(subject)) for part in rows_of_rank(subject, step, rank)]
    return parts if len(parts) > 1 else []


def _gradients(subject: Subject, record: Recorded, batches: list[Any]) -> list[Gradients]:
    seed = subject.options.seed
    with _standing(subject, record), subject.stillness():
        return [backward(subject.run, batch, seed=seed).gradients for batch in batches]


@contextmanager
def _standing(subject: Subject, record: Recorded) -> Iterator[None]:
    """Give the model the weights from before the step inside."""
    parameters = {name: real(one.detach()) for name, one in subject.run.model.named_parameters()}
    home = {name: weight.clone() for name, weight in parameters.items()}
    left = {name: one.grad for name, one in subject.run.model.named_parameters()}
    try:
        for name, weight in parameters.items():
            weight.copy_(record.weights_before[name])
        yield
    finally:
        for name, weight in parameters.items():
            weight.copy_(home[name])
        for name, one in subject.run.model.named_parameters():
            one.grad = left[name]


def _flat(gradients: Gradients, record: Recorded) -> Tensor:
    parts = []
    for name, like in record.reference.items():
        one = gradients.get(name)
        if one is not None or like is not None:
            parts.append((torch.zeros_like(like) if one is None else one).double().flatten())  # type: ignore[arg-type]
    return torch.cat(parts)


def _is_mixed(handed: Tensor, parts: list[Tensor]) -> bool:
    if any(len(part) != len(handed) for part in parts):
        return False
    basis = torch.stack(parts, dim=1)
    shares = torch.linalg.lstsq(basis, handed[:, None]).solution
    return float((handed - (basis @ shares)[:, 0]).norm()) <= SAME * float(handed.norm())
