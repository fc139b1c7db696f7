from dataclasses import replace

import pytest
import torch
from zoo import ZooRun, causal_mask

from mothertongue_arbiter import Verdict
from mothertongue_arbiter.torch.forward.padding import padding_independence, real_positions
from mothertongue_arbiter.torch.run.subject import Unavailable

PAD = 0


class PaddedRun(ZooRun):
    """Rows of one document, filled up on the left (row 1) and on the right (the others)."""

    def __init__(self, **options):
        super().__init__(**options)
        self.declared = replace(self.declared, isolated_documents=False, must_learn=(), pad_token=PAD)

    def batch(self, step):
        ids = ZooRun.batch(self, step)["input_ids"].clamp(min=2)
        real = torch.ones_like(ids, dtype=torch.bool)
        real[1, :4] = False
        for row in (0, 2, 3):
            real[row, 9 + row :] = False
        ids = ids.masked_fill(~real, PAD)
        targets = torch.full_like(ids, -100)
        targets[:, :-1] = torch.where(real[:, 1:] & real[:, :-1], ids[:, 1:], -100)
        return {"input_ids": ids, "documents": real.long(), "attention_mask": real.long(), "targets": targets}

    def documents(self, step, rank):
        return torch.zeros_like(self.batch(step)["input_ids"])


def answer(exact, run):
    subject = exact(run)
    with subject.stirred():
        return padding_independence(subject)


def test_masked_padding_changes_nothing(exact):
    check = answer(exact, PaddedRun())
    assert check.verdict == Verdict.PASS
    assert check.evidence.startswith("4 padded rows")


def test_attended_padding_on_the_left_fails_and_the_row_is_named(exact):
    run = PaddedRun()
    run.model.operations.mask = lambda documents: causal_mask(torch.zeros_like(documents))
    check = answer(exact, run)
    assert check.verdict == Verdict.FAIL
    assert check.evidence.startswith("row 1, position")


def test_learned_padding_fails(exact):
    run = PaddedRun()
    batch = run.batch

    def learning(step):
        found = batch(step)
        return found | {"targets": found["input_ids"].roll(-1, 1)}

    run.batch = learning
    check = answer(exact, run)
    assert check.verdict == Verdict.FAIL
    assert "are learned" in check.evidence


def test_a_pad_token_within_a_text_is_no_padding(exact):
    run = ZooRun()
    run.declared = replace(run.declared, pad_token=1)  # here also the end of a text
    assert bool(real_positions(exact(run))[:, :-1].all())


def test_a_batch_without_padding_shows_nothing(exact):
    with pytest.raises(Unavailable, match="no row"):
        answer(exact, ZooRun())
