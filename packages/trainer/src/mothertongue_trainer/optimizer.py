"""The optimizer: Muon for the matrices of the blocks, AdamW for embeddings, head and norms.

Which parameter gets which rule is one table (`parameter_table`). The optimizer is made from it, so what is
printed is what is done.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.optim.adamw import adamw

from mothertongue_trainer.model import Qwen3
from mothertongue_trainer.recipe import OptimizerConfig

# Coefficients of the quintic iteration, tuned for a steep start: singular values end near 1, not at 1
# (Keller Jordan, "Muon", 2024; the defaults of torch.optim.Muon).
NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)
NEWTON_SCHULZ_STEPS = 5


@dataclass(frozen=True, kw_only=True)
class ParameterRow:
    """How one parameter is trained."""

    name: str
    shape: tuple[int, ...]
    group: Literal["matrix", "head", "embedding", "norm"]
    rule: Literal["muon", "adamw"]
    learning_rate: float  # peak
    weight_decay: float

    @property
    def count(self) -> int:
        return torch.Size(self.shape).numel()


def parameter_table(model: nn.Module, config: OptimizerConfig) -> tuple[ParameterRow, ...]:
    """Return one row for each trainable parameter of `model`, a tied one once."""
    return tuple(
        _row(name, tuple(parameter.shape), config)
        for name, parameter in model.named_parameters()
        if parameter.requires_grad
    )


def _row(name: str, shape: tuple[int, ...], config: OptimizerConfig) -> ParameterRow:
    muon, adamw_rate = config.muon_learning_rate, config.adamw_learning_rate
    group: Literal["matrix", "head", "embedding", "norm"]
    rule: Literal["muon", "adamw"] = "adamw"
    rate, decay = adamw_rate, 0.0
    if len(shape) != 2:
        group = "norm"
    elif "embed_tokens" in name:
        group = "embedding"
    elif "lm_head" in name:
        group, decay = "head", config.adamw_weight_decay
    else:
        group, rule, rate, decay = "matrix", "muon", muon, config.muon_weight_decay
    return ParameterRow(
        name=name, shape=shape, group=group, rule=rule, learning_rate=rate, weight_decay=decay
    )


def build_optimizer(model: Qwen3, config: OptimizerConfig) -> MuonAdamW:
    """Return the optimizer of `model`, with one parameter group for each group of `parameter_table`."""
    named = dict(model.named_parameters())
    rows: dict[str, list[ParameterRow]] = defaultdict(list)
    for row in parameter_table(model, config):
        rows[row.group].append(row)
    groups = [
        {
            "group": group,
            "rule": members[0].rule,
            "params": [named.pop(row.name) for row in members],
            "lr": members[0].learning_rate,
            "peak_lr": members[0].learning_rate,
            "weight_decay": members[0].weight_decay,
        }
        for group, members in rows.items()
    ]
    assert not any(parameter.requires_grad for parameter in named.values()), f"not optimized: {list(named)}"
    return MuonAdamW(groups, config, orthogonal_dtype=model.compute_dtype)


class MuonAdamW(torch.optim.Optimizer):
    """Muon or AdamW for each parameter group, as its `rule` says; weight decay is decoupled in both.

    Muon keeps `momentum` for each parameter, AdamW `step`, `exp_avg` and `exp_avg_sq`. `orthogonal_dtype` is
    the precision of the Newton-Schulz iteration, for which bfloat16 is enough.
    """

    def __init__(
        self, groups: list[dict[str, Any]], config: OptimizerConfig, *, orthogonal_dtype: torch.dtype
    ) -> None:
        defaults = {"momentum": config.muon_momentum, "betas": config.adamw_betas, "eps": config.adamw_eps}
        super().__init__(groups, defaults)
        self.orthogonal_dtype = orthogonal_dtype

    def scale_learning_rates(self, factor: float) -> None:
        """Set every learning rate to `factor` times its peak."""
        for group in self.param_groups:
            group["lr"] = group["peak_lr"] * factor

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Update every parameter that has a gradient."""
        assert closure is None, "the loss is not evaluated again"
        for group in self.param_groups:
            parameters = [parameter for parameter in group["params"] if parameter.grad is not None]
            rule = self._muon if group["rule"] == "muon" else self._adamw
            rule(parameters, group)

    def _muon(self, parameters: list[Tensor], group: dict[str, Any]) -> None:
        """Step along the nearest semi-orthogonal matrix to the Nesterov momentum."""
        stacks: dict[tuple[int, int], list[tuple[Tensor, Tensor]]] = defaultdict(list)
        for parameter in parameters:
            assert parameter.grad is not None
            momentum = self.state[parameter].setdefault("momentum", torch.zeros_like(parameter))
            momentum.lerp_(parameter.grad, 1 - group["momentum"])
            update = parameter.grad.lerp(momentum, group["momentum"])
            rows, columns = parameter.shape
            wide = update if rows <= columns else update.T
            stacks[wide.shape[0], wide.shape[1]].append((parameter, wide))
        for pairs in stacks.values():
            stacked, wides = zip(*pairs, strict=True)
            directions = orthogonalize(torch.stack(wides).to(self.orthogonal_dtype))
            for parameter, direction in zip(stacked, directions, strict=True):
                rows, columns = parameter.shape
                # A tall matrix has more outputs than directions: keep the step of each output as large.
                rate = group["lr"] * max(1.0, rows / columns) ** 0.5
                parameter.mul_(1 - group["lr"] * group["weight_decay"])
                parameter.add_(direction if rows <= columns else direction.T, alpha=-rate)

    def _adamw(self, parameters: list[Tensor], group: dict[str, Any]) -> None:
        for parameter in parameters:
            if parameter not in self.state:
                self.state[parameter] = {
                    "step": torch.zeros((), device=parameter.device),
                    "exp_avg": torch.zeros_like(parameter),
                    "exp_avg_sq": torch.zeros_like(parameter),
                }
        states = [self.state[parameter] for parameter in parameters]
        beta1, beta2 = group["betas"]
        adamw(
            parameters,
            [parameter.grad for parameter in parameters if parameter.grad is not None],
            [state["exp_avg"] for state in states],
            [state["exp_avg_sq"] for state in states],
            [],
            [state["step"] for state in states],
            fused=True,
            amsgrad=False,
            beta1=beta1,
            beta2=beta2,
            lr=group["lr"],
            weight_decay=group["weight_decay"],
            eps=group["eps"],
            maximize=False,
        )


def orthogonalize(matrices: Tensor) -> Tensor:
    """Return `matrices` (n, rows, columns), rows <= columns, with every singular value moved near 1.

    One batched Newton-Schulz iteration serves the whole stack: few large products, not many small ones.
    """
    a, b, c = NEWTON_SCHULZ
    x: Tensor = matrices / matrices.norm(dim=(1, 2), keepdim=True).clamp(min=1e-7)
    for _ in range(NEWTON_SCHULZ_STEPS):
        gram = x @ x.mT
        # baddbmm with factors would fuse these lines, and is slow in bfloat16 on a CPU.
        x = a * x + (b * gram + c * (gram @ gram)) @ x
    return x
