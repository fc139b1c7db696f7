from pathlib import Path

import numpy as np
import pytest

from mothertongue.tokenizer import Tokenizer
from mothertongue_export.calibration import calibrate, calibration_rows, kernel
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


def test_the_importance_of_a_column_is_its_mean_square(tied: Path, rows: np.ndarray) -> None:
    """The input of the first matrix by hand: embeddings, normed."""
    model = PyTorchModel.open(tied)
    weights = {name: value.detach().numpy() for name, value in model.network.named_parameters()}
    embedded = weights["model.embed_tokens.weight"][rows.reshape(-1)].astype(np.float64)
    normed = embedded / np.sqrt((embedded**2).mean(axis=1, keepdims=True) + 1e-6)
    normed = normed * weights["model.layers.0.input_layernorm.weight"]
    found = calibrate(model, rows, LADDER[:1], LADDER[1:2]).importance["model.layers.0.self_attn.qkv"]
    np.testing.assert_allclose(found, (normed**2).mean(axis=0), rtol=1e-4)


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
    assert np.abs(kernel(weight, storage, None)(x) - expected).max() < tolerance * np.abs(expected).max()
