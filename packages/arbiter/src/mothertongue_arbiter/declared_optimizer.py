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
from typing import Literal, get_args

from mothertongue_arbiter.errors import ArbiterError

Algorithm = Literal["sgd", "adam", "adamw", "lion", "muon"]
Adjustment = Literal["keller", "moonshot", "none"]


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
    adjust: Adjustment = "keller"

    def __post_init__(self) -> None:
        """Refuse what would silently be taken for something else.

        Raises:
            ArbiterError: `parameters` is one string, or a name is unknown.
        """
        patterns: object = self.parameters
        if isinstance(patterns, str):  # its letters would be taken for patterns
            raise ArbiterError(
                f"declared.optimizer: parameters={patterns!r} is one string, a tuple of patterns expected; "
                f"write ({patterns!r},)"
            )
        for field, value, known in (
            ("algorithm", self.algorithm, get_args(Algorithm)),
            ("adjust", self.adjust, get_args(Adjustment)),
        ):
            if value not in known:
                expected = ", ".join(known)
                raise ArbiterError(f"declared.optimizer: {field} {value!r} found, one of {expected} expected")

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
