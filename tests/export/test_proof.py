"""Planted faults: each makes another model, and the proof of each must fail.

`figures` are what running the bundle shows, `findings` what reading it shows. A fault that changes the
computation must show in the figures alone, so that a fault of the lint cannot hide it.
"""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from mothertongue.session import Session
from mothertongue.tokenizer import Tokenizer
from mothertongue_export.checkpoint import Checkpoint, read_checkpoint
from mothertongue_export.comparison import measure, select_texts
from mothertongue_export.graph import write_device_graph
from mothertongue_export.lint import lint_weights
from mothertongue_export.parity import ParityReport, judge
from mothertongue_export.proof import COPIED_FILES, prove
from mothertongue_export.pytorch import PyTorchModel
from mothertongue_trainer.document import Document
from mothertongue_trainer.progress import silent
from mothertongue_trainer.recipe import ExportConfig

Weights = dict[str, np.ndarray[Any, Any]]
LAYER = "model.layers.1"


@pytest.fixture(scope="module")
def model(tied: Path) -> PyTorchModel:
    return PyTorchModel.open(tied)


@pytest.fixture
def run(
    model: PyTorchModel, tied: Path, heldout: list[Document], config: ExportConfig
) -> Callable[[Path], ParityReport]:
    """Judge a folder by its figures alone."""

    def judged(folder: Path) -> ParityReport:
        texts = select_texts(heldout[::4], Tokenizer.open(tied), context=64)
        figures = measure(
            Session.open(folder, threads=1), model, texts, reference_max_abs=0.0, progress=silent
        )
        return judge(figures, [], config)

    return judged


def write(folder: Path, checkpoint: Checkpoint) -> Path:
    for name in COPIED_FILES:
        shutil.copyfile(checkpoint.folder / name, folder / name)
    write_device_graph(checkpoint, folder, block_size=32)
    return folder


def test_the_graph_of_the_checkpoint_passes(
    tied: Path, tmp_path: Path, run: Callable[[Path], ParityReport]
) -> None:
    report = run(write(tmp_path, read_checkpoint(tied)))
    assert report.failures == []
    assert report.figures.top1_agreement_percent > 99


def swap(one: str, two: str) -> Callable[[Weights], None]:
    def change(weights: Weights) -> None:
        names = [f"model.layers.{part}.weight" for part in (one, two)]
        weights[names[0]], weights[names[1]] = weights[names[1]], weights[names[0]]

    return change


def transpose(weights: Weights) -> None:
    name = f"{LAYER}.self_attn.k_proj.weight"
    weights[name] = weights[name].T.copy()


def swap_heads(weights: Weights) -> None:
    name = f"{LAYER}.self_attn.v_proj.weight"
    weights[name] = np.concatenate(np.split(weights[name], 2)[::-1])


@pytest.mark.parametrize(
    ("change", "place"),
    [
        pytest.param(swap("1.mlp.gate_proj", "1.mlp.up_proj"), "mlp.gate_up", id="gate and up"),
        pytest.param(swap("1.self_attn.k_proj", "1.self_attn.v_proj"), "self_attn.qkv", id="key and value"),
        pytest.param(swap("1.self_attn.q_norm", "1.self_attn.k_norm"), "self_attn.q_norm", id="norms"),
        pytest.param(swap("0.self_attn.o_proj", "1.self_attn.o_proj"), "self_attn.o_proj", id="layers"),
        pytest.param(transpose, "self_attn.qkv", id="transposed"),
        pytest.param(swap_heads, "self_attn.qkv", id="heads"),
    ],
)
def test_a_misplaced_weight_fails_and_is_located(
    change: Callable[[Weights], None],
    place: str,
    tied: Path,
    tmp_path: Path,
    run: Callable[[Path], ParityReport],
) -> None:
    checkpoint, faulty = read_checkpoint(tied), read_checkpoint(tied)
    change(faulty.weights)
    write(tmp_path, faulty)
    assert any(finding.startswith(f"{LAYER}.{place}") for finding in lint_weights(tmp_path, checkpoint))
    if "norm" not in place:  # two norms near one another change little; the finding is what fails
        assert run(tmp_path).verdict == "FAIL"


def shift_positions(graph: onnx.GraphProto) -> None:
    """Let every new token stand one place after its own, as after a gap."""
    one = next(tensor for tensor in graph.initializer if tensor.name == "one")
    one.CopyFrom(onnx.numpy_helper.from_array(np.array([0], np.int64), "one"))


def pair_neighbours(graph: onnx.GraphProto) -> None:
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.name == "rotary_interleaved":
                attribute.i = 1


def take_first_position(graph: onnx.GraphProto) -> None:
    node = next(node for node in graph.node if node.name == "last_hidden")
    zero, one = (f"position_{number}" for number in (0, 1))
    for name, value in {zero: 0, one: 1}.items():
        graph.initializer.append(onnx.numpy_helper.from_array(np.array([value], np.int64), name))
    node.input[1:3] = [zero, one]


@pytest.mark.parametrize("change", [shift_positions, pair_neighbours, take_first_position])
def test_a_wrong_graph_fails_by_its_figures(
    change: Callable[[onnx.GraphProto], None],
    tied: Path,
    tmp_path: Path,
    run: Callable[[Path], ParityReport],
) -> None:
    write(tmp_path, read_checkpoint(tied))
    graph = onnx.load(tmp_path / "model.onnx", load_external_data=False)
    change(graph.graph)
    (tmp_path / "model.onnx").write_bytes(graph.SerializeToString())
    report = run(tmp_path)
    assert report.verdict == "FAIL", report.rows()


def test_everything_at_once_is_reported_with_its_place(
    tied: Path, tmp_path: Path, heldout: list[Document], config: ExportConfig
) -> None:
    """Another tokenizer, one altered scale and a missing accuracy level, in the words of the whole proof."""
    checkpoint = read_checkpoint(tied)
    write(tmp_path, checkpoint)
    write_device_graph(checkpoint, tmp_path, block_size=32, accuracy_level=0)
    tokenizer = (tmp_path / "tokenizer.json").read_text(encoding="utf-8")
    (tmp_path / "tokenizer.json").write_text(tokenizer.replace('"NFC"', '"NFKC"'), encoding="utf-8")
    report = prove(tmp_path, checkpoint, heldout=heldout, config=config, progress=silent)
    assert report.verdict == "FAIL"
    assert any(finding.startswith("tokenizer.json: differs") for finding in report.findings)
    assert any("logits: accuracy_level is 0" in finding for finding in report.findings)
    assert 0 < report.figures.reference_max_abs < 1e-4
