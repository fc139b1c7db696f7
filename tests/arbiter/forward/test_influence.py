from dataclasses import replace

import pytest
import torch
from torch import nn
from zoo import VOCABULARY, ZooRun, causal_mask

from mothertongue_arbiter import Verdict
from mothertongue_arbiter.torch.forward.influence import influences, order_sensitivity, token_influence
from mothertongue_arbiter.torch.run.subject import Unavailable


def answer(exact, run, check=token_influence):
    subject = exact(run)
    with subject.stirred():
        return check(subject)


def test_each_token_moves_its_own_logits_and_later_ones(exact):
    subject = exact(ZooRun())
    found = influences(subject)
    assert [one.source for one in found] == list(range(14))
    assert all(one.own > 0 and one.earlier == 0 for one in found)
    assert token_influence(subject).verdict == Verdict.PASS


def test_a_leak_over_one_single_distance_is_seen(exact):
    """Three ahead, and only there: no cut of the row in halves would have to notice."""
    run = ZooRun()

    def leaking(documents):
        mask = causal_mask(documents).clone()
        mask[:, :, 8, 11] = True
        return mask

    run.model.operations.mask = leaking
    check = answer(exact, run)
    assert check.verdict == Verdict.FAIL
    assert check.evidence.startswith("position 8 changes")
    assert "only token" in check.evidence


def test_attention_that_sees_only_itself_fails(exact):
    run = ZooRun()
    run.model.operations.mask = lambda documents: torch.eye(14, dtype=torch.bool)[None, None]
    check = answer(exact, run)
    assert check.verdict == Verdict.FAIL
    assert "blocks.0.q.weight" in check.evidence


def test_a_first_token_that_nobody_sees_fails(exact):
    run = ZooRun()

    def without_first(documents):
        mask = causal_mask(documents).clone()
        mask[..., 1:, 0] = False
        return mask

    run.model.operations.mask = without_first
    check = answer(exact, run)
    assert check.verdict == Verdict.FAIL
    assert check.evidence.endswith("the token at 0")


def test_tokens_that_enter_one_place_late_fail(exact):
    run = ZooRun()
    embed = run.model.operations.embed
    run.model.operations.embed = lambda ids, weight: embed(ids.roll(1, dims=1), weight)
    check = answer(exact, run)
    assert check.verdict == Verdict.FAIL
    assert "own position" in check.evidence or "only token" in check.evidence


class Bigram:
    """Sees its own token only, on purpose, and uses all its weights."""

    def __init__(self):
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Embedding(VOCABULARY, 8), nn.Linear(8, VOCABULARY))

    def batch(self, step):
        return ZooRun().batch(step)["input_ids"]

    def forward(self, model, batch):
        return model(batch)

    def loss(self, model, batch):
        logits = model(batch)[:, :-1]
        return nn.functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())


@pytest.mark.parametrize("check", [token_influence, order_sensitivity])
def test_a_model_without_memory_is_no_fault(exact, check):
    with pytest.raises(Unavailable, match=r"memory|earlier token"):
        answer(exact, Bigram(), check)


class BagOfWords(Bigram):
    """The running mean of all embeddings: knows the tokens, and not their order."""

    def forward(self, model, batch):
        embedded = model[0](batch)
        count = torch.arange(1, batch.shape[1] + 1)[None, :, None]
        return model[1](embedded.cumsum(1) / count)


def test_a_model_that_ignores_order_fails_unless_it_says_so(exact):
    run = BagOfWords()
    assert answer(exact, run, order_sensitivity).verdict == Verdict.FAIL
    run.declared = {"order_matters": False}
    with pytest.raises(Unavailable, match="declared"):
        answer(exact, run, order_sensitivity)


def test_a_model_with_positions_is_sensitive_to_order(exact):
    assert answer(exact, ZooRun(), order_sensitivity).verdict == Verdict.PASS


def test_the_last_token_of_a_document_may_be_seen_by_nobody(exact):
    run = ZooRun()
    run.declared = replace(run.declared, must_learn=())
    assert answer(exact, run).verdict == Verdict.PASS
