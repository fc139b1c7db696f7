"""Faults as data: how each is put into a sound run, and which checks have to see it.

Prefixes: candle and burn, defects of those frameworks in torch form; a severed, b wrong, c optimizer,
d labels, e normalisation, f forward.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F
from zoo import (
    END_OF_TEXT,
    HEADS,
    KV_HEADS,
    ROWS,
    ZooRun,
    causal_mask,
    rms_norm,
    rotate,
    sum_of_cross_entropy,
)


@dataclass(frozen=True)
class Fault:
    name: str
    caught_by: tuple[str, ...]  # all of these checks fail
    inject: Callable[[ZooRun], None]
    run: Callable[[], ZooRun] = ZooRun


FAULTS: list[Fault] = []


def fault(*caught_by: str, run: Callable[[], ZooRun] = ZooRun) -> Callable[[Callable], Callable]:
    def register(inject: Callable[[ZooRun], None]) -> Callable[[ZooRun], None]:
        FAULTS.append(Fault(inject.__name__, caught_by, inject, run))
        return inject

    return register


def replaced_backward(forward: Callable, backward: Callable) -> Callable:
    """An operation whose backward is `backward(gradient, *inputs)`, one gradient for each tensor."""

    class Replaced(torch.autograd.Function):
        @staticmethod
        def forward(ctx, *inputs):
            ctx.save_for_backward(*inputs)
            return forward(*inputs)

        @staticmethod
        def backward(ctx, gradient):
            return backward(gradient, *ctx.saved_tensors)

    return Replaced.apply


def altered_gradient(forward: Callable, alter: Callable) -> Callable:
    """An operation whose gradients are right, and then altered: `alter(gradient of the first input)`."""

    def backward(gradient, *inputs):
        with torch.enable_grad():
            inputs = [value.detach().requires_grad_(value.is_floating_point()) for value in inputs]
            wanted = [value for value in inputs if value.requires_grad]
            found = list(torch.autograd.grad(forward(*inputs), wanted, gradient))
        found[0] = alter(found[0])
        return tuple(found.pop(0) if value.requires_grad else None for value in inputs)

    return replaced_backward(forward, backward)


# Candle: the gradient is absent.


@fault("gradient presence")
def candle1_rms_norm_without_backward(run):
    run.model.operations.norm = lambda x, gain: rms_norm(x, gain).detach()


@fault("gradient presence")
def candle2_layer_norm_without_backward(run):
    run.model.operations.norm = lambda x, gain: F.layer_norm(x, x.shape[-1:], gain).detach()


@fault("gradient presence")
def candle3_softmax_without_backward(run):
    run.model.operations.softmax = lambda scores: scores.softmax(-1).detach()


@fault("gradient presence")
def candle4_rope_without_backward(run):
    run.model.operations.rope = lambda x, angle: rotate(x, angle).detach()


@fault("gradient handed over")
def candle5_optimizer_skips_what_has_no_gradient(run):
    accumulate = run.accumulate

    def losing(step):
        accumulate(step)
        run.model.blocks[0].gate.weight.grad = None  # AdamW passes over it in silence

    run.accumulate = losing


@fault("movement")
def candle6_bfloat16_weights_without_master(run):
    run.model.to(torch.bfloat16)
    run.make_optimizer()


# Burn: the gradient is there and wrong.


@fault("gradient values")
def burn1_gate_backward_forgets_a_term(run):
    run.model.operations.gate = replaced_backward(F.silu, lambda g, x: (g * x.sigmoid(),))


@fault("gradient values")
def burn3_one_head_scaled(run):
    scale = torch.tensor([0.5] + [1.0] * (HEADS - 1)).view(1, HEADS, 1, 1)
    run.model.operations.heads_out = altered_gradient(lambda x: x * 1, lambda g: g * scale)


@fault("independent rows")
def burn4_later_rows_wrong(run):
    run.model.operations.block_out = lambda x: torch.cat([x[:1], x[1:] + 1e-2 * x[:-1]])


@fault("gradient values")
def burn7_scatter_overwrites(run):
    def backward(gradient, ids, weight):
        found = torch.zeros_like(weight)
        found[ids.flatten()] = gradient.flatten(0, 1)  # the last of several equal tokens wins
        return None, found

    run.model.operations.embed = replaced_backward(F.embedding, backward)


# Severed, in other ways.


@fault("gradient presence", run=lambda: ZooRun(tied=False))
def a5_detach_between_layers(run):
    run.model.operations.between_layers = lambda x: x.detach()


@fault("gradient presence")
def a7_norm_gain_without_gradient(run):
    run.model.operations.norm = lambda x, gain: rms_norm(x, gain.detach())


@fault("gradient presence", "optimizer coverage")
def a8_frozen_by_mistake(run):
    run.model.blocks[1].requires_grad_(False)


@fault("finiteness")
def a9_nan_from_the_untaken_branch(run):
    run.model.operations.block_out = lambda x: torch.where(x.abs() >= 0, x, (x - x).sqrt())


# Wrong, in other ways.


@fault("gradient values")
def b1_grouped_heads_drop_the_sum(run):
    group = HEADS // KV_HEADS
    run.model.operations.repeat = replaced_backward(
        lambda x: x.repeat_interleave(group, dim=1), lambda g, x: (g[:, ::group],)
    )


@fault("gradient values")
def b2_rope_backward_with_the_wrong_sign(run):
    run.model.operations.rope = replaced_backward(rotate, lambda g, x, angle: (rotate(g, angle), None))


@fault("gradient values")
def b3_rms_norm_backward_without_projection(run):
    def backward(g, x, gain):
        scale = torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6)
        return g * gain * scale, (g * x * scale).flatten(0, -2).sum(0)

    run.model.operations.norm = replaced_backward(rms_norm, backward)


@fault("gradient values")
def b6_weight_gradients_halved(run):
    for block in run.model.blocks:
        block.up.weight.register_hook(lambda g: g * 0.5)


@fault("dead elements")
def b8_half_of_the_rows_dead(run):
    weight = run.model.blocks[0].down.weight
    alive = (torch.arange(len(weight)) % 2 == 0)[:, None]
    weight.register_hook(lambda g: g * alive)


@fault("gradient values")
def b11_gradient_of_the_step_before(run):
    last = {}

    def late(g):
        given = last.get("g", torch.zeros_like(g)).to(g.dtype)
        last["g"] = g.detach().clone()
        return given

    run.model.blocks[0].v.weight.register_hook(late)


@fault("own precision")
def b12_wrong_only_in_the_training_precision(run):
    run.model.operations.gate = replaced_backward(
        F.silu,
        lambda g, x: (g * x.sigmoid() * (1 + (x * (1 - x.sigmoid()) if x.dtype == torch.float64 else 0)),),
    )


@fault("same step twice")
def b13_every_second_backward_loses_a_row(run):
    calls = []

    def racing(g):
        calls.append(1)
        g = g.clone()
        g[0] *= len(calls) % 2
        return g

    run.model.blocks[1].up.weight.register_hook(racing)


# The optimizer.


@fault("optimizer coverage", "movement")
def c1_layer_missing_from_the_optimizer(run):
    missing = {id(parameter) for parameter in run.model.blocks[0].parameters()}
    for group in run.optimizer.param_groups:
        group["params"] = [parameter for parameter in group["params"] if id(parameter) not in missing]


@fault("optimizer coverage")
def c2_optimizer_made_before_the_final_tensors(run):
    block = run.model.blocks[0]
    block.q.weight = torch.nn.Parameter(block.q.weight.detach().clone())


@fault("optimizer coverage")
def c3_norms_decayed(run):
    run.optimizer = torch.optim.AdamW(run.model.parameters(), lr=1e-3, weight_decay=0.1)


@fault("gradient handed over")
def c7_zero_grad_missing(run):
    run.optimizer.zero_grad = lambda: None


@fault("tied weights")
def c12_tie_lost(run):
    run.model.head.weight = torch.nn.Parameter(run.model.embedding.weight.detach().clone())
    run.make_optimizer()


# Labels and masks.


def with_targets(run, change):
    """Let the program train on changed targets, while its author believes in the right ones."""
    batch = run.batch
    run.batch = lambda step: (found := batch(step)) | {"targets": change(found["targets"].clone())}


@fault("labels")
def d1_double_shift(run):
    def loss(model, batch):
        logits, targets = run.forward(model, batch)[:, :-1], batch["targets"][:, 1:]
        return sum_of_cross_entropy(logits, targets) / (targets >= 0).sum()

    run.loss = loss


@fault("causality")
def d3_mask_off_by_one(run):
    def leaking(documents):
        ahead = torch.ones(documents.shape[1], documents.shape[1], dtype=torch.bool).tril(1)
        return ahead & (documents[:, :, None] == documents[:, None, :])[:, None]

    run.model.operations.mask = leaking


@fault("labels")
def d6_end_of_text_masked(run):
    with_targets(run, lambda targets: targets.masked_fill(targets == END_OF_TEXT, -100))


@fault("isolated documents")
def d7_attention_crosses_documents(run):
    run.model.operations.mask = lambda documents: causal_mask(torch.zeros_like(documents))


# Normalisation and accumulation.


@fault("gradient handed over", "step weights", run=lambda: ZooRun(accumulation=2))
def e1_mean_of_micro_batch_means(run):
    def accumulate(step):
        micro_batches = run.micro_batches(step, 0)
        for part in micro_batches:
            (run.loss(run.model, part) / len(micro_batches)).backward()

    with_targets(run, uneven)
    run.accumulate = accumulate
    believed = run.targets
    run.targets = lambda batch: uneven(believed(batch))


def uneven(targets: Tensor) -> Tensor:
    """Let the first row have few labels, as a short answer in a chat."""
    targets[0, 4:] = -100
    return targets


@fault("step weights", run=lambda: ZooRun(accumulation=2))
def e2_micro_batch_dropped(run):
    micro_batches = run.micro_batches
    run.micro_batches = lambda step, rank: micro_batches(step, rank)[:1]


@fault("loss weights")
def e3_normalised_twice(run):
    loss = run.loss
    run.loss = lambda model, batch: loss(model, batch) / ROWS


@fault("loss weights")
def e4_mean_of_row_means(run):
    def loss(model, batch):
        logits, targets = run.forward(model, batch), batch["targets"]
        rows = [sum_of_cross_entropy(logits[i : i + 1], targets[i : i + 1]) for i in range(ROWS)]
        return sum(row / (targets[i] >= 0).sum() for i, row in enumerate(rows)) / ROWS

    with_targets(run, uneven)
    believed = run.targets
    run.targets = lambda batch: uneven(believed(batch))
    run.loss = loss


# The forward pass.


@fault("labels")
def f6_rows_truncated(run):
    def loss(model, batch):
        half = {name: value[: ROWS // 2] for name, value in batch.items()}
        logits = run.forward(model, batch)[: ROWS // 2]
        return sum_of_cross_entropy(logits, half["targets"]) / (half["targets"] >= 0).sum()

    run.loss = loss


@fault("initial loss")
def f7_initialised_too_large(run):
    with torch.no_grad():
        run.model.embedding.weight.mul_(12)
