import torch
from torch import nn
from torch.nn import functional as F

from mothertongue_arbiter.torch.data.reading import same_tokens, watched_reading

IDS = torch.tensor([[3, 4, 5], [6, 7, 3]])


class Whole(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(9, 2))
        self.place = nn.Embedding(3, 2)

    def forward(self, mask, input_ids):
        return F.embedding(input_ids, self.weight) + self.place(torch.arange(3)[None])


class Parts(nn.Module):
    """A model whose loss goes round its `forward`."""

    def __init__(self):
        super().__init__()
        self.words, self.places = nn.Embedding(9, 2), nn.Embedding(3, 2)

    def loss(self, ids):
        return (self.words(ids) + self.places(torch.arange(3)[None])).sum()


def test_a_model_reads_what_it_is_called_with():
    model, other = Whole(), Parts()
    with watched_reading([model, other]) as reading:
        model(torch.ones(2, 3), input_ids=IDS)
        given = IDS + 1
        other.loss(given)
        given.zero_()  # a buffer that is used again
        model(None, IDS[:1])
    assert same_tokens(reading.ids[0], [IDS, IDS[:1]])
    assert same_tokens(reading.ids[1], [IDS + 1])
    assert not same_tokens(reading.ids[0], reading.ids[1])
    model(None, IDS)
    assert len(reading.ids[0]) == 2
