import torch

from mothertongue_arbiter.torch.run.digest import digest, digests


def test_equal_bits_have_equal_digests_and_one_other_bit_another():
    one = torch.randn(3, 4, dtype=torch.bfloat16)
    other = one.clone()
    assert digest(one) == digest(other)
    other[2, 3] = torch.nextafter(other[2, 3], torch.tensor(torch.inf, dtype=torch.bfloat16))
    assert digest(one) != digest(other)
    assert digest(torch.tensor(float("nan"))) == digest(torch.tensor(float("nan")))


def test_shape_dtype_and_layout_are_told_apart_only_where_they_matter():
    table = torch.arange(6.0).reshape(2, 3)
    assert digest(table) == digest(table.T.contiguous().T)
    assert digest(table) != digest(table.reshape(3, 2))
    assert digest(torch.zeros(2)) != digest(torch.zeros(2, dtype=torch.int32))
    assert digest(table.to_sparse()) == digest(table)
    assert len({digest(torch.zeros(size)) for size in (0, 1, 2)}) == 3


def test_the_leaves_of_nested_containers_have_their_paths():
    found = digests({"a": [1, {"b": torch.ones(2)}], "name": "left out", "c": (2.5, None)})
    assert list(found) == ["a.0", "a.1.b", "c.0"]
    assert found["c.0"] == 2.5
