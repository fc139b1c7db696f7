import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest

from mothertongue_export.checkpoint import read_checkpoint
from mothertongue_export.graph import write_device_graph
from mothertongue_export.lint import declared_in, lint, provider_findings, quantization_table
from mothertongue_export.quantization import FLOAT, Plan, Storage
from mothertongue_export.weights_lint import lint_weights

DOWN = "model.layers.1.mlp.down_proj"
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


def plan_with(storage: Storage) -> Plan:
    return Plan(default=Storage(bits=8, block_size=32), exceptions={DOWN: storage})


@pytest.mark.parametrize(("storage", "bits"), [(Storage(bits=4, block_size=32), 4), (FLOAT, 32)])
def test_a_matrix_of_other_bits_than_declared_is_named(
    storage: Storage, bits: int, tied: Path, tmp_path: Path
) -> None:
    write_device_graph(read_checkpoint(tied), tmp_path, plan=plan_with(storage))
    assert lint(tmp_path, tied=True) == [f"{DOWN}: {bits} bits, 8 expected"]
    assert lint(tmp_path, tied=True, declared={DOWN: bits}) == []
    row = next(row for row in quantization_table(tmp_path) if row["bits"] == bits)
    assert (row["weights"], row["matrices"]) == ("mlp.down_proj", 1)


@pytest.mark.parametrize("kind", ["tied", "untied"])
def test_a_graph_of_floats_has_no_findings_where_floats_are_meant(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    checkpoint = read_checkpoint(request.getfixturevalue(kind))
    write_device_graph(checkpoint, tmp_path, plan=Plan(default=FLOAT))
    assert lint(tmp_path, tied=kind == "tied", weights="fp32") == []
    assert lint_weights(tmp_path, checkpoint) == []
    assert any("32 bits, 8 expected" in finding for finding in lint(tmp_path, tied=kind == "tied"))


def test_an_operator_that_the_cpu_provider_lacks_is_found(folder: Path) -> None:
    def add_unknown(graph: onnx.GraphProto) -> None:
        node = next(node for node in graph.node if node.op_type == "QuickGelu")
        node.op_type = "PagedAttention"

    alter(folder, add_unknown)
    (finding,) = provider_findings(folder)
    assert "the CPU provider cannot load it" in finding


def test_the_declaration_is_read_from_parity_json(bundle: Path, tmp_path: Path) -> None:
    declared = declared_in(bundle)
    assert set(declared.values()) <= {8, 32}
    assert DOWN in declared
    assert declared_in(tmp_path) == {}


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


def test_the_quantization_table_counts_every_matrix(folder: Path, tied: Path) -> None:
    rows = {row["weights"]: row for row in quantization_table(folder)}
    assert set(rows) == {"self_attn.qkv", "self_attn.o_proj", "mlp.gate_up", "mlp.down_proj", "logits"}
    assert all(row["bits"] == 8 and row["block_size"] == 32 for row in rows.values())
    assert rows["mlp.gate_up"]["matrices"] == 2
    assert rows["mlp.gate_up"]["bytes"] == 2 * (288 * 64 + 4 * 288 * 2)
