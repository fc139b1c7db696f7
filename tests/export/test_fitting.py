import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mothertongue_export.fitting import fit_graph, worst_missed
from mothertongue_export.graph import write_device_graph
from mothertongue_export.oracle import Oracle
from mothertongue_export.parity import Gate
from mothertongue_export.proof import COPIED_FILES
from mothertongue_export.quantization import Storage
from mothertongue_export.weights_lint import lint_weights
from mothertongue_trainer.progress import silent
from mothertongue_trainer.recipe import ExportConfig


@pytest.fixture
def few(oracle: Oracle) -> Oracle:
    return dataclasses.replace(oracle, texts=oracle.texts[::4])


@pytest.fixture
def folder(few: Oracle, tmp_path: Path) -> Path:
    for name in COPIED_FILES:
        (tmp_path / name).write_bytes((few.checkpoint.folder / name).read_bytes())
    return tmp_path


def test_gates_that_hold_leave_everything_at_its_smallest(few: Oracle, folder: Path) -> None:
    config = ExportConfig(maximum_clear_flips_percent=50, maximum_kl_mean=1, block_size=64)
    choices = fit_graph(folder, few, config, progress=silent)
    assert {choice.cost.storage for choice in choices} == {Storage(bits=8, block_size=64)}
    fitted = (folder / "model.onnx.data").read_bytes()
    write_device_graph(few.checkpoint, folder, block_size=64)
    assert (folder / "model.onnx.data").read_bytes() == fitted


def test_a_missed_gate_is_met_by_better_storage_and_the_reason_is_kept(few: Oracle, folder: Path) -> None:
    loose: dict[str, Any] = {"maximum_clear_flips_percent": 50.0, "maximum_kl_mean": 1.0}
    fit_graph(folder, few, ExportConfig(**loose), progress=silent)
    small = (folder / "model.onnx.data").stat().st_size
    config = ExportConfig(**(loose | {"maximum_kl_mean": 1e-9}))
    choices = fit_graph(folder, few, config, progress=silent)
    improved = [choice for choice in choices if choice.reason != "the smallest"]
    assert improved
    assert all(choice.reason.startswith("kl_mean") for choice in improved)
    assert (folder / "model.onnx.data").stat().st_size > small


def test_the_same_checkpoint_is_fitted_to_the_same_bytes(few: Oracle, folder: Path) -> None:
    """Four bits, compensated: what is fitted comes from sums over tokens, and they must come out alike."""
    config = ExportConfig(weights="int4")
    few = dataclasses.replace(few, fitting_ids=np.tile(few.calibration_ids, (4, 1)))
    stored = []
    for _ in range(2):
        choices = fit_graph(folder, few, config, progress=silent)
        assert "compensated" in {choice.cost.rounding for choice in choices}
        assert lint_weights(folder, few.checkpoint) == []
        stored.append([(folder / name).read_bytes() for name in ("model.onnx", "model.onnx.data")])
    assert stored[0] == stored[1]


def test_float_weights_leave_nothing_to_choose(few: Oracle, folder: Path) -> None:
    assert fit_graph(folder, few, ExportConfig(weights="fp32"), progress=silent) == []


def test_the_worst_missed_gate_is_the_one_that_is_missed_by_most() -> None:
    gates = [
        Gate(name="holds", value=1, limit=2),
        Gate(name="near", value=3, limit=2),
        Gate(name="far", value=0.5, limit=0.1),
    ]
    assert worst_missed(gates) == gates[2]
    assert worst_missed(gates[:1]) is None
