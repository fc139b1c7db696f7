"""The text of the subject: rows of two documents, drawn from a chain that can be learned."""

from functools import cache

import torch
from torch import Tensor

from faults.model import TOKENS, VOCABULARY

PADDING, END_OF_TEXT, FIRST_LETTER = 0, 1, 2
ROWS = 4  # of the batch of one optimizer step
EPOCH_STEPS = 6
SUCCESSORS = 6  # each letter is followed by one of so many


@cache
def rows(seed: int, count: int) -> tuple[Tensor, Tensor]:
    """Return ids and document numbers, both (count, T); each document is closed by END_OF_TEXT."""
    chain = torch.randint(
        FIRST_LETTER, VOCABULARY, (VOCABULARY, SUCCESSORS), generator=torch.Generator().manual_seed(1)
    )
    generator = torch.Generator().manual_seed(seed)
    first = torch.randint(FIRST_LETTER, VOCABULARY, (count, 1), generator=generator)
    choices = torch.randint(SUCCESSORS, (count, TOKENS), generator=generator)
    ids = [first[:, 0]]
    for position in range(1, TOKENS):
        ids.append(chain[ids[-1], choices[:, position]])
    text = torch.stack(ids, dim=1)
    for row in range(count):
        text[row, 3 + 2 * (row % ROWS)] = END_OF_TEXT  # documents of different lengths
    text[:, -1] = END_OF_TEXT
    documents = (text == END_OF_TEXT).cumsum(1) - (text == END_OF_TEXT).long()
    return text, documents


def train_rows() -> tuple[Tensor, Tensor]:
    return rows(100, ROWS * EPOCH_STEPS)


def held_out_rows() -> tuple[Tensor, Tensor]:
    return rows(900, ROWS * 2)


def next_tokens(ids: Tensor, documents: Tensor) -> Tensor:
    """Return the next token of the same document, -100 where there is none."""
    targets = torch.full_like(ids, -100)
    learned = (documents[:, 1:] == documents[:, :-1]) & (ids[:, 1:] != PADDING)
    targets[:, :-1] = torch.where(learned, ids[:, 1:], -100)
    return targets


def padded(ids: Tensor, documents: Tensor, side: str) -> tuple[Tensor, Tensor]:
    """Keep the first document of each row and pad it on one side; padding is a document of its own."""
    keep = documents == 0
    only, number = torch.full_like(ids, PADDING), torch.zeros_like(documents)
    for row, kept in enumerate(keep):
        length = int(kept.sum())
        place = slice(0, length) if side == "right" else slice(TOKENS - length, None)
        only[row, place] = ids[row, kept]
        number[row, place] = 1
    return only, number if side == "left" else 1 - number
