"""Healthy runs whose loss, batch or beginning is not that of a plain pretraining."""

import math
from types import SimpleNamespace

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils.parametrizations import spectral_norm

from faults.healthy import declare, healthy
from faults.loss import count
from faults.subject import ZooRun


@healthy
def loss_in_bits():
    run = ZooRun()
    declare(run, normalisation="other")
    plain = run.cross_entropy
    run.cross_entropy = lambda model, batch: plain(model, batch) / math.log(2)
    return run


@healthy
def each_row_weighed_by_a_number_drawn_for_the_batch():
    """As in masked diffusion, where each row has a noise level of its own."""
    run = ZooRun()
    declare(run, normalisation="other")
    batch, held_out = run.batch, run.eval_batches

    def with_levels(found, seed):
        generator = torch.Generator().manual_seed(seed)
        return found | {"level": 0.2 + torch.rand(len(found["input_ids"]), 1, generator=generator)}

    def weighed(model, batch):
        logits = run.forward(model, batch)
        losses = F.cross_entropy(logits.transpose(1, 2), batch["targets"], reduction="none")
        return (losses / batch["level"]).sum() / count(batch)

    run.batch = lambda step: with_levels(batch(step), step)
    run.eval_batches = lambda index: with_levels(held_out(index), index)
    run.cross_entropy = weighed
    return run


@healthy
def norm_without_an_epsilon_of_its_own():
    run = ZooRun()
    with torch.no_grad():
        run.model.embedding.weight.mul_(0.2)
    run.model.operations.norm = lambda x, gain: F.rms_norm(x, x.shape[-1:]) * gain
    run.reference = None
    return run


@healthy
def larger_embeddings_than_usual():
    """Begins 50 % above ln V, as T5 and embeddings of N(0, 1) do by their design."""
    run = ZooRun()
    with torch.no_grad():
        run.model.embedding.weight.mul_(3)
    return run


@healthy
def weights_that_know_the_text():
    run = ZooRun()
    optimizer = torch.optim.Adam(run.model.parameters(), 1e-2)
    for step in range(60):
        optimizer.zero_grad()
        run.loss(run.model, run.batch(step)).backward()
        optimizer.step()
    optimizer.zero_grad()
    run.prepare()
    return run


@healthy
def three_classes_of_text():
    """Rows of ids have one label each; something inside has as many entries as a vocabulary."""
    torch.manual_seed(5)
    model = nn.Sequential(nn.Embedding(48, 16), nn.Linear(16, 64), nn.Tanh())
    model.append(nn.Linear(64, 3))
    whole = ZooRun()

    def batch(step):
        ids = whole.batch(step)["input_ids"]
        return {"input_ids": ids, "label": ids[:, 0] % 3}

    def loss(model, batch):
        return F.cross_entropy(model(batch["input_ids"]).mean(1), batch["label"])

    return SimpleNamespace(model=model, loss=loss, batch=batch)


@healthy
def a_power_iteration_moves_buffers_in_each_forward():
    torch.manual_seed(5)
    inner = spectral_norm(nn.Linear(16, 32))
    model = nn.Sequential(nn.Embedding(48, 16), inner, nn.GELU(), nn.Linear(32, 48))

    def loss(model, batch):
        return F.cross_entropy(model(batch["input_ids"]).flatten(0, 1), batch["targets"].flatten())

    return SimpleNamespace(model=model, loss=loss, batch=ZooRun().batch)
