import torch

from mothertongue_arbiter.torch.run.listing import listed_documents, numbered

IDS = torch.tensor([[7, 7, 9], [4, 2, 2]])


def test_numbers_and_documents_are_told_apart():
    assert listed_documents([[0, 0, 1], [0, 1, 1]], IDS) is None
    assert listed_documents(IDS, IDS) is None
    assert [one.tolist() for one in listed_documents(IDS.tolist(), IDS)] == IDS.tolist()
    assert len(listed_documents([[7, 7], torch.tensor([9, 4, 2, 2]), []], IDS)) == 2


def test_documents_that_fill_the_rows_give_numbers():
    assert numbered(listed_documents([[7, 7], [9, 4, 2, 2]], IDS), IDS).tolist() == [[0, 0, 1], [1, 1, 1]]
    assert numbered(listed_documents([[7, 7], [9, 4, 2, 2, 5]], IDS), IDS).tolist() == [[0, 0, 1], [1, 1, 1]]
    assert numbered(listed_documents([[7, 7], [9, 4, 2]], IDS), IDS) is None
