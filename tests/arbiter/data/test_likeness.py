import numpy as np
import pytest
import torch

from mothertongue_arbiter.torch.data.likeness import Likeness, chance_of_as_many, equal_pairs, stretches


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
