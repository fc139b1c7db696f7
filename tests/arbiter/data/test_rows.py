from collections import namedtuple

import numpy as np
import pytest
import torch
from shuffled import ShuffledRun
from zoo import ZooRun

from mothertongue_arbiter.torch.data.rows import (
    Likeness,
    Rows,
    batches_of,
    chance_of_as_many,
    equal_pairs,
    looked_at,
    shortest,
    stretches,
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


def chance(rows):
    return Likeness.of(rows.numpy()).chance(rows.shape[1])


def test_random_tokens_are_never_equal_by_chance_and_counting_is():
    random = torch.randint(0, 48, (64, 14), generator=torch.Generator().manual_seed(0))
    assert chance(random) < 1e-12
    first, place = torch.arange(64)[:, None], torch.arange(14)
    assert chance((first + place) % 48) > 1 / 48
    assert chance((first + (first % 7 + 1) * place) % 48) > 1 / 48 / 7


def test_equal_rows_are_looked_at_once():
    row = torch.randint(0, 48, (1, 14), generator=torch.Generator().manual_seed(0))
    assert chance(row.repeat(64, 1)) == chance(row)


def test_stretches_are_hashed_by_their_tokens_in_order():
    row = np.array([4, 5, 6, 4, 5, 6, 5])
    hashes = stretches(row, 3).tolist()
    assert hashes[0] == hashes[3]
    assert len(set(hashes)) == 4
    assert not len(stretches(row, 8))


def test_pairs_and_accidents_are_counted():
    assert equal_pairs([b"a", b"a", b"b"], [b"a", b"c", b"a"]) == 4
    assert chance_of_as_many(1, 0.01) == pytest.approx(0.00995, rel=1e-3)
    assert chance_of_as_many(3, 5.0) == 1.0
    assert chance_of_as_many(24, 3.0) < 1e-12


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
