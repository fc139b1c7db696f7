"""Healthy runs that look suspicious to a naive check, and must not alarm."""

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint
from zoo import LEARNING_RATE, VOCABULARY, ZooRun

from mothertongue_arbiter import Declared

HEALTHY: dict[str, Callable[[], ZooRun]] = {}


def healthy(make: Callable[[], ZooRun]) -> Callable[[], ZooRun]:
    HEALTHY[make.__name__] = make
    return make


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
    run.declared = replace(run.declared, frozen=("blocks.0.*",))
    run.model.blocks[0].requires_grad_(False)
    run.make_optimizer()
    for group in run.optimizer.param_groups:
        group["params"] = [parameter for parameter in group["params"] if parameter.requires_grad]
    return run


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
def warm_up_from_zero():
    run = ZooRun()
    run.declared = replace(run.declared, warmup_steps=10)
    run.learning_rate = lambda step: LEARNING_RATE * step / 10
    return run


@healthy
def first_steps_at_learning_rate_zero():
    run = ZooRun()
    run.declared = replace(run.declared, warmup_steps=10)
    run.learning_rate = lambda step: 0.0
    return run


@healthy
def bfloat16_autocast():
    run = ZooRun()
    forward = run.forward

    def autocast(model, batch):
        with torch.autocast("cpu", torch.bfloat16):
            return forward(model, batch)

    run.forward = autocast
    loss = run.loss
    run.loss = lambda model, batch: loss(model, batch).float()
    return run


@healthy
def relu_with_kinks():
    run = ZooRun()
    run.model.operations.gate = F.relu
    return run


@healthy
def low_rank_adapter_that_starts_at_zero():
    run = ZooRun()
    for block in run.model.blocks:
        block.q = LowRank(block.q)
    run.declared = replace(run.declared, frozen=("*.inner.weight",))
    run.make_optimizer()
    for group in run.optimizer.param_groups:
        group["params"] = [parameter for parameter in group["params"] if parameter.requires_grad]
    return run


class LowRank(nn.Module):
    def __init__(self, inner: nn.Linear) -> None:
        super().__init__()
        self.inner = inner.requires_grad_(False)
        self.a = nn.Parameter(torch.randn(4, inner.in_features) * 0.1)
        self.b = nn.Parameter(torch.zeros(inner.out_features, 4))

    def forward(self, x):
        return self.inner(x) + x @ self.a.T @ self.b.T


@healthy
def sums_instead_of_means():
    run = ZooRun()
    run.declared = replace(run.declared, normalisation="sum")
    loss = run.loss
    run.loss = lambda model, batch: loss(model, batch) * (batch["targets"] >= 0).sum()
    return run


@healthy
def z_loss():
    run = ZooRun()
    loss = run.loss
    run.loss = lambda model, batch: (
        loss(model, batch) + 1e-4 * run.forward(model, batch).logsumexp(-1).square().mean()
    )
    return run


@healthy
def label_smoothing():
    run = ZooRun()

    def smoothed(model, batch):
        logits, targets = run.forward(model, batch), batch["targets"]
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), label_smoothing=0.1)

    run.loss = smoothed
    return run


@healthy
def only_what_is_required():
    class Least:
        def __init__(self):
            whole = ZooRun()
            self.model, self.loss, self.batch = whole.model, whole.loss, whole.batch

    return Least()


@healthy
def only_what_is_required_and_a_declaration_of_next_token_labels():
    run = only_what_is_required()
    run.declared = Declared(vocabulary=VOCABULARY, supervised="some")
    return run
