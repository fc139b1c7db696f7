"""What an optimizer is declared to do, parameter group by parameter group.

    Optimizer(
        groups=(
            Group(parameters=("*norm*", "*bias"), algorithm="adamw", learning_rate=schedule),
            Group(parameters=("*",), algorithm="adamw", learning_rate=schedule, weight_decay=0.1),
        ),
        clip_norm=1.0,
    )

The first group whose patterns match a name owns it. `learning_rate` is a number or a function of the
optimizer step, counted from 0.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

Algorithm = Literal["sgd", "adam", "adamw", "lion", "muon"]


@dataclass(frozen=True, kw_only=True)
class Group:
    """Parameters that share one rule and its numbers; the names of the numbers are those of torch.optim."""

    parameters: tuple[str, ...]  # names or patterns of `model.named_parameters()`
    algorithm: Algorithm = "adamw"
    learning_rate: float | Callable[[int], float]
    weight_decay: float = (
        0.0  # adamw, lion, muon: decoupled, lr * decay * weight; sgd, adam: onto the gradient
    )
    betas: tuple[float, float] = (0.9, 0.999)  # adam, adamw, lion
    eps: float = 1e-8  # adam, adamw
    momentum: float = 0.0  # sgd, muon
    dampening: float = 0.0  # sgd
    nesterov: bool = False  # sgd, muon
    # muon: "keller" multiplies the orthogonal update by sqrt(max(1, rows / columns)), "moonshot" by
    # 0.2 sqrt(max(rows, columns)), "none" by 1.
    adjust: Literal["keller", "moonshot", "none"] = "keller"

    def rate(self, step: int) -> float:
        """Return the learning rate of optimizer step `step`."""
        return self.learning_rate(step) if callable(self.learning_rate) else self.learning_rate


@dataclass(frozen=True, kw_only=True)
class Optimizer:
    """All groups of a run, and what happens to the gradient before them."""

    groups: tuple[Group, ...]
    clip_norm: float | None = None  # the largest global norm of the gradient
    clip_value: float | None = None  # the largest absolute gradient
    master_dtype: str | None = (
        None  # dtype of the weights that are really updated, where the model has copies
    )
