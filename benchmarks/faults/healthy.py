"""Healthy runs that look suspicious to a naive check, and must not alarm."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from faults.loss import sum_of_cross_entropy
from faults.subject import ZooRun

Maker = Callable[[], Any]
HEALTHY: dict[str, Maker] = {}


def healthy(make: Maker) -> Maker:
    """Register a maker; what it makes rebuilds itself with it."""

    def made() -> Any:
        run = make()
        run.origin = made
        return run

    HEALTHY[make.__name__] = made
    return made


def declare(run: ZooRun, **facts: Any) -> None:
    run.declared = replace(run.declared, **facts)


def undecayed(run: ZooRun, *names: str) -> None:
    """Believe what make_optimizer does with every vector: it is not decayed."""
    believed = run.declared.optimizer
    first = replace(believed.groups[0], parameters=(*believed.groups[0].parameters, *names))
    declare(run, optimizer=replace(believed, groups=(first, *believed.groups[1:])))


def prepared(run: ZooRun) -> ZooRun:
    """Let every rank have the model as it is now, and its optimizer."""
    run.models = [run.model]
    run.prepare()
    return run


@healthy
def plain():
    return ZooRun()


@healthy
def zero_initialised_projections():
    run = ZooRun()
    for block in run.model.blocks:  # q, k, v, gate and up get no gradient at first
        nn.init.zeros_(block.o.weight)
        nn.init.zeros_(block.down.weight)
    return run


@healthy
def zero_initialised_head():
    run = ZooRun(tied=False)
    nn.init.zeros_(run.model.head.weight)
    return run


@healthy
def frozen_by_declaration():
    run = ZooRun()
    declare(run, frozen=("blocks.0.*",))
    run.model.blocks[0].requires_grad_(False)
    return prepared(run)


@healthy
def dropout():
    return ZooRun(dropout=0.2)


@healthy
def accumulation():
    return ZooRun(accumulation=4)


@healthy
def untied():  # the rows of tokens that do not occur have no gradient
    return ZooRun(tied=False)


@healthy
def gradient_checkpointing():
    run = ZooRun()
    run.model.run_block = lambda block, *inputs: checkpoint(block, *inputs, use_reentrant=False)
    return run


@healthy
def gradient_checkpointing_with_dropout():
    run = ZooRun(dropout=0.2)
    run.model.run_block = lambda block, *inputs: checkpoint(block, *inputs, use_reentrant=False)
    return run


def with_rate(run: ZooRun, rate: Callable[[int], float], warmup_steps: int) -> ZooRun:
    run.learning_rate = rate
    believed = run.declared.optimizer
    groups = tuple(replace(group, learning_rate=rate) for group in believed.groups)
    declare(run, warmup_steps=warmup_steps, optimizer=replace(believed, groups=groups))
    return run


@healthy
def warm_up_from_zero():
    return with_rate(ZooRun(), lambda step: 1e-3 * step / 10, 10)


@healthy
def first_steps_at_learning_rate_zero():
    return with_rate(ZooRun(), lambda step: 0.0, 10)


@healthy
def bfloat16_autocast():
    run = ZooRun()
    forward = run.forward

    def autocast(model, batch):
        with torch.autocast("cpu", torch.bfloat16):
            return forward(model, batch)

    run.forward = autocast
    run.cross_entropy = lambda model, batch: (
        sum_of_cross_entropy(run.forward(model, batch).float(), batch["targets"])
        / (batch["targets"] >= 0).sum()
    )
    return run


@healthy
def relu_with_kinks():
    run = ZooRun()
    run.model.operations.gate = F.relu
    run.reference = None
    return run


@healthy
def squared_relu():
    run = ZooRun()
    run.model.operations.gate = lambda x: F.relu(x).square()
    run.reference = None
    return run


@healthy
def checkpoint_of_live_tensors():
    """What `torch.save` gets is often no copy."""
    run = ZooRun()
    run.checkpoint = lambda: {
        "models": [model.state_dict() for model in run.replicas],
        "optimizers": [optimizer.state_dict() for optimizer in run.optimizers()],
        "ema": run.ema,
        "steps_taken": run.steps_taken,
        "random": torch.get_rng_state(),
    }
    return run


@healthy
def same_order_in_each_epoch():
    run = ZooRun()
    order = run.order
    run.order = lambda epoch: order(0)
    return run
