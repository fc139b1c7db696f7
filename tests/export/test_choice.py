import dataclasses

import numpy as np
import pytest

from mothertongue_export.calibration import Calibration, Cost, MatrixCosts
from mothertongue_export.choice import Choice, declared_bits, improved, ladders, plan_of, rows, smallest
from mothertongue_export.quantization import FLOAT, Storage, quantize
from mothertongue_trainer.recipe import ExportConfig


def cost(bits: int, block: int, error: float, size: int) -> Cost:
    storage = Storage(bits=bits, block_size=block)  # type: ignore[arg-type]
    return Cost(storage=storage, error=error, bytes=size, microseconds=1.0)


# Small matrices with one large error, and large ones with small errors: bytes buy most in "a".
TABLE = Calibration(
    matrices=[
        MatrixCosts(node="model.layers.0.a", costs=[cost(8, 128, 0.03, 100), cost(8, 32, 0.01, 110)]),
        MatrixCosts(node="model.layers.1.a", costs=[cost(8, 128, 0.02, 100), cost(8, 32, 0.01, 110)]),
        MatrixCosts(node="logits", costs=[cost(8, 128, 0.01, 1000), cost(8, 32, 0.009, 1100)]),
    ],
)


def blocks(choices: list[Choice]) -> list[int]:
    return [choice.cost.storage.block_size for choice in choices]


def test_everything_begins_at_its_smallest() -> None:
    assert blocks(smallest(TABLE)) == [128, 128, 128]
    assert {choice.reason for choice in smallest(TABLE)} == {"the smallest"}


def test_the_matrix_that_gives_most_for_its_bytes_is_improved_first() -> None:
    better = improved(smallest(TABLE), TABLE, excess=1.2, because="kl_mean 0.006")
    assert better is not None
    assert blocks(better) == [32, 128, 128]
    assert better[0].reason == "kl_mean 0.006: error 0.0300 -> 0.0100"
    again = improved(better, TABLE, excess=1.5, because="kl_mean 0.0055")
    assert again is not None
    assert blocks(again) == [32, 32, 128]


def test_where_nothing_is_left_to_improve_there_is_no_better_choice() -> None:
    choices = smallest(TABLE)
    for _ in range(3):
        choices = improved(choices, TABLE, excess=float("inf"), because="flips") or choices
    assert blocks(choices) == [32, 32, 32]
    assert improved(choices, TABLE, excess=2, because="flips") is None


@pytest.mark.parametrize(("excess", "share"), [(1.01, 0.9), (100.0, 0.6)])
def test_one_round_cuts_the_squares_within_bounds(excess: float, share: float) -> None:
    """Many equal matrices, so that the share can be met exactly."""
    ways = [cost(8, 128, 0.02, 100), cost(8, 32, 0.0, 110)]
    table = dataclasses.replace(TABLE, matrices=[MatrixCosts(node=f"{n}", costs=ways) for n in range(100)])
    better = improved(smallest(table), table, excess=excess, because="")
    assert better is not None
    left = sum(choice.cost.error > 0 for choice in better)
    assert 100 * share - 1 <= left <= 100 * share


def test_ladders_end_in_floats_but_never_for_the_table() -> None:
    layers, table = ladders(ExportConfig(weights="int4"))
    assert layers[0] == Storage(bits=4, block_size=128)
    assert layers[-1] == FLOAT
    assert {storage.bits for storage in table} == {8}
    assert ladders(ExportConfig(weights="fp32")) == ([FLOAT], [FLOAT])
    finest = [storage.block_size for storage in ladders(ExportConfig(block_size=32))[0][:-1]]
    assert finest == [32]


def test_a_plan_and_a_declaration_say_what_was_chosen() -> None:
    better = improved(smallest(TABLE), TABLE, excess=1.2, because="kl_mean")
    assert better is not None
    plan = plan_of(better, TABLE, ExportConfig())
    assert plan.storage("model.layers.0.a") == Storage(bits=8, block_size=32)
    assert plan.storage("logits") == Storage(bits=8, block_size=128)
    assert declared_bits(better) == {"model.layers.0.a": 8, "model.layers.1.a": 8, "logits": 8}


def test_a_plan_stores_a_fitted_matrix_as_it_was_measured() -> None:
    storage = Storage(bits=4, block_size=16)
    matrix = quantize(np.ones((2, 16), np.float32), storage)
    fitted = Cost(storage=storage, rounding="compensated", error=0.1, bytes=20, microseconds=1.0)
    coarse = MatrixCosts(node="model.layers.0.a", costs=[fitted, cost(8, 16, 0.01, 40)])
    table = Calibration(matrices=[coarse], fitted={("model.layers.0.a", storage): matrix})
    config = ExportConfig(weights="int4", block_size=16)
    assert plan_of(smallest(table), table, config).fitted == {"model.layers.0.a": matrix}
    assert rows(smallest(table))[0][1] == "4 bits, block 16, compensated (1)"
    finer = improved(smallest(table), table, excess=2, because="kl_mean")
    assert finer is not None
    assert plan_of(finer, table, config).fitted == {}


def test_the_printed_table_has_one_row_for_each_kind_and_storage() -> None:
    better = improved(smallest(TABLE), TABLE, excess=1.2, because="kl_mean 0.006")
    assert better is not None
    assert rows(better) == [
        ("0.a", "8 bits, block 32 (1)", "0.0100", "kl_mean 0.006"),
        ("1.a", "8 bits, block 128 (1)", "0.0200", "the smallest"),
        ("logits", "8 bits, block 128 (1)", "0.0100", "the smallest"),
    ]
