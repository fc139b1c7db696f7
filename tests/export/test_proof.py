"""Planted faults: each makes another model, or another session; each proof must fail and name the place."""

import dataclasses
import json
import re
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from mothertongue.errors import CheckFailed
from mothertongue.session import Session
from mothertongue_export.checkpoint import Checkpoint, read_checkpoint
from mothertongue_export.graph import write_device_graph
from mothertongue_export.oracle import Oracle
from mothertongue_export.parity import ParityReport
from mothertongue_export.proof import COPIED_FILES, prove
from mothertongue_export.quantization import Plan, Storage
from mothertongue_trainer.progress import silent
from mothertongue_trainer.recipe import ExportConfig

Weights = dict[str, np.ndarray[Any, Any]]
LAYER = "model.layers.1"


@pytest.fixture
def run(oracle: Oracle, config: ExportConfig) -> Callable[[Path], ParityReport]:
    """Prove a folder on a few texts."""
    few = dataclasses.replace(oracle, texts=oracle.texts[::4], questions=oracle.questions[:2])
    return lambda folder: prove(folder, few, config=config, progress=silent)


def write(folder: Path, checkpoint: Checkpoint, **options: Any) -> Path:
    for name in COPIED_FILES:
        shutil.copyfile(checkpoint.folder / name, folder / name)
    write_device_graph(checkpoint, folder, **({"block_size": 32} | options))
    return folder


def alter(folder: Path, change: Callable[[onnx.GraphProto], None]) -> None:
    model = onnx.load(folder / "model.onnx", load_external_data=False)
    change(model.graph)
    (folder / "model.onnx").write_bytes(model.SerializeToString())


def place_of(report: ParityReport) -> str:
    """What running the graph piece by piece found, which comes last."""
    return report.findings[-1]


def test_the_graph_of_the_checkpoint_passes(
    tied: Path, tmp_path: Path, run: Callable[[Path], ParityReport]
) -> None:
    report = run(write(tmp_path, read_checkpoint(tied)))
    assert report.failures == []
    assert report.figures.top1_agreement_percent > 99
    assert 0 < report.figures.reference_max_abs < 1e-4
    assert report.figures.chats.asked == 2


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
def test_a_misplaced_weight_is_read_in_the_bytes_and_found_by_running(
    change: Callable[[Weights], None],
    place: str,
    tied: Path,
    tmp_path: Path,
    run: Callable[[Path], ParityReport],
) -> None:
    faulty = read_checkpoint(tied)
    change(faulty.weights)
    report = run(write(tmp_path, faulty))
    assert report.verdict == "FAIL"
    assert any(finding.startswith(f"{LAYER}.{place}") for finding in report.findings[:-1])
    first = place_of(report)
    layer = "model.layers.0" if place == "self_attn.o_proj" else LAYER  # both of them are wrong
    assert first.startswith(f"{layer}.{place}"), first
    assert "first bad place" in first


def shift_positions(graph: onnx.GraphProto) -> None:
    """Let every new token stand one place after its own, as after a gap."""
    one = next(tensor for tensor in graph.initializer if tensor.name == "one")
    one.CopyFrom(onnx.numpy_helper.from_array(np.array([0], np.int64), "one"))


def shift_after_a_boundary(graph: onnx.GraphProto) -> None:
    """Let positions be right at first and one too large in every later piece."""
    nodes = [
        onnx.helper.make_node("Shape", ["input_ids"], ["fed"], start=1, end=2),
        onnx.helper.make_node("Greater", ["mask_tokens", "fed"], ["is_later"]),
        onnx.helper.make_node("Cast", ["is_later"], ["later"], to=onnx.TensorProto.INT64),
        onnx.helper.make_node("Add", ["mask_tokens", "later"], ["shifted_tokens"]),
    ]
    place = next(number for number, node in enumerate(graph.node) if node.name == "last_token")
    graph.node[place].input[0] = "shifted_tokens"
    after = list(graph.node)[place:]
    del graph.node[place:]
    graph.node.extend([*nodes, *after])


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


def swap_silu(graph: onnx.GraphProto) -> None:
    node = next(node for node in graph.node if node.name == f"{LAYER}.mlp.silu")
    other = next(node for node in graph.node if node.name == f"{LAYER}.mlp.product")
    node.input[0], other.input[1] = f"{LAYER}.mlp.gate_up.up", f"{LAYER}.mlp.gate_up.gate"


@pytest.mark.parametrize(
    ("change", "place"),
    [
        (shift_positions, "model.layers.0.self_attn.attended: first bad place"),
        (shift_after_a_boundary, "model.layers.0.self_attn.attended: first bad place.* began at"),
        (pair_neighbours, "model.layers.0.self_attn.attended: first bad place"),
        (swap_silu, "model.layers.1.mlp.product: first bad place"),
    ],
)
def test_a_wrong_graph_fails_and_its_first_bad_node_is_named(
    change: Callable[[onnx.GraphProto], None],
    place: str,
    tied: Path,
    tmp_path: Path,
    run: Callable[[Path], ParityReport],
) -> None:
    alter(write(tmp_path, read_checkpoint(tied)), change)
    report = run(tmp_path)
    assert any(not gate.passed for gate in report.gates), report.rows()
    assert re.search(place, place_of(report)), place_of(report)


def test_a_graph_that_does_not_run_is_one_line(
    tied: Path, tmp_path: Path, run: Callable[[Path], ParityReport]
) -> None:
    alter(write(tmp_path, read_checkpoint(tied)), take_first_position)
    with pytest.raises(CheckFailed, match=r"the graph does not run: .*logits"):
        run(tmp_path)


def take_scales_of_another_layer(graph: onnx.GraphProto) -> None:
    tensors = {tensor.name: tensor for tensor in graph.initializer}
    first, second = (tensors[f"model.layers.{layer}.mlp.gate_up.scales"] for layer in (0, 1))
    del second.external_data[:]
    second.external_data.extend(first.external_data)


def test_scales_of_another_layer_are_named(
    tied: Path, tmp_path: Path, run: Callable[[Path], ParityReport]
) -> None:
    alter(write(tmp_path, read_checkpoint(tied)), take_scales_of_another_layer)
    report = run(tmp_path)
    assert all(finding.startswith(f"{LAYER}.mlp.gate_up") for finding in report.findings), report.findings
    assert len(report.findings) == 2


def test_one_node_at_four_bits_is_named(
    tied: Path, tmp_path: Path, run: Callable[[Path], ParityReport]
) -> None:
    name = f"{LAYER}.self_attn.o_proj"
    plan = Plan(default=Storage(bits=8, block_size=32), exceptions={name: Storage(bits=4, block_size=32)})
    report = run(write(tmp_path, read_checkpoint(tied), plan=plan))
    assert report.findings[0] == f"{name}: 4 bits, 8 expected"
    assert place_of(report).startswith(f"{name}: first bad place; off by 0.")


class StaleSession(Session):
    """A session whose cache is never emptied, only its count."""

    def rewind(self, position: int) -> None:
        kept = len(self._tokens)
        super().rewind(position)
        if position == 0 and kept:
            self._tokens = [0] * min(2, kept)  # two positions of the last text stay in the cache


class LateSession(Session):
    """A session that takes every piece after the first to begin one position later."""

    def feed_each(self, ids: Sequence[int]) -> Any:
        if self.position:
            self._tokens.append(0)
        return super().feed_each(ids)


@pytest.mark.parametrize(("kind", "way"), [(StaleSession, "token by token"), (LateSession, "in two pieces")])
def test_a_faulty_session_is_told_from_a_faulty_graph(
    kind: type[Session],
    way: str,
    tied: Path,
    tmp_path: Path,
    run: Callable[[Path], ParityReport],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("mothertongue_export.proof.Session", kind)
    monkeypatch.setattr("mothertongue.session.Session", kind)
    report = run(write(tmp_path, read_checkpoint(tied)))
    assert report.verdict == "FAIL"
    assert f"every node of the graph is right by itself; the session departs, fed {way}" in place_of(report)


def test_another_tokenizer_another_end_and_a_missing_accuracy_level_are_each_named(
    tied: Path, tmp_path: Path, run: Callable[[Path], ParityReport]
) -> None:
    write(tmp_path, read_checkpoint(tied), accuracy_level=0)
    tokenizer = (tmp_path / "tokenizer.json").read_text(encoding="utf-8")
    (tmp_path / "tokenizer.json").write_text(tokenizer.replace('"NFC"', '"NFKC"'), encoding="utf-8")
    generation = {"bos_token_id": 0, "eos_token_id": 2}
    (tmp_path / "generation_config.json").write_text(json.dumps(generation), encoding="utf-8")
    report = run(tmp_path)
    assert report.verdict == "FAIL"
    for finding in (
        "tokenizer.json: differs",
        "generation_config.json: eos_token_id is 2, the id 4",
        "logits: accuracy_level is 0",
        f"{LAYER}.mlp.down_proj: accuracy_level is 0",
    ):
        assert any(found.startswith(finding) for found in report.findings), report.findings
