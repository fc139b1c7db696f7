from dataclasses import replace

import pytest
import torch
from zoo import END_OF_TEXT, ZooRun, sum_of_cross_entropy

from mothertongue_arbiter import Verdict
from mothertongue_arbiter.torch.data import labels
from mothertongue_arbiter.torch.run.subject import Unavailable


def training_on(change):
    """A run that trains on changed targets while its author believes in the right ones."""
    run = ZooRun()
    batch = run.batch
    run.batch = lambda step: (found := batch(step)) | {"targets": change(found["targets"].clone(), found)}
    return run


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda targets, batch: targets.roll(-1, 1), "shifted twice"),
        (lambda targets, batch: torch.where(targets >= 0, batch["input_ids"], -100), "learns to copy"),
        (
            lambda targets, batch: targets.masked_fill(targets == END_OF_TEXT, -100),
            "token 1 is never learned",
        ),
        (lambda targets, batch: torch.cat([targets[:3], targets[3:] * 0 - 100]), "whole rows [3]"),
        (lambda targets, batch: torch.where(targets < 0, 5, targets), "that have no label"),
    ],
)
def test_a_wrong_label_is_explained(exact, change, said):
    check = labels.labels(exact(training_on(change)))
    assert check.verdict == Verdict.FAIL
    assert said in f"{check.evidence} {check.cause}"


def test_next_tokens_are_known_without_targets(exact):
    run = ZooRun()
    subject = exact(run)

    class Plain:
        model, loss, batch, documents, declared = run.model, run.loss, run.batch, run.documents, run.declared

    subject.run = Plain()
    assert labels.labels(subject).verdict == Verdict.PASS


@pytest.mark.parametrize(
    ("rule", "factor", "expected"), [("tokens", 1, "PASS"), ("sum", 48, "PASS"), ("tokens", 0.5, "FAIL")]
)
def test_weights_add_up_to_the_declared_normalisation(exact, rule, factor, expected):
    run = ZooRun()
    run.declared = replace(run.declared, normalisation=rule)
    loss = run.loss
    run.loss = lambda model, batch: factor * loss(model, batch)
    assert labels.weights(exact(run)).verdict == expected


def test_a_loss_that_is_no_cross_entropy_has_to_be_declared_so(exact):
    run = ZooRun()

    def with_z_loss(model, batch):
        logits = run.forward(model, batch)
        return sum_of_cross_entropy(logits, batch["targets"]) + logits.logsumexp(-1).square().mean()

    run.loss = with_z_loss
    assert labels.weights(exact(run)).verdict == Verdict.FAIL
    run.declared = replace(run.declared, normalisation="other")
    with pytest.raises(Unavailable, match="does not say how positions are weighed"):
        labels.weights(exact(run))


def test_probabilities_taken_for_logits_contradict_a_declared_cross_entropy(exact):
    run = ZooRun()

    def loss(model, batch):
        probabilities = run.forward(model, batch).softmax(-1).flatten(0, 1)
        return torch.nn.functional.cross_entropy(probabilities, batch["targets"].flatten())

    run.loss = loss
    check = labels.weights(exact(run))
    assert check.verdict == Verdict.FAIL
    assert "softmax before the cross-entropy" in check.cause
    run.declared = None  # nothing was promised
    with pytest.raises(Unavailable):
        labels.weights(exact(run))


def test_the_padding_after_a_row_need_not_be_learned(exact):
    run = ZooRun()
    ids = run.batch(0)["input_ids"].clamp(min=2)
    ids[:, 9:] = 0
    targets = ids.roll(-1, 1).masked_fill(ids.roll(-1, 1) == 0, -100)
    targets[:, -1] = -100
    batch = run.batch(0) | {"input_ids": ids, "targets": targets}
    run.batch = lambda step: batch
    run.declared = replace(run.declared, pad_token=0, isolated_documents=False, must_learn=())
    subject = exact(run)

    class Plain:
        model, loss, batch, declared = run.model, run.loss, run.batch, run.declared

    subject.run = Plain()
    assert labels.labels(subject).verdict == Verdict.PASS


def test_labels_that_are_smoothed_without_saying_so_fail(exact):
    run = ZooRun()

    def loss(model, batch):
        logits = run.forward(model, batch)
        return torch.nn.functional.cross_entropy(
            logits.flatten(0, 1), batch["targets"].flatten(), label_smoothing=0.1
        )

    run.loss = loss
    check = labels.weights(exact(run))
    assert check.verdict == Verdict.FAIL
    assert check.evidence == "labels are smoothed by 0.1, 0 is declared"
    run.declared = replace(run.declared, label_smoothing=0.1)
    assert labels.weights(exact(run)).verdict == Verdict.PASS


def test_a_temperature_in_the_loss_only_fails(exact):
    run = ZooRun()
    forward = run.forward

    def loss(model, batch):
        logits = forward(model, batch) / 2
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch["targets"].flatten())

    run.loss = loss
    check = labels.weights(exact(run))
    assert check.verdict == Verdict.FAIL
    assert check.evidence == "the loss divides the logits of `forward` by 2"
    run.forward = lambda model, batch: forward(model, batch) / 2
    assert labels.weights(exact(run)).verdict == Verdict.PASS


def test_labels_that_run_on_into_the_next_row_fail(exact):
    run = ZooRun()
    run.declared = replace(run.declared, isolated_documents=False, must_learn=(), supervised="all")
    ids, documents = run.batch(0)["input_ids"], torch.zeros(4, 14, dtype=torch.int64)

    class Plain:
        model, declared = run.model, run.declared

        def batch(self, step):
            return ids

        def loss(self, model, batch):
            logits = run.forward(model, {"input_ids": batch, "documents": documents})
            targets = batch.flatten().roll(-1)
            targets[-1] = -100
            return torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets)

    check = labels.labels(exact(Plain()))
    assert check.verdict == Verdict.FAIL
    assert "positions are learned that have no label" in check.evidence


def test_an_end_of_text_that_the_loss_adds_to_each_row_is_a_label(exact):
    run = ZooRun()
    run.declared = replace(run.declared, isolated_documents=False, must_learn=(), supervised="all")
    ids, documents = run.batch(0)["input_ids"].clone(), torch.zeros(4, 14, dtype=torch.int64)
    ids[:, 0] = END_OF_TEXT

    class Plain:
        model, declared = run.model, run.declared

        def batch(self, step):
            return ids

        def loss(self, model, batch):
            logits = run.forward(model, {"input_ids": batch, "documents": documents})
            targets = torch.cat([batch[:, 1:], torch.full((4, 1), END_OF_TEXT)], dim=1)
            return torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())

    assert labels.labels(exact(Plain())).verdict == Verdict.PASS
