from collections import namedtuple

import pytest
import torch

from mothertongue_arbiter.torch.run import batches
from mothertongue_arbiter.torch.run.batches import in_float64, other_ids, rows_of, token_ids, with_ids

IDS = torch.tensor([[3, 4, 5], [6, 7, 3]])
MASK = torch.ones(2, 3)
Named = namedtuple("Named", "mask tokens")


@pytest.mark.parametrize(
    "batch",
    [
        IDS,
        (IDS, MASK),
        [MASK, IDS],
        {"attention_mask": torch.ones(2, 3, dtype=torch.int64), "input_ids": IDS},
        {"mask": MASK, "x": IDS},
        Named(MASK, IDS),
        ({"deep": MASK}, (IDS,)),
    ],
)
def test_token_ids_are_found_and_replaced(batch):
    assert token_ids(batch) is IDS
    other = IDS + 1
    changed = with_ids(batch, other)
    assert type(changed) is type(batch)
    assert token_ids(changed) is other
    assert token_ids(batch) is IDS


@pytest.mark.parametrize("batch", [MASK, {"x": MASK}, torch.tensor([1, 2]), "text", MASK.bool()])
def test_a_batch_without_token_ids_has_none(batch):
    assert token_ids(batch) is None


def test_rows_are_cut_from_everything_that_has_as_many():
    batch = rows_of({"input_ids": IDS, "mask": MASK, "table": torch.ones(7), "n": 3}, slice(1, 2))
    assert batch["input_ids"].tolist() == [[6, 7, 3]]
    assert batch["mask"].shape == (1, 3)
    assert batch["table"].shape == (7,)
    assert batch["n"] == 3


def test_other_ids_differ_everywhere_and_occur_in_the_batch():
    changed = other_ids(IDS)
    assert bool((changed != IDS).all())
    assert set(changed.flatten().tolist()) <= set(IDS.flatten().tolist())


def test_only_floating_point_becomes_float64():
    ids, mask = in_float64((IDS, MASK))
    assert ids.dtype == torch.int64
    assert mask.dtype == torch.float64


def test_a_stretch_of_a_row_is_cut_from_everything_that_has_a_value_a_token():
    ids = torch.arange(12).reshape(2, 6)
    batch = {
        "input_ids": ids,
        "mask": torch.ones(2, 1, 6, 6),
        "scale": torch.ones(()),
        "weight": torch.ones(2),
    }
    cut = batches.stretch_of(batch, 1, slice(2, 5))
    assert cut["input_ids"].tolist() == [[8, 9, 10]]
    assert cut["mask"].shape == (1, 1, 3, 3)
    assert cut["scale"].shape == ()
    assert cut["weight"].shape == (1,)


def test_a_tensor_is_found_by_its_name_and_replaced():
    ids = torch.zeros(2, 6, dtype=torch.long)
    batch = {"input_ids": ids, "position_ids": torch.arange(6).expand(2, 6)}
    found = batches.named_tensor(batch, batches.POSITION_NAMES)
    assert batches.with_tensor(batch, found, found + 1)["position_ids"][0].tolist() == [1, 2, 3, 4, 5, 6]
    assert batches.named_tensor(ids, batches.POSITION_NAMES) is None
