import torch

from mothertongue_arbiter.torch.on_device.row_hashes import row_hashes


def test_rows_are_known_again_in_any_batch_and_any_integer_type():
    ids = torch.randint(0, 50_000, (6, 40), generator=torch.Generator().manual_seed(0))
    hashes = row_hashes({"input_ids": ids})
    assert hashes.unique().numel() == 6
    assert torch.equal(row_hashes((ids[3:].int(), torch.zeros(3))), hashes[3:])
    assert torch.equal(row_hashes([{"input_ids": ids[:2]}, {"input_ids": ids[2:]}]), hashes)


def test_one_changed_token_or_one_more_changes_the_hash():
    ids = torch.arange(2, 42).reshape(1, 40)
    other = ids.clone()
    other[0, 17] += 1
    longer = torch.cat([ids, torch.zeros(1, 1, dtype=torch.long)], 1)
    found = {int(row_hashes(one)) for one in (ids, other, ids.flip(1), longer, ids[:, :-1])}
    assert len(found) == 5


def test_a_row_of_padding_is_zero_and_a_batch_without_ids_has_no_hash():
    assert row_hashes(torch.full((2, 5), 3)).tolist() == [0, 0]
    assert row_hashes({"pixels": torch.rand(2, 3)}) is None
