from collections import namedtuple

import pytest
import torch
from zoo import ZooRun

from mothertongue_arbiter.torch.rows import (
    Rows,
    batches_of,
    chance_of_as_many,
    chance_of_equality,
    equal_pairs,
    looked_at,
)
from mothertongue_arbiter.torch.subject import Unavailable

IDS, MASK = torch.ones(2, 5, dtype=torch.int64), torch.ones(2, 5)
Pair = namedtuple("Pair", "ids mask")


@pytest.mark.parametrize("batch", [IDS, (IDS, MASK), [IDS, IDS], {"input_ids": IDS}, Pair(IDS, MASK)])
def test_one_batch_and_a_list_of_batches_are_told_apart(batch):
    assert batches_of(batch, batch) == [batch] or batches_of(batch, batch)[0] is batch
    assert len(batches_of(batch, batch)) == 1
    assert len(batches_of([batch, batch, batch], batch)) == 3
    assert len(batches_of([batch, batch], batch)) == 2
    assert len(batches_of(iter([batch]), batch)) == 1


def test_a_batch_without_token_ids_has_no_rows():
    with pytest.raises(Unavailable, match="token ids"):
        Rows.of([MASK])
    assert len(Rows.of([IDS, IDS]).keys) == 4


def rows(ids):
    return [Rows.of([ids])]


def test_random_tokens_are_never_equal_by_chance_and_counting_is():
    random = torch.randint(0, 48, (64, 14), generator=torch.Generator().manual_seed(0))
    assert chance_of_equality(rows(random), 14) < 1e-12
    counting = (torch.arange(64)[:, None] + torch.arange(14)) % 48
    assert chance_of_equality(rows(counting), 14) > 1e-3
    slope = torch.arange(64)[:, None] % 7 + 1
    assert chance_of_equality(rows((torch.arange(64)[:, None] + slope * torch.arange(14)) % 48), 14) > 1e-4


def test_equal_rows_are_looked_at_once():
    row = torch.randint(0, 48, (1, 14), generator=torch.Generator().manual_seed(0))
    assert chance_of_equality(rows(row.repeat(64, 1)), 14) == chance_of_equality(rows(row), 14)


def test_pairs_and_accidents_are_counted():
    assert equal_pairs([b"a", b"a", b"b"], [b"a", b"c", b"a"]) == 4
    assert chance_of_as_many(1, 0.01) == pytest.approx(0.00995, rel=1e-3)
    assert chance_of_as_many(3, 5.0) == 1.0
    assert chance_of_as_many(24, 3.0) < 1e-12


def test_batches_are_looked_at_until_the_data_end(subject):
    run = ZooRun()
    run.batch = lambda step, believed=run.batch: believed(step) if step < 5 else [][step]
    assert list(looked_at(subject(run))) == [0, 1, 2, 3, 4]
