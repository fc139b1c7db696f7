import math
from dataclasses import replace

import pytest
import torch
from torch.nn import functional as F
from zoo import ZooRun

from mothertongue_arbiter import Verdict
from mothertongue_arbiter.torch.reference.logits import reference_forward
from mothertongue_arbiter.torch.run.subject import Unavailable

ARCHITECTURE = {
    "model_type": "llama",
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "hidden_size": 32,
    "rms_norm_eps": 1e-6,
    "rope_theta": 100.0,
    "tie_word_embeddings": True,
}


def declared(run=None, **facts):
    run = run or ZooRun()
    run.declared = replace(run.declared, architecture=ARCHITECTURE | facts)
    return run


def answer(exact, run):
    subject = exact(run)
    with subject.stirred():
        return reference_forward(subject)


def test_the_declared_architecture_is_what_was_built(exact):
    assert answer(exact, declared()).verdict == Verdict.PASS


@pytest.mark.parametrize(
    "facts",
    [{"rms_norm_eps": 1e-5}, {"rope_theta": 1e4}, {"rope_pairing": "neighbours"}],
    ids=["another epsilon", "another base", "another pairing"],
)
def test_another_fact_fails(exact, facts):
    assert answer(exact, declared(**facts)).verdict == Verdict.FAIL


def unscaled(operations):
    operations.softmax = lambda scores: (scores * math.sqrt(8)).softmax(-1)


def wrong_heads(operations):
    operations.repeat = lambda x: x.repeat(1, 2, 1, 1)


def another_gate(operations):
    operations.gate = F.gelu


@pytest.mark.parametrize(
    ("spoil", "place"),
    [(unscaled, "blocks.0.o"), (wrong_heads, "blocks.0.o"), (another_gate, "blocks.0.down")],
)
def test_the_first_module_that_differs_is_named(exact, spoil, place):
    run = declared()
    spoil(run.model.operations)
    check = answer(exact, run)
    assert check.verdict == Verdict.FAIL
    assert check.module == place
    assert check.evidence.startswith("logits differ from a plain forward")


def test_a_missing_final_norm_comes_after_the_last_block(exact):
    run = declared()
    norm = run.model.operations.norm
    run.model.operations.norm = lambda x, gain: x if gain is run.model.norm else norm(x, gain)
    assert answer(exact, run).cause == "after blocks.1, the last whose output agrees"


def test_gate_and_up_exchanged_fail(exact):
    run = declared()
    for block in run.model.blocks:
        block.forward = exchanged(block)
    assert answer(exact, run).module == "blocks.0.down"


def exchanged(block):
    """Swap the two modules for the time of a forward: their weights keep their names."""
    forward = block.forward

    def swapped(*inputs):
        block.gate, block.up = block.up, block.gate
        try:
            return forward(*inputs)
        finally:
            block.gate, block.up = block.up, block.gate

    return swapped


def test_a_reference_of_the_run_is_compared_position_by_position(exact):
    run = ZooRun()
    run.reference = lambda model, batch: run.forward(model, batch)
    assert answer(exact, run).verdict == Verdict.PASS

    def elsewhere(model, batch):
        logits = run.forward(model, batch).clone()
        logits[2, 5] += 1e-6
        return logits

    run.reference = elsewhere
    check = answer(exact, run)
    assert check.verdict == Verdict.FAIL
    assert "first in row 2 at 5" in check.evidence


@pytest.mark.parametrize(
    ("architecture", "reason"),
    [
        (None, "no `reference`"),
        ({"model_type": "llama"}, "no num_attention_heads"),
        (ARCHITECTURE | {"num_hidden_layers": 3}, "no parameter is model.layers.2"),
        (ARCHITECTURE | {"num_hidden_layers": 1}, "has no blocks.1"),
        ({"model_type": "nothing"}, "transformers does not build"),
    ],
)
def test_what_cannot_be_built_is_said(exact, architecture, reason):
    run = ZooRun()
    run.declared = replace(run.declared, architecture=architecture)
    with pytest.raises(Unavailable, match=reason):
        answer(exact, run)


def test_dropout_does_not_disturb(exact):
    assert answer(exact, declared(ZooRun(dropout=0.3))).verdict == Verdict.PASS


def test_the_embedding_is_put_back(exact):
    run = declared()
    subject = exact(run)
    before = run.model.embedding.weight.detach().clone()
    reference_forward(subject)
    assert torch.equal(run.model.embedding.weight, before)
