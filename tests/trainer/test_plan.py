import numpy as np
import pytest

from mothertongue_trainer.plan import OPEN_ROWS, Component, cut_documents, draw_documents, make_plan, pack


def component(name: str, share: float, tokens: list[int], characters: list[int] | None = None) -> Component:
    """Return a component of documents with `tokens` tokens each; by default two characters a token."""
    return Component(
        name=name,
        share=share,
        offsets=np.concatenate([[0], np.cumsum(tokens)]),
        characters=np.array(characters or [2 * count for count in tokens]),
    )


def random_component(name: str, share: float, documents: int, seed: int) -> Component:
    random = np.random.default_rng(seed)
    tokens = random.integers(3, 90, size=documents)
    return component(
        name, share, tokens.tolist(), (tokens * random.uniform(1, 5, size=documents)).astype(int).tolist()
    )


def test_every_document_is_drawn_before_any_is_drawn_again() -> None:
    parts = [random_component("a", 1, 50, 1), random_component("b", 3, 20, 2)]
    which, document = draw_documents(parts, tokens=20_000, seed=0)
    for index, part in enumerate(parts):
        drawn = document[which == index]
        n = len(part.characters)
        epochs = [drawn[start : start + n].tolist() for start in range(0, len(drawn), n)]
        assert len(epochs) > 2
        assert all(sorted(epoch) == list(range(n)) for epoch in epochs[:-1])
        assert len(set(epochs[-1])) == len(epochs[-1])
        assert epochs[0] != epochs[1]  # in a new order


def test_characters_follow_the_mixture_all_the_way_and_tokens_need_not() -> None:
    # b's documents have 4 times the characters of a's for the same tokens.
    a, b = component("a", 0.3, [20] * 40, [50] * 40), component("b", 0.7, [20] * 30, [200] * 30)
    which, _ = draw_documents([a, b], tokens=200_000, seed=0)
    characters = np.array([50, 200])[which]
    for end in (len(which) // 10, len(which) // 2, len(which)):
        share = characters[:end][which[:end] == 1].sum() / characters[:end].sum()
        assert share == pytest.approx(0.7, abs=0.01)


def test_enough_tokens_are_drawn_and_not_many_more() -> None:
    parts = [random_component("a", 1, 50, 1), random_component("b", 1, 70, 2)]
    which, document = draw_documents(parts, tokens=50_000, seed=0)
    inputs = sum(int(part.inputs[document[which == i]].sum()) for i, part in enumerate(parts))
    assert 50_000 <= inputs < 52_000


def test_a_long_document_is_cut_where_a_row_ends() -> None:
    part = component("a", 1, [4, 12])  # 3 and 11 inputs; the last token of each predicts nothing
    pieces = cut_documents([part], np.zeros(2, dtype=np.uint8), np.array([1, 0]), row_tokens=5)
    assert pieces.start.tolist() == [4, 9, 14, 0]
    assert pieces.length.tolist() == [5, 5, 1, 3]


def test_a_piece_goes_where_it_leaves_the_least_room() -> None:
    # Rows of 10: 6 opens A, 7 opens B, 3 fits B best and closes it first, 4 closes A, 10 is a row alone.
    assert pack(np.array([6, 7, 3, 4, 10]), rows=3, row_tokens=10).tolist() == [1, 0, 0, 1, 2]


def test_rows_that_were_not_asked_for_get_number_minus_one() -> None:
    assert pack(np.array([10, 6, 10, 4]), rows=2, row_tokens=10).tolist() == [0, -1, 1, -1]


def test_the_fullest_row_closes_when_too_many_are_open() -> None:
    lengths = [6] * (OPEN_ROWS - 1) + [7, 8]
    assert pack(np.array(lengths), rows=1, row_tokens=10).tolist() == [-1] * (OPEN_ROWS - 1) + [0, -1]


def test_no_row_is_fuller_than_full_and_little_is_empty() -> None:
    parts = [random_component("a", 1, 500, 1), random_component("b", 1, 700, 2)]
    plan = make_plan(parts, rows=2000, row_tokens=128, seed=0)
    filled = np.add.reduceat(plan.pieces.length, plan.offsets[:-1])
    assert len(filled) == 2000
    assert filled.max() <= 128
    assert 1 - filled.sum() / (2000 * 128) < 0.03


def test_the_seed_decides_and_other_components_do_not_reshuffle_one() -> None:
    a, b, c = (random_component(name, 1, 50, i) for i, name in enumerate("abc"))

    def order(parts: list[Component], seed: int) -> list[int]:
        which, document = draw_documents(parts, tokens=5_000, seed=seed)
        return document[which == 0].tolist()[:50]

    assert order([a, b], 0) == order([a, b], 0) == order([a, c], 0)
    assert order([a, b], 0) != order([a, b], 1)


def test_a_plan_of_half_a_million_pieces_takes_seconds() -> None:
    random = np.random.default_rng(0)
    part = component("a", 1, random.integers(5, 30, size=200_000).tolist())
    plan = make_plan([part], rows=55_000, row_tokens=128, seed=0)  # nano's rows
    assert len(plan.pieces.length) > 400_000
