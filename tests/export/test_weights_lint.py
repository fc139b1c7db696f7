from pathlib import Path

import numpy as np
import onnx
import pytest

from mothertongue_export.checkpoint import read_checkpoint
from mothertongue_export.compensation import compensate, spread_of
from mothertongue_export.graph import write_device_graph
from mothertongue_export.lint import DeviceGraph
from mothertongue_export.quantization import FLOAT, Plan, Storage, dequantize
from mothertongue_export.weights_lint import lint_weights


@pytest.fixture
def folder(tied: Path, tmp_path: Path) -> Path:
    write_device_graph(read_checkpoint(tied), tmp_path, block_size=32)
    return tmp_path


@pytest.mark.parametrize(
    "storage", [Storage(bits=8, block_size=128), Storage(bits=4, block_size=32), FLOAT], ids=str
)
def test_a_graph_as_it_was_written_has_no_findings(storage: Storage, tied: Path, tmp_path: Path) -> None:
    checkpoint = read_checkpoint(tied)
    plan = Plan(default=storage, exceptions={"logits": Storage(bits=8, block_size=32)})
    write_device_graph(checkpoint, tmp_path, plan=plan)
    assert lint_weights(tmp_path, checkpoint) == []


def test_a_compensated_graph_has_no_findings_and_steps_in_other_places_have(
    tied: Path, tmp_path: Path
) -> None:
    checkpoint = read_checkpoint(tied)
    node, storage = "model.layers.1.mlp.down_proj", Storage(bits=4, block_size=32)
    weight = checkpoint.weights[f"{node}.weight"]
    inputs = np.random.default_rng(0).normal(size=(300, 20)) @ np.random.default_rng(1).normal(size=(20, 144))
    matrix = compensate(weight, storage, spread_of(inputs.T @ inputs))
    assert (np.abs(dequantize(matrix) - weight) > 0.6 * np.repeat(matrix.scales, 32, axis=1)[:, :144]).any()
    eight = Storage(bits=8, block_size=32)
    plan = Plan(default=eight, exceptions={node: storage}, fitted={node: matrix})
    write_device_graph(checkpoint, tmp_path, plan=plan)
    assert lint_weights(tmp_path, checkpoint) == []
    matrix.steps[2, 0] = np.roll(matrix.steps[2, 0], 3)
    write_device_graph(checkpoint, tmp_path, plan=plan)
    (finding,) = lint_weights(tmp_path, checkpoint)
    assert finding.startswith(f"{node}: row 2, block 0 is off by up to")


@pytest.mark.parametrize(
    ("tensor", "value", "finding"),
    [
        ("model.layers.1.self_attn.qkv.scales", 1.05, "model.layers.1.self_attn.qkv: row 3, block 0"),
        ("embedding.scales", np.nan, "embedded: row 1, block 1"),
        ("model.layers.0.self_attn.q_norm.weight", 1.01, "model.layers.0.self_attn.q_norm.weight: is not"),
    ],
)
def test_one_altered_value_is_found_and_named(
    folder: Path, tied: Path, tensor: str, value: float, finding: str
) -> None:
    """The value numbered 6 or 3 of the tensor is multiplied: row 3, block 0 where a row has two blocks."""
    file, offset, _ = DeviceGraph(folder).place(tensor)
    number = 3 if tensor == "embedding.scales" else 6
    with (folder / file).open("r+b") as data:
        data.seek(offset + 4 * number)
        stored = np.frombuffer(data.read(4), np.float32)
        data.seek(offset + 4 * number)
        data.write((stored * np.float32(value)).tobytes())
    findings = lint_weights(folder, read_checkpoint(tied))
    assert any(finding in found for found in findings), findings


def take_scales_of_another_layer(graph: onnx.GraphProto) -> None:
    tensors = {tensor.name: tensor for tensor in graph.initializer}
    first, second = (tensors[f"model.layers.{layer}.mlp.down_proj.scales"] for layer in (0, 1))
    del second.external_data[:]
    second.external_data.extend(first.external_data)


def test_scales_of_another_layer_are_found_though_they_nearly_fit(folder: Path, tied: Path) -> None:
    model = onnx.load(folder / "model.onnx", load_external_data=False)
    take_scales_of_another_layer(model.graph)
    (folder / "model.onnx").write_bytes(model.SerializeToString())
    (finding,) = lint_weights(folder, read_checkpoint(tied))
    assert finding.startswith("model.layers.1.mlp.down_proj: row")


def test_a_float_matrix_must_be_that_of_the_checkpoint(tied: Path, tmp_path: Path) -> None:
    other = read_checkpoint(tied)
    other.weights["model.layers.0.mlp.up_proj.weight"][3, 4] += 1e-6
    write_device_graph(other, tmp_path, plan=Plan(default=FLOAT))
    (finding,) = lint_weights(tmp_path, read_checkpoint(tied))
    assert finding == "model.layers.0.mlp.gate_up: is not the float weight of the checkpoint"
