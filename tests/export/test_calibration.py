import dataclasses
from pathlib import Path

import numpy as np
import pytest

from mothertongue.tokenizer import Tokenizer
from mothertongue_export.calibration import calibrate, calibration_rows, fitting_rows, kernel
from mothertongue_export.pytorch import PyTorchModel
from mothertongue_export.quantization import FLOAT, Storage, dequantize, quantize
from mothertongue_trainer.document import Document

LADDER = [
    Storage(bits=4, block_size=32),
    Storage(bits=8, block_size=64),
    Storage(bits=8, block_size=16),
    FLOAT,
]


def test_rows_come_from_the_end_of_the_held_out_text(tied: Path, heldout: list[Document]) -> None:
    tokenizer = Tokenizer.open(tied)
    rows = calibration_rows(heldout, tokenizer, context=20)
    assert rows.shape[1] == 20
    last = [tokenizer.special("<|bos|>"), *tokenizer.encode(heldout[-1].text)][:20]
    assert rows[0, : len(last)].tolist() == last


@pytest.fixture(scope="module")
def rows(tied: Path, heldout: list[Document]) -> np.ndarray:
    return calibration_rows(heldout, Tokenizer.open(tied), context=64)


@pytest.mark.parametrize("kind", ["tied", "untied"])
def test_every_matrix_is_measured_and_finer_storage_is_more_exact(
    kind: str, request: pytest.FixtureRequest, rows: np.ndarray
) -> None:
    model = PyTorchModel.open(request.getfixturevalue(kind))
    found = calibrate(model, rows, LADDER, LADDER[1:])
    nodes = [matrix.node for matrix in found.matrices]
    assert len(nodes) == len(set(nodes)) == 2 * 4 + 1
    for matrix in found.matrices:
        errors = [cost.error for cost in matrix.costs]
        sizes = [cost.bytes for cost in matrix.costs]
        assert errors == sorted(errors, reverse=True), matrix
        assert sizes == sorted(sizes), matrix
        assert errors[-1] < 1e-6  # float
    assert not any(cost.storage.bits == 4 for cost in found.matrices[-1].costs)  # the head
    hidden = next(matrix for matrix in found.matrices if matrix.node.endswith("1.mlp.down_proj"))
    assert 0.003 < hidden.costs[2].error < 0.03


def test_fitting_takes_other_rows_than_the_table_and_none_where_little_is_left(
    tied: Path, heldout: list[Document]
) -> None:
    """Documents are told apart by a number at their beginning."""
    tokenizer = Tokenizer.open(tied)
    many = [dataclasses.replace(heldout[n % 14], text=f"{n} {heldout[n % 14].text}") for n in range(300)]
    measured = {tuple(row) for row in calibration_rows(many, tokenizer, context=64)}
    fitted = {tuple(row) for row in fitting_rows(many, tokenizer, context=64)}
    assert len(measured) == 8
    assert len(fitted) > 100
    assert not measured & fitted
    spoken = [list(range(40)), list(range(50, 100))]
    with_chats = fitting_rows(many, tokenizer, context=64, conversations=spoken)
    assert with_chats[-1].tolist() == [*range(40), *range(50, 74)]  # whole rows only
    assert {tuple(row) for row in with_chats[:-1]} == fitted
    for few in ([], heldout[:1], heldout[:8]):
        assert fitting_rows(few, tokenizer, context=64, conversations=spoken).size == 0


def test_four_bits_are_compensated_where_it_lowers_the_error_and_only_there(
    tied: Path, rows: np.ndarray, heldout: list[Document]
) -> None:
    model = PyTorchModel.open(tied)
    searched = calibrate(model, rows, LADDER, LADDER[1:])
    other = np.ascontiguousarray(np.tile(rows[::-1], (4, 1)))
    both = calibrate(model, rows, LADDER, LADDER[1:], fitting_rows=other)
    ways = [matrix.costs[0].rounding for matrix in both.matrices[:-1]]
    assert ways.count("compensated") > 6
    gains = [
        (before.costs[0].error, after.costs[0].error)
        for before, after in zip(searched.matrices, both.matrices, strict=True)
    ]
    assert sum(after for _, after in gains) < 0.8 * sum(before for before, _ in gains)
    assert {cost.rounding for matrix in both.matrices for cost in matrix.costs[1:]} == {"to nearest"}
    assert set(both.fitted) == {(matrix.node, LADDER[0]) for matrix in both.matrices[:-1]}


def test_the_fitted_matrix_is_the_one_that_was_measured(tied: Path, rows: np.ndarray) -> None:
    """Its error, computed again in float64 from the inputs of the first matrix."""
    model = PyTorchModel.open(tied)
    node = "model.layers.0.self_attn.qkv"
    found = calibrate(model, rows, LADDER[:1], LADDER[1:2], fitting_rows=rows)
    weights = {name: value.detach().numpy() for name, value in model.network.named_parameters()}
    embedded = weights["model.embed_tokens.weight"][rows.reshape(-1)].astype(np.float64)
    normed = embedded / np.sqrt((embedded**2).mean(axis=1, keepdims=True) + 1e-6)
    normed *= weights["model.layers.0.input_layernorm.weight"]
    exact = np.concatenate([weights[f"model.layers.0.self_attn.{part}_proj.weight"] for part in "qkv"])
    error = normed @ (dequantize(found.fitted[node, LADDER[0]]) - exact).T
    share = np.linalg.norm(error) / np.linalg.norm(normed @ exact.T)
    assert share == pytest.approx(found.matrices[0].costs[0].error, rel=0.1)  # measured on some of the tokens


def test_a_calibrated_model_computes_as_before(tied: Path, rows: np.ndarray) -> None:
    model = PyTorchModel.open(tied)
    before = model.logits(rows)
    calibrate(model, rows, LADDER[:1], LADDER[1:2])
    np.testing.assert_array_equal(model.logits(rows), before)
    assert not any(module._forward_pre_hooks for module in model.network.modules())


@pytest.mark.parametrize("storage", LADDER, ids=str)
def test_the_kernel_multiplies_by_the_stored_weight(storage: Storage) -> None:
    generator = np.random.default_rng(0)
    weight, x = (generator.normal(size=shape).astype(np.float32) for shape in ((24, 64), (5, 64)))
    stored = weight if storage == FLOAT else dequantize(quantize(weight, storage))
    expected = x @ stored.T
    tolerance = 1e-5 if storage == FLOAT else 0.02  # rounded activations
    run = kernel(weight if storage == FLOAT else quantize(weight, storage))
    assert np.abs(run(x) - expected).max() < tolerance * np.abs(expected).max()
