"""The loss of the zoo, in its two parts: what a position costs, and how many positions learn."""

from torch import Tensor
from torch.nn import functional as F

Batch = dict[str, Tensor]


def sum_of_cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """Return the summed cross-entropy (nats) of logits (B, T, V) at targets (B, T); -100 learns nothing."""
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-100, reduction="sum")


def count(batch: Batch) -> Tensor:
    """Return how many positions of `batch` learn."""
    return (batch["targets"] >= 0).sum()
