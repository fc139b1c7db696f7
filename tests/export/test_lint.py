import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest

from mothertongue_export.checkpoint import read_checkpoint
from mothertongue_export.graph import write_device_graph
from mothertongue_export.lint import DeviceGraph, lint, lint_weights, quantization_table

Change = Callable[[onnx.GraphProto], None]


@pytest.fixture
def folder(tied: Path, tmp_path: Path) -> Path:
    write_device_graph(read_checkpoint(tied), tmp_path, block_size=32)
    return tmp_path


def alter(folder: Path, change: Change) -> None:
    model = onnx.load(folder / "model.onnx", load_external_data=False)
    change(model.graph)
    (folder / "model.onnx").write_bytes(model.SerializeToString())


@pytest.mark.parametrize("kind", ["tied", "untied"])
def test_a_graph_as_it_was_written_has_no_findings(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    checkpoint = read_checkpoint(request.getfixturevalue(kind))
    write_device_graph(checkpoint, tmp_path, block_size=32)
    assert lint(tmp_path, tied=kind == "tied") == []
    assert lint_weights(tmp_path, checkpoint) == []


def remove_accuracy_level(graph: onnx.GraphProto) -> None:
    node = next(node for node in graph.node if node.name == "model.layers.1.mlp.down_proj")
    kept = [attribute for attribute in node.attribute if attribute.name != "accuracy_level"]
    del node.attribute[:]
    node.attribute.extend(kept)


def add_float_weight(graph: onnx.GraphProto) -> None:
    graph.initializer.append(onnx.numpy_helper.from_array(np.ones((4, 4), np.float32), "adapter"))
    graph.node.append(onnx.helper.make_node("MatMul", ["last_hidden", "adapter"], ["unused"], name="adapter"))


def move_embedding(graph: onnx.GraphProto) -> None:
    rows = next(tensor for tensor in graph.initializer if tensor.name == "embedding.rows")
    next(entry for entry in rows.external_data if entry.key == "offset").value = "4096"


def leave_folder(graph: onnx.GraphProto) -> None:
    tensor = next(tensor for tensor in graph.initializer if tensor.name == "rotary.cos")
    next(entry for entry in tensor.external_data if entry.key == "location").value = "../secrets"


def misalign(graph: onnx.GraphProto) -> None:
    tensor = next(tensor for tensor in graph.initializer if tensor.name == "rotary.cos")
    next(entry for entry in tensor.external_data if entry.key == "offset").value = "100"


@pytest.mark.parametrize(
    ("change", "finding"),
    [
        (remove_accuracy_level, "model.layers.1.mlp.down_proj: accuracy_level is 0, 4 expected"),
        (add_float_weight, "adapter: a float weight"),
        (move_embedding, "two tables"),
        (leave_folder, "rotary.cos: its bytes are not in"),
        (misalign, "rotary.cos: .* at 100; .* at the start of a page expected"),
    ],
)
def test_each_departure_is_found_and_named(folder: Path, change: Change, finding: str) -> None:
    alter(folder, change)
    findings = lint(folder, tied=True)
    assert any(re.search(finding, found) for found in findings), findings


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
    alter(folder, take_scales_of_another_layer)
    (finding,) = lint_weights(folder, read_checkpoint(tied))
    assert finding.startswith("model.layers.1.mlp.down_proj: row")


def test_the_quantization_table_counts_every_matrix(folder: Path, tied: Path) -> None:
    rows = {row["weights"]: row for row in quantization_table(folder)}
    assert set(rows) == {"self_attn.qkv", "self_attn.o_proj", "mlp.gate_up", "mlp.down_proj", "logits"}
    assert all(row["bits"] == 8 and row["block_size"] == 32 for row in rows.values())
    assert rows["mlp.gate_up"]["matrices"] == 2
    assert rows["mlp.gate_up"]["bytes"] == 2 * (288 * 64 + 4 * 288 * 2)
