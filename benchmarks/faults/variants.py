"""Healthy adapters, losses, data layouts and attention variants, which must not alarm either."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from faults.fault import replaced_backward
from faults.healthy import declare, healthy, prepared, undecayed
from faults.loss import sum_of_cross_entropy
from faults.model import HEADS, WIDTH, causal_mask
from faults.subject import ZooRun
from mothertongue_arbiter import Declared


class LowRank(nn.Module):
    def __init__(self, inner: nn.Linear) -> None:
        super().__init__()
        self.inner = inner.requires_grad_(False)
        generator = torch.Generator().manual_seed(5)
        self.a = nn.Parameter(torch.randn(4, inner.in_features, generator=generator) * 0.1)
        self.b = nn.Parameter(torch.zeros(inner.out_features, 4))

    def forward(self, x):
        return self.inner(x) + x @ self.a.T @ self.b.T


@healthy
def low_rank_adapter_that_starts_at_zero():
    run = ZooRun()
    for block in run.model.blocks:
        block.q = LowRank(block.q)
    declare(run, frozen=("*.inner.weight",))
    run.reference = None
    return prepared(run)


@healthy
def only_adapters_are_trained():
    run = ZooRun()
    run.model.requires_grad_(False)
    for block in run.model.blocks:
        block.q, block.v = LowRank(block.q), LowRank(block.v)
    declare(run, trainable=("*.a", "*.b"))
    run.reference = None
    return prepared(run)


class Bottleneck(nn.Module):
    """An adapter after a frozen projection; its second half starts at zero."""

    def __init__(self, inner: nn.Linear) -> None:
        super().__init__()
        self.inner = inner.requires_grad_(False)
        self.narrow, self.wide = nn.Linear(WIDTH, 4), nn.Linear(4, WIDTH)
        nn.init.zeros_(self.wide.weight)
        nn.init.zeros_(self.wide.bias)

    def forward(self, x):
        y = self.inner(x)
        return y + self.wide(F.gelu(self.narrow(y)))


@healthy
def bottleneck_adapters():
    torch.manual_seed(3)
    run = ZooRun()
    run.model.requires_grad_(False)
    for block in run.model.blocks:
        block.o = Bottleneck(block.o)
    declare(run, trainable=("*.narrow.*", "*.wide.*"), no_weight_decay=("*norm", "*.bias"))
    undecayed(run, "*.bias")
    run.reference = None
    return prepared(run)


@healthy
def sums_instead_of_means():
    run = ZooRun()
    declare(run, normalisation="sum")
    run.cross_entropy = lambda model, batch: sum_of_cross_entropy(run.forward(model, batch), batch["targets"])
    run.accumulate = lambda step, rank: run.loss(run.model, run.batch(step)).backward()
    return run


@healthy
def z_loss():
    run = ZooRun()
    declare(run, normalisation="other")
    plain = run.cross_entropy

    def with_z(model, batch):
        return plain(model, batch) + 1e-4 * run.forward(model, batch).logsumexp(-1).square().mean()

    run.cross_entropy = with_z
    return run


@healthy
def label_smoothing():
    run = ZooRun()
    declare(run, label_smoothing=0.1)
    run.cross_entropy = lambda model, batch: F.cross_entropy(
        run.forward(model, batch).flatten(0, 1), batch["targets"].flatten(), label_smoothing=0.1
    )
    return run


def least() -> Any:
    whole = ZooRun()
    return SimpleNamespace(model=whole.model, loss=whole.loss, batch=whole.batch)


@healthy
def only_what_is_required():
    return least()


@healthy
def only_what_is_required_and_a_declaration_of_next_token_labels():
    run = least()
    run.declared = Declared(vocabulary=48, supervised="some")
    return run


@healthy
def mixture_with_experts_that_nobody_visits():
    return ZooRun(mixture=True)


@healthy
def learned_positions():
    return ZooRun(learned_positions=True)


@healthy
def padded_on_the_right():
    return ZooRun(padding="right")


@healthy
def padded_on_the_left():
    return ZooRun(padding="left")


@healthy
def chat_labels():
    return ZooRun(chat=True)


@healthy
def chat_labels_accumulated():
    return ZooRun(chat=True, accumulation=2)


@healthy
def two_ranks():
    return ZooRun(ranks=2)


@healthy
def two_ranks_that_accumulate():
    return ZooRun(ranks=2, accumulation=2)


@healthy
def documents_as_lists():
    return ZooRun(as_lists=True)


@healthy
def padded_documents_as_lists():
    return ZooRun(as_lists=True, padding="right")


@healthy
def linear_biases_in_place_of_positions():
    run = ZooRun()
    slopes = torch.tensor([2.0 ** -(head + 1) for head in range(HEADS)])[:, None, None]

    def biased(q, k):
        scores = (q @ k.transpose(-1, -2)) * q.shape[-1] ** -0.5
        positions = torch.arange(scores.shape[-1])
        return scores - slopes.to(scores.dtype) * (positions[:, None] - positions[None, :]).abs()

    run.model.operations.rope = lambda x, angle: x
    run.model.operations.score = biased
    run.reference = None
    return run


@healthy
def two_seeds_of_the_same_program():
    return ZooRun(seed=11)


@healthy
def one_document_in_the_batch():
    run = ZooRun()
    batch = run.batch
    run.batch = lambda step: {name: value[:1] for name, value in batch(step).items()}
    run.documents = lambda step, rank: run.batch(step)["documents"]
    run.micro_batches = lambda step, rank: [run.batch(step)]
    return run


def stochastic_depth(share):
    """Leave out `share` of the blocks, in training only."""
    run = ZooRun()
    whole = type(run.model).run_block

    def dropped(block, x, mask, angle):
        if run.model.training and bool(torch.rand(()) < share):
            return x
        return whole(run.model, block, x, mask, angle)

    run.model.run_block = dropped
    declare(run, conditional=("blocks.*",))
    return run


@healthy
def hidden_activations_in_training_only():
    return stochastic_depth(0.3)


@healthy
def learning_with_a_single_group():
    run = ZooRun()
    group = replace(run.declared.optimizer.groups[1], weight_decay=0.0)
    declare(run, optimizer=replace(run.declared.optimizer, groups=(group,)))
    run.optimizer = torch.optim.AdamW(run.model.parameters(), 3e-3, group.betas, weight_decay=0.0)
    return run


@healthy
def zero_initialised_and_accumulated():
    """The branches of a residual begin at zero, as in GPT-2, under dropout."""
    run = ZooRun(accumulation=2, dropout=0.1, learned_positions=True)
    for block in run.model.blocks:
        nn.init.zeros_(block.o.weight)
        nn.init.zeros_(block.down.weight)
    return run


@healthy
def learned_positions_padded_on_the_left():
    return ZooRun(learned_positions=True, padding="left")


@healthy
def blocks_that_are_rarely_left_out():
    """Randomness that two calls seldom show: one block in twenty."""
    return stochastic_depth(0.05)


@healthy
def sliding_window():
    run = ZooRun()

    def window(documents):
        return causal_mask(documents) & torch.ones(documents.shape[1], documents.shape[1]).bool().triu(-4)

    run.model.operations.mask = window
    run.reference = None
    return run


@healthy
def exact_backward_by_hand():
    def backward(g, x):
        s = x.sigmoid()
        return (g * s * (1 + x * (1 - s)),)

    run = ZooRun()
    run.model.operations.gate = replaced_backward(F.silu, backward)
    return run
