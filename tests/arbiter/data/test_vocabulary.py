from dataclasses import replace

import pytest
import torch
from torch.nn import functional as F
from zoo import END_OF_TEXT, VOCABULARY, ZooRun

from mothertongue_arbiter.torch.data.vocabulary import vocabulary
from mothertongue_arbiter.torch.run.subject import Unavailable


def run_with(change):
    run = ZooRun()
    believed = run.batch
    run.batch = lambda step: run.collate(change((found := believed(step))["input_ids"]), found["documents"])
    run.documents = lambda step, rank: believed(step)["documents"]
    return run


def test_ids_in_the_vocabulary_pass_and_the_share_is_stated(subject):
    check = vocabulary(subject(ZooRun()))
    assert check.verdict == "PASS"
    assert f"98% of {VOCABULARY} entries" in check.evidence  # token 0 never occurs


@pytest.mark.parametrize("shift", [-10, 10])
def test_ids_outside_the_vocabulary_are_named(subject, shift):
    check = vocabulary(subject(run_with(lambda ids: ids + shift)))
    assert check.verdict == "FAIL"
    assert "the vocabulary has 48 entries" in check.evidence


def without_ends(ids):
    return ids.masked_fill(ids == END_OF_TEXT, 7)


def test_a_lost_end_of_text_is_named_where_documents_end(subject):
    run = run_with(without_ends)
    believed = run.documents
    assert "did not occur" in vocabulary(subject(run)).evidence  # four documents end: too few to tell
    run.documents = lambda step, rank: believed(step, rank).cumsum(1) // 3
    check = vocabulary(subject(run))
    assert check.verdict == "FAIL"
    assert "token 1 is nowhere" in check.evidence


def test_an_unknown_vocabulary_is_not_judged(subject):
    run = ZooRun()
    run.declared = replace(run.declared, vocabulary=None)
    run.forward = None
    with pytest.raises(Unavailable):
        vocabulary(subject(run))


def test_an_end_of_text_that_is_only_a_label_is_there(subject):
    """Rows of inputs without the last token of each document: what ends it is learned and never read."""
    run = ZooRun()
    believed, run.documents = run.batch, lambda step, rank: believed(step)["documents"].cumsum(1) // 3

    def batch(step):
        found = believed(step)
        labels = torch.full_like(found["input_ids"], 7)
        labels[:, 3] = END_OF_TEXT
        return found | {"input_ids": without_ends(found["input_ids"]), "labels": labels}

    def loss(model, batch):
        logits = run.forward(model, batch)
        return F.cross_entropy(logits.flatten(0, 1), batch["labels"].flatten())

    run.batch, run.loss = batch, loss
    assert vocabulary(subject(run)).verdict == "PASS"
