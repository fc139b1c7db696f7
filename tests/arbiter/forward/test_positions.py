from dataclasses import replace

import pytest
import torch
from zoo import ZooRun, rotate

from mothertongue_arbiter import Verdict
from mothertongue_arbiter.torch.forward.positions import _constant_row, positions_used
from mothertongue_arbiter.torch.run.subject import Unavailable


def relative():
    run = ZooRun()
    run.declared = replace(run.declared, positions="relative")
    return run


def answer(exact, run, check):
    subject = exact(run)
    with subject.stirred():
        return check(subject)


def test_rotary_positions_count(exact):
    subject = exact(relative())
    assert positions_used(subject).verdict == Verdict.PASS


def test_rotary_positions_that_are_not_applied_fail_in_a_deep_model(exact):
    run = relative()
    run.model.operations.rope = lambda x, angle: x
    check = answer(exact, run, positions_used)
    assert check.verdict == Verdict.FAIL
    assert "counts the same" in check.evidence


def test_rotary_positions_are_not_absolute_ones(exact):
    run = ZooRun()
    run.declared = replace(run.declared, positions="absolute")
    assert answer(exact, run, positions_used).verdict == Verdict.FAIL


def test_what_is_not_declared_is_not_asked(exact):
    with pytest.raises(Unavailable, match="declare"):
        answer(exact, ZooRun(), positions_used)


def test_a_row_that_begins_with_padding_is_asked_where_its_text_is(exact):
    """Where everything is masked, equal tokens give equal logits, whatever the positions are."""
    run = relative()
    batch = run.batch(0)
    ids = batch["input_ids"].clone()
    ids[0, :6] = 0
    run.batch = lambda step: batch | {"input_ids": ids}
    run.declared = replace(run.declared, pad_token=0)
    row = _constant_row(exact(run))
    first = 6 if int(batch["documents"][0, 6]) == int(batch["documents"][0, 8]) else None
    assert first is None or torch.equal(row["input_ids"], ids[:1, 7:8].repeat(1, row["input_ids"].shape[1]))
    assert row["input_ids"].shape[1] >= 3
    assert 0 not in row["input_ids"]


class LookedUpRun(ZooRun):
    """Rotary angles of positions that are looked up in a table, by indices that `position` may change."""

    def __init__(self, position):
        super().__init__()
        self.declared = replace(self.declared, positions="relative")
        table = torch.arange(64.0, dtype=torch.float64)[:, None] * 100.0 ** (-torch.arange(4) / 4)

        def rope(x, angle):
            return rotate(x, torch.nn.functional.embedding(position(torch.arange(x.shape[-2])), table).to(x))

        self.model.operations.rope = rope


@pytest.mark.parametrize(
    ("position", "verdict"),
    [
        (lambda p: p, "PASS"),
        (lambda p: p.clamp(max=5), "FAIL"),
        (lambda p: p.where(p < 9, p - 1), "FAIL"),
        (lambda p: p % 6, "PASS"),  # documents of six tokens
        (lambda p: p // 2, "PASS"),  # segments, not positions: they do not count 0, 1, 2
    ],
)
def test_positions_that_stay_where_they_should_count_are_seen(exact, position, verdict):
    run = LookedUpRun(position)
    run.documents = lambda step, rank: torch.zeros(4, 14, dtype=torch.int64)
    check = answer(exact, run, positions_used)
    assert check.verdict == verdict, check
    if verdict == "FAIL":
        assert "looked up again" in check.evidence
