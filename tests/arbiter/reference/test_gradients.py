from dataclasses import replace

import pytest
import torch
from faults.fault import replaced_backward
from torch.nn import functional as F
from zoo import ZooRun

from mothertongue_arbiter import Verdict
from mothertongue_arbiter.torch.reference.gradients import reference_gradients
from mothertongue_arbiter.torch.run.subject import Unavailable


def referenced(**options):
    """The reference is another run's model with the same operations, none of which is spoiled."""
    run = ZooRun(**options)
    sound = ZooRun(**options)

    def reference(model, batch):
        spoiled, run.model.operations.gate = run.model.operations.gate, sound.model.operations.gate
        try:
            return model(batch["input_ids"], batch["documents"])
        finally:
            run.model.operations.gate = spoiled

    run.reference = reference
    return run


def test_a_sound_run_has_the_gradient_of_its_reference(exact):
    check = reference_gradients(exact(referenced()))
    assert check.verdict == Verdict.PASS
    assert "`reference`" in check.evidence


def test_a_wrong_fused_backward_fails(exact):
    run = referenced()
    run.model.operations.gate = replaced_backward(F.silu, lambda g, x: (g * x.sigmoid(),))
    check = reference_gradients(exact(run))
    assert check.verdict == Verdict.FAIL
    assert check.findings[0].subject == "blocks.1.gate.weight"


def test_a_declared_architecture_is_a_reference_too(exact):
    run = ZooRun()
    architecture = {
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "hidden_size": 32,
        "rms_norm_eps": 1e-6,
        "rope_theta": 100.0,
        "tie_word_embeddings": True,
    }
    run.declared = replace(run.declared, architecture=architecture)
    check = reference_gradients(exact(run))
    assert check.verdict == Verdict.PASS
    assert "a plain forward" in check.evidence


def test_declared_label_smoothing_is_part_of_the_loss(exact):
    run = referenced()
    run.declared = replace(run.declared, label_smoothing=0.1)
    run.loss = lambda model, batch: F.cross_entropy(
        run.forward(model, batch).flatten(0, 1), batch["targets"].flatten(), label_smoothing=0.1
    )
    assert reference_gradients(exact(run)).verdict == Verdict.PASS


def test_another_loss_is_not_compared(exact):
    run = referenced()
    loss = run.loss
    run.loss = lambda model, batch: loss(model, batch) + 1e-3 * model.norm.square().sum()
    with pytest.raises(Unavailable, match="plain cross-entropy"):
        reference_gradients(exact(run))


def test_dropout_cannot_be_compared(exact):
    with pytest.raises(Unavailable, match="dropout"):
        reference_gradients(exact(referenced(dropout=0.2)))


def one_position_to_choose_from(operations):
    """Each position sees only itself: q and k have no influence, and a gradient of zero."""
    mask = operations.mask
    operations.mask = lambda documents: mask(documents) & torch.eye(documents.shape[1], dtype=torch.bool)


def divided_by_its_sum(scores):
    weights = scores.exp()
    return weights / weights.sum(-1, keepdim=True)


def test_rounding_around_a_gradient_of_zero_is_no_difference(exact):
    run = referenced()
    one_position_to_choose_from(run.model.operations)
    reference, softmax = run.reference, run.model.operations.softmax

    def otherwise(model, batch):
        model.operations.softmax = divided_by_its_sum
        try:
            return reference(model, batch)
        finally:
            model.operations.softmax = softmax

    run.reference = otherwise
    check = reference_gradients(exact(run))
    assert check.verdict == Verdict.PASS, check.evidence
