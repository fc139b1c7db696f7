"""Family e: the right labels, weighed wrongly."""

from dataclasses import replace

import torch
from torch.nn import functional as F

from faults.fault import altered_gradient, fault, sound, with_targets
from faults.loss import count, sum_of_cross_entropy
from faults.subject import ZooRun
from faults.text import ROWS
from mothertongue_arbiter.declared_optimizer import Group, Optimizer


def uneven(targets):
    """Let the first row have few labels, as a short answer in a chat."""
    targets[0, 4:] = -100
    return targets


def learn_unevenly(run):
    """The author knows that the first row has few labels."""
    with_targets(run, uneven)
    believed = run.targets
    run.targets = lambda batch: uneven(believed(batch))


def mean_of_means(run):
    def accumulate(step, rank):
        parts = run.micro_batches(step, rank)
        for part in parts:
            (run.loss(run.replicas[rank], part) / len(parts)).backward()

    run.accumulate = accumulate


@fault("transformers#24725", "gradient handed over", "step weights", sound=sound(accumulation=2))
def e1_mean_of_micro_batch_means(run):
    learn_unevenly(run)
    mean_of_means(run)


@fault("e: a micro-batch is lost", "step weights", sound=sound(accumulation=2))
def e2_micro_batch_dropped(run):
    micro_batches = run.micro_batches
    run.micro_batches = lambda step, rank: micro_batches(step, rank)[:1]


@fault("transformers#35203", "loss weights")
def e3_normalised_twice(run):
    loss = run.loss
    run.loss = lambda model, batch: loss(model, batch) / ROWS


@fault("e: mean of rows", "loss weights")
def e4_mean_of_row_means(run):
    def loss(model, batch):
        logits, targets = run.forward(model, batch), batch["targets"]
        rows = [sum_of_cross_entropy(logits[i : i + 1], targets[i : i + 1]) for i in range(len(targets))]
        return sum(row / (targets[i] >= 0).sum() for i, row in enumerate(rows)) / len(targets)

    learn_unevenly(run)
    run.loss = loss


@fault("f6_loss_rows_truncated", "labels")
def e5_rows_truncated(run):
    def loss(model, batch):
        half = {name: value[: len(value) // 2] for name, value in batch.items()}
        logits = run.forward(model, batch)[: len(batch["targets"]) // 2]
        return sum_of_cross_entropy(logits, half["targets"]) / count(half)

    run.loss = loss


@fault("olmo#634", "gradient handed over")
def e6_z_loss_over_instances(run):
    """What is handed over has a z-loss over tokens; what is trained has one over rows."""

    def z_loss(model, batch):
        return 1e-2 * run.forward(model, batch).logsumexp(-1).square().sum()

    def accumulate(step, rank):
        batch = run.batch(step)
        (run.cross_entropy(run.model, batch) + z_loss(run.model, batch) / ROWS).backward()

    run.declared = run.declared.__class__(**vars(run.declared) | {"normalisation": "other"})
    run.loss = lambda model, batch: (
        run.cross_entropy(model, batch) + z_loss(model, batch) / batch["input_ids"].numel()
    )
    run.accumulate = accumulate


@fault("e: divided by all positions", "loss weights")
def e7_masked_positions_counted(run):
    run.cross_entropy = lambda model, batch: (
        sum_of_cross_entropy(run.forward(model, batch), batch["targets"]) / batch["targets"].numel()
    )


def plain_descent(dropout=0.0):
    """SGD without clipping: the size of a gradient matters, which Adam or a bound would hide."""
    run = ZooRun(accumulation=4, dropout=dropout)
    run.optimizer = torch.optim.SGD(run.model.parameters(), 0.1)
    run.learning_rate = lambda step: 0.1
    run.clip = lambda model: None
    declared = Optimizer(groups=(Group(parameters=("*",), algorithm="sgd", learning_rate=0.1),))
    run.declared = replace(run.declared, optimizer=declared)
    return run


@fault("not divided by the number of micro-batches", "gradient handed over", sound=plain_descent)
def e8_micro_batches_summed(run):
    def accumulate(step, rank):
        for part in run.micro_batches(step, rank):
            run.loss(run.model, part).backward()

    run.accumulate = accumulate


@fault("liger#1298, forward and backward", "loss weights")
def e9_every_token_has_the_weight_of_its_row(run):
    def cross_entropy(model, batch):
        logits, targets = run.forward(model, batch), batch["targets"]
        each = F.cross_entropy(logits.mT, targets, ignore_index=-100, reduction="none")
        weights = torch.arange(1, len(targets) + 1)[:, None] * (targets >= 0)
        return (each * weights).sum() / weights.sum()

    run.cross_entropy = cross_entropy


@fault("e: class weights", "loss weights")
def e10_rare_tokens_weigh_more(run):
    def cross_entropy(model, batch):
        targets = batch["targets"]
        weights = 1 + (torch.arange(run.declared.vocabulary) % 3).to(model.head.weight.dtype)
        return F.cross_entropy(
            run.forward(model, batch).flatten(0, 1), targets.flatten(), weight=weights, ignore_index=-100
        )

    run.cross_entropy = cross_entropy


@fault("e: undeclared label smoothing")
def e11_smoothed_without_saying_so(run):
    run.cross_entropy = lambda model, batch: F.cross_entropy(
        run.forward(model, batch).flatten(0, 1),
        batch["targets"].flatten(),
        ignore_index=-100,
        label_smoothing=0.1,
    )


@fault("e: temperature in the loss")
def e12_temperature_left_in_the_loss(run):
    def cross_entropy(model, batch):
        logits = run.forward(model, batch) / 2
        return sum_of_cross_entropy(logits, batch["targets"]) / count(batch)

    run.cross_entropy = cross_entropy


@fault("grad_race", "gradient handed over", sound=sound(accumulation=2))
def e13_one_micro_batch_lost_for_one_tensor(run):
    accumulate = run.accumulate

    def racing(step, rank):
        accumulate(step, rank)
        if step % 2:  # every other step
            weight = run.model.blocks[0].up.weight
            part = run.micro_batches(step, rank)[0]
            (lost,) = torch.autograd.grad(run.loss(run.model, part), weight)
            weight.grad -= lost / 2

    run.accumulate = racing


@fault("torchtune: scaled backward", "gradient values")
def e14_logits_scaled_backward_only(run):
    """A fused loss that multiplies its gradient by the number of rows."""
    run.model.operations.logits_out = altered_gradient(lambda x: x * 1, lambda g: g * ROWS)
