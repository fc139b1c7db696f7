from collections import namedtuple

import numpy as np
import pytest
import torch
from shuffled import ShuffledRun
from zoo import ZooRun

from mothertongue_arbiter.torch.data.likeness import Likeness
from mothertongue_arbiter.torch.data.rows import (
    Rows,
    batches_of,
    looked_at,
    row_keys,
    shortest,
    whole_batch,
    without_padding,
)
from mothertongue_arbiter.torch.run.subject import Unavailable

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


def test_rows_are_told_apart_by_their_tokens_whatever_their_dtype():
    ids = torch.tensor([[1, 2], [2, 1], [1, 2]])
    keys = row_keys(ids)
    assert keys[0] == keys[2] != keys[1]
    assert row_keys(ids.to(torch.int32)) == keys


def test_batches_are_looked_at_until_the_data_end(subject):
    run = ZooRun()
    run.batch = lambda step, believed=run.batch: believed(step) if step < 5 else [][step]
    assert list(looked_at(subject(run))) == [0, 1, 2, 3, 4]


def test_the_batch_of_one_rank_is_completed_by_the_others(subject):
    run = ShuffledRun()
    whole = run.batch(0)
    assert torch.equal(whole_batch(subject(run), 0), whole)
    run.batch = lambda step: run.micro_batches(step, 0)[0]
    assert torch.equal(whole_batch(subject(run), 0), whole)
    run.micro_batches = lambda step, rank: [{"ids": run.rows(0, step, rank), "n": 3}]
    run.batch = lambda step: run.micro_batches(step, 0)[0]
    assert torch.equal(whole_batch(subject(run), 0)["ids"], whole)


@pytest.mark.parametrize(
    ("row", "text"),
    [
        ([0, 0, 0, 5, 6, 0, 7, 3, 3, 3], [0, 5, 6, 0, 7, 3]),
        ([5, 6, 7], [5, 6, 7]),
        ([5, 6, 0], [5, 6, 0]),
        ([4, 4, 4], [4]),
    ],
)
def test_padding_is_cut_down_to_one_token(row, text):
    assert without_padding(np.array(row)).tolist() == text


def test_padded_rows_are_not_alike_because_of_their_padding():
    rng = np.random.default_rng(0)
    ids = torch.tensor(rng.integers(1, 40, (24, 16)))
    ids[:, 9:] = 0
    rows = Rows.of([ids])
    assert shortest([rows]) in (9, 10)  # a row may begin with the same token twice
    assert Likeness.of(row for _, row in rows.each()).chance(10) < 1e-5
    assert Likeness.of(ids.numpy()).chance(10) > 1e-2  # what padding would make of it
