import math
from dataclasses import replace

import pytest
import torch
from torch.nn import functional as F
from zoo import VOCABULARY, ZooRun

from mothertongue_arbiter import Verdict
from mothertongue_arbiter.torch.data.initial_loss import initial_loss
from mothertongue_arbiter.torch.run.subject import Unavailable

SOFT = torch.rand(VOCABULARY, VOCABULARY, generator=torch.Generator().manual_seed(3)).softmax(-1)


def with_loss(loss, run=None, **facts):
    """A run whose loss is `loss(logits, labels)`, both flat."""
    run = run or ZooRun()
    run.declared = replace(run.declared, normalisation="other", **facts)
    run.loss = lambda model, batch: loss(run.forward(model, batch).flatten(0, 1), batch["targets"].flatten())
    return run


def scaled_embedding(factor):
    run = ZooRun()
    run.model.embedding.weight.data.mul_(factor)
    return run


@pytest.mark.parametrize(
    "loss",
    [
        lambda logits, labels: F.cross_entropy(logits, labels) / math.log(2),  # in bits
        lambda logits, labels: F.cross_entropy(logits, labels, reduction="sum"),
        lambda logits, labels: F.cross_entropy(logits / 2, labels),
        lambda logits, labels: F.cross_entropy(logits, labels) + logits.detach().square().mean(),
    ],
)
def test_the_unit_the_weights_and_the_rest_of_a_loss_do_not_count(exact, loss):
    check = initial_loss(exact(with_loss(loss)))
    assert check.verdict == Verdict.PASS
    assert float(check.evidence.split()[0]) == pytest.approx(math.log(VOCABULARY), rel=0.1)
    check = initial_loss(exact(with_loss(loss, scaled_embedding(12))))
    assert check.verdict == Verdict.FAIL
    assert "initialisation" in check.cause


def test_smoothed_labels_are_still_a_cross_entropy(exact):
    run = with_loss(lambda logits, labels: F.cross_entropy(logits, labels, label_smoothing=0.1))
    assert initial_loss(exact(run)).verdict == Verdict.PASS


def test_a_few_heads_of_which_one_is_seen_are_judged_by_that_one(exact):
    run = ZooRun()
    plain = run.loss
    run.loss = lambda model, batch: (
        0.1 * plain(model, batch) + 5 + model.norm.square().mean()  # another head, a penalty
    )
    run.declared = replace(run.declared, normalisation="other")
    assert initial_loss(exact(run)).verdict == Verdict.PASS


@pytest.mark.parametrize(
    "loss",
    [
        lambda logits, labels: F.kl_div(
            logits.log_softmax(-1), SOFT.to(logits.dtype)[labels], reduction="batchmean"
        ),
        lambda logits, labels: F.binary_cross_entropy_with_logits(
            logits[:, 0], (labels % 2).to(logits.dtype)
        ),
        lambda logits, labels: logits.square().mean() + 1,
    ],
)
def test_a_loss_that_is_no_cross_entropy_over_the_vocabulary_is_not_judged(exact, loss):
    with pytest.raises(Unavailable, match="no plain cross-entropy"):
        initial_loss(exact(with_loss(lambda logits, labels: loss(logits, labels.clamp(min=0)))))


def test_a_moderate_initialisation_passes_and_is_told(exact):
    check = initial_loss(exact(scaled_embedding(3)))
    assert 1.1 * math.log(VOCABULARY) < float(check.evidence.split()[0]) < 2.5 * math.log(VOCABULARY)
    assert check.verdict == Verdict.PASS
    assert check.evidence.endswith("; more than a small initialisation gives")


def test_the_initial_loss_may_be_declared(exact):
    run = ZooRun()
    run.declared = replace(run.declared, initial_loss=1.0)
    check = initial_loss(exact(run))
    assert check.verdict == Verdict.FAIL
    assert check.evidence.endswith("1.0000 declared")
    run = scaled_embedding(3)
    run.declared = replace(run.declared, initial_loss=math.log(VOCABULARY))
    assert initial_loss(exact(run)).verdict == Verdict.FAIL


def copying(run):
    batch = run.batch
    run.batch = lambda step: (
        (found := batch(step)) | {"targets": torch.where(found["targets"] >= 0, found["input_ids"], -100)}
    )
    return run


def test_a_model_that_only_has_to_copy_fails(exact):
    check = initial_loss(exact(copying(scaled_embedding(3))))
    assert check.verdict == Verdict.FAIL
    assert "labels visible" in check.cause


def trained(run, steps=60):
    optimizer = torch.optim.Adam(run.model.parameters(), 1e-2)
    for _ in range(steps):
        optimizer.zero_grad()
        run.loss(run.model, run.batch(0)).backward()
        optimizer.step()
    return run


def test_weights_that_know_the_text_are_not_taken_for_visible_labels(exact):
    with pytest.raises(Unavailable, match="know this text already"):
        initial_loss(exact(trained(ZooRun())))
    run = trained(ZooRun())
    run.model.blocks[0].requires_grad_(False)
    with pytest.raises(Unavailable, match="frozen weights may know"):
        initial_loss(exact(run))


def test_a_bias_of_the_frequencies_of_tokens_is_no_visible_label(exact):
    run = ZooRun()
    counts = torch.bincount(run.batch(0)["targets"].clamp(min=0).flatten(), minlength=VOCABULARY)
    bias = (counts + 1e-3).double().log()
    run.model.head.register_forward_hook(lambda module, args, logits: logits + bias.to(logits.dtype))
    check = initial_loss(exact(run))
    assert float(check.evidence.split()[0]) < 0.9 * math.log(VOCABULARY)
    assert check.verdict == Verdict.PASS
    assert "frequencies" in check.evidence
