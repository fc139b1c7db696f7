import pytest
import torch
from torch import nn
from zoo import TOKENS, WIDTH, ZooRun, causal_mask

from mothertongue_arbiter import Verdict
from mothertongue_arbiter.torch.forward.packing import later_documents, packing_independence
from mothertongue_arbiter.torch.run.subject import Unavailable


def answer(exact, run):
    subject = exact(run)
    with subject.stirred():
        return packing_independence(subject)


def with_learned_positions(restart):
    """A run with position ids for a learned table; they restart with each document or run on."""
    run = ZooRun()
    run.model.table = nn.Parameter(torch.randn(TOKENS, WIDTH) * 0.1)
    batch, positions = run.batch, []

    def positioned(step):
        found = batch(step)
        documents, counted = found["documents"], torch.arange(TOKENS).expand_as(found["documents"])
        starts = (documents[:, :, None] == documents[:, None, :]).int().argmax(-1)
        return found | {"position_ids": counted - starts if restart else counted.clone()}

    def forward(model, batch):
        positions[:] = [batch["position_ids"]]
        return model(batch["input_ids"], batch["documents"])

    run.batch, run.forward = positioned, forward
    embed = run.model.operations.embed
    run.model.operations.embed = lambda ids, weight: embed(ids, weight) + run.model.table[positions[0]]
    run.model.operations.rope = lambda x, angle: x
    run.make_optimizer()
    return run


def test_a_document_is_the_same_alone(exact):
    assert answer(exact, ZooRun()).verdict == Verdict.PASS
    assert answer(exact, with_learned_positions(restart=True)).verdict == Verdict.PASS


def test_positions_that_run_on_fail_and_are_named(exact):
    check = answer(exact, with_learned_positions(restart=False))
    assert check.verdict == Verdict.FAIL
    assert check.cause.startswith("positions run on")


def test_attention_across_documents_fails_and_is_named(exact):
    run = ZooRun()
    run.model.operations.mask = lambda documents: causal_mask(torch.zeros_like(documents))
    check = answer(exact, run)
    assert check.verdict == Verdict.FAIL
    assert check.cause == "attention crosses documents of one row"


def test_later_documents_are_found_in_every_row(exact):
    assert later_documents(exact(ZooRun())) == [
        (0, slice(4, 14)),
        (1, slice(6, 14)),
        (2, slice(8, 14)),
        (3, slice(10, 14)),
    ]


def test_without_isolation_there_is_nothing_to_ask(exact):
    run = ZooRun()
    run.declared = run.declared.__class__(vocabulary=48)
    with pytest.raises(Unavailable, match="not declared isolated"):
        answer(exact, run)
