"""The plan of a run: which piece of which document stands in which row, decided before the first step.

Three pure steps. *Draw*: components take turns so that the characters drawn so far follow the mixture; in
each component every document is drawn once before any is drawn again, each time in a new order. *Cut*: a
document longer than a row becomes several pieces. *Pack*: pieces fill rows, each where it leaves the least
room.
"""

from __future__ import annotations

import zlib
from bisect import bisect_left, insort
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mothertongue_trainer.shards import Integers

# Rows that wait for a piece that fits. More waste less and move documents further from where they were drawn.
OPEN_ROWS = 64


@dataclass(frozen=True, kw_only=True)
class Component:
    """What the plan has to know of one component of the mixture."""

    name: str
    share: float  # of the characters; any positive number
    offsets: Integers  # (documents + 1,) where each document starts in the component's shard
    characters: Integers  # (documents,)

    @property
    def inputs(self) -> Integers:
        """How many tokens of each document are input: all but the last, which has nothing to predict."""
        return np.diff(self.offsets) - 1


@dataclass(frozen=True, kw_only=True)
class Pieces:
    """A sequence of pieces of documents."""

    component: npt.NDArray[np.uint8]  # (pieces,) index of the component
    start: Integers  # (pieces,) its first token in the component's shard
    length: Integers  # (pieces,) input tokens; the labels reach one token further

    def __getitem__(self, chosen: Integers) -> Pieces:
        return Pieces(component=self.component[chosen], start=self.start[chosen], length=self.length[chosen])


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The pieces of a run in the order of its rows; row r holds pieces offsets[r]:offsets[r + 1]."""

    pieces: Pieces
    offsets: Integers  # (rows + 1,)


def make_plan(components: Sequence[Component], *, rows: int, row_tokens: int, seed: int) -> Plan:
    """Return the plan of `rows` rows of `row_tokens` tokens: the same for the same arguments, always."""
    # The rows still open at the end are not used: draw enough to fill them too.
    component, document = draw_documents(components, tokens=(rows + OPEN_ROWS) * row_tokens, seed=seed)
    pieces = cut_documents(components, component, document, row_tokens=row_tokens)
    row_of_piece = pack(pieces.length, rows=rows, row_tokens=row_tokens)
    order = np.argsort(row_of_piece, kind="stable")
    order = order[np.searchsorted(row_of_piece[order], 0) :]  # -1: in no row
    offsets = np.searchsorted(row_of_piece[order], np.arange(rows + 1))
    return Plan(pieces=pieces[order], offsets=offsets)


def draw_documents(
    components: Sequence[Component], *, tokens: int, seed: int
) -> tuple[npt.NDArray[np.uint8], Integers]:
    """Return (component, document), index arrays in the order of drawing, of at least `tokens` input tokens.

    The next component is always the one with the fewest characters for its share. That needs no loop: it is
    the order of the characters drawn before each document, divided by the share.
    """
    tokens_per_share = sum(c.share * c.inputs.sum() / c.characters.sum() for c in components)
    reach = tokens / tokens_per_share  # characters for a share of 1
    while True:
        draws = [_draw_component(c, reach_characters=c.share * reach, seed=seed) for c in components]
        if sum(int(c.inputs[d].sum()) for c, (d, _) in zip(components, draws, strict=True)) >= tokens:
            break
        reach *= 1.01  # an unlucky last epoch held short documents
    component = np.repeat(np.arange(len(components), dtype=np.uint8), [len(d) for d, _ in draws])
    before = np.concatenate([before / c.share for c, (_, before) in zip(components, draws, strict=True)])
    order = np.argsort(before, kind="stable")
    return component[order], np.concatenate([document for document, _ in draws])[order]


def _draw_component(component: Component, *, reach_characters: float, seed: int) -> tuple[Integers, Integers]:
    """Return (document, characters drawn before it) until `reach_characters` are drawn."""
    epochs = int(np.ceil(reach_characters / component.characters.sum()))
    # Keyed by name: adding a component to a recipe does not reshuffle the others.
    key = zlib.crc32(component.name.encode())
    n_documents = len(component.characters)
    document = np.concatenate(
        [np.random.default_rng((seed, key, epoch)).permutation(n_documents) for epoch in range(epochs)]
    )
    characters = component.characters[document]
    before = np.cumsum(characters) - characters
    n_drawn = int(np.searchsorted(before, reach_characters))
    return document[:n_drawn], before[:n_drawn]


def cut_documents(
    components: Sequence[Component],
    component: npt.NDArray[np.uint8],
    document: Integers,
    *,
    row_tokens: int,
) -> Pieces:
    """Return the pieces of the drawn documents: `row_tokens` inputs each, the last of a document shorter.

    A later piece starts where the one before ended, in the middle of the text and without <|bos|>: that token
    promises the start of a text. Every token of a document but <|bos|> is a label exactly once.
    """
    start, inputs = np.empty_like(document), np.empty_like(document)
    for index, c in enumerate(components):
        drawn = component == index
        start[drawn], inputs[drawn] = c.offsets[document[drawn]], c.inputs[document[drawn]]
    n_pieces = -(-inputs // row_tokens)
    first_piece = np.cumsum(n_pieces) - n_pieces
    skipped = (np.arange(n_pieces.sum()) - np.repeat(first_piece, n_pieces)) * row_tokens
    return Pieces(
        component=np.repeat(component, n_pieces),
        start=np.repeat(start, n_pieces) + skipped,
        length=np.minimum(np.repeat(inputs, n_pieces) - skipped, row_tokens),
    )


def pack(length: Integers, *, rows: int, row_tokens: int) -> Integers:
    """Return for each piece the row it stands in, 0 to `rows` - 1, or -1 where the rows were full before.

    Best fit over at most `OPEN_ROWS` open rows; if a piece fits into none, the fullest is closed. Rows are
    numbered as they close.
    """
    opened_as = np.full(len(length), -1, dtype=np.int64)
    open_rows: list[tuple[int, int]] = []  # (free tokens, number at opening), sorted
    closed: list[int] = []  # numbers at opening, in the order of closing
    n_opened = 0
    for piece, size in enumerate(length.tolist()):
        fitting = bisect_left(open_rows, (size, -1))
        if fitting < len(open_rows):
            free, row = open_rows.pop(fitting)
        else:
            if len(open_rows) == OPEN_ROWS:
                closed.append(open_rows.pop(0)[1])
            free, row, n_opened = row_tokens, n_opened, n_opened + 1
        opened_as[piece] = row
        if free > size:
            insort(open_rows, (free - size, row))
        else:
            closed.append(row)
        if len(closed) >= rows:
            break
    assert len(closed) >= rows, "too few pieces were drawn"
    number = np.full(n_opened + 1, -1, dtype=np.int64)  # one more: index -1 stays -1
    number[closed[:rows]] = np.arange(rows)
    return number[opened_as]
