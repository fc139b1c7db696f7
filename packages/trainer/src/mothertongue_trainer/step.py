"""One optimizer step: from a batch to changed weights. The loop repeats it and the audit questions it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from mothertongue.errors import CheckFailed
from mothertongue_trainer.model import IGNORED, Qwen3
from mothertongue_trainer.optimizer import MuonAdamW
from mothertongue_trainer.recipe import TrainingConfig
from mothertongue_trainer.rows import Batch
from mothertongue_trainer.schedule import learning_rate_factor


class RowSource(Protocol):
    """Where batches come from: a pure function of the step, so that resuming is exact."""

    @property
    def steps(self) -> int: ...

    def batch(self, step: int) -> Batch: ...


class TensorBatch(NamedTuple):
    """The rows of a step, or some of them, as tensors (B, T) of int64."""

    tokens: Tensor
    targets: Tensor  # IGNORED where nothing is learned
    documents: Tensor

    @classmethod
    def of(cls, batch: Batch, device: torch.device) -> TensorBatch:
        return cls(
            *(torch.from_numpy(rows).to(device) for rows in (batch.tokens, batch.targets, batch.documents))
        )

    def split(self, rows: int) -> Iterator[TensorBatch]:
        """Yield micro-batches of `rows` rows."""
        yield from map(TensorBatch._make, zip(*(torch.split(part, rows) for part in self), strict=True))

    @property
    def learned_tokens(self) -> Tensor:
        """The number of positions with a target, at least 1: what a mean is divided by."""
        return (self.targets != IGNORED).sum().clamp(min=1)


@dataclass(frozen=True, kw_only=True)
class StepResult:
    """What a step measured."""

    loss: float  # mean nats per learned token
    grad_norm: float  # before clipping


def mean_loss(model: Qwen3, batch: TensorBatch) -> Tensor:
    """Return the mean cross-entropy of `batch`, in nats per learned token."""
    return model.loss(*batch) / batch.learned_tokens


def take_step(
    model: Qwen3, optimizer: MuonAdamW, batch: TensorBatch, *, training: TrainingConfig, step: int, steps: int
) -> StepResult:
    """Do step `step` (from 0) of `steps` on `batch`, in micro-batches if `training` says so.

    The loss is the mean over the learned tokens of the whole step, however they fall into micro-batches.

    Raises:
        CheckFailed: the loss or a gradient is not finite; weights and optimizer are as before the step.
    """
    optimizer.scale_learning_rates(
        learning_rate_factor(
            step, steps=steps, warmup_steps=training.warmup_steps, decay_fraction=training.decay_fraction
        )
    )
    optimizer.zero_grad()
    learned_tokens = batch.learned_tokens
    loss = torch.zeros((), device=batch.tokens.device)
    for part in batch.split(training.micro_batch_sequences or training.batch_sequences):
        part_loss = model.loss(*part) / learned_tokens
        part_loss.backward()  # type: ignore[no-untyped-call]
        loss += part_loss.detach()
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    grad_norm = get_total_norm(gradients)
    result = StepResult(loss=loss.item(), grad_norm=grad_norm.item())
    if not torch.isfinite(loss + grad_norm):
        raise CheckFailed(
            f"step {step + 1}: {_first_not_finite(model, loss)} is not finite; the step was not done and the "
            "last checkpoint is good: lower the learning rates, or look for broken text around this step"
        )
    if training.gradient_clip is not None:
        clip_grads_with_norm_(model.parameters(), training.gradient_clip, grad_norm)
    optimizer.step()
    return result


def _first_not_finite(model: Qwen3, loss: Tensor) -> str:
    """Name what broke first: weights come before the loss, and the loss before gradients."""
    for name, parameter in model.named_parameters():
        if not torch.isfinite(parameter).all():
            return f"the weight {name}"
    if not torch.isfinite(loss):
        return "the loss"
    for name, parameter in model.named_parameters():
        if parameter.grad is not None and not torch.isfinite(parameter.grad).all():
            return f"the gradient of {name}"
    return "the norm of all gradients"
