"""The device graph against transformers.

To tell an error of the graph from one of quantization, the graph runs with float32 activations (accuracy
level 0) and transformers with the weights that the bytes of the graph stand for, computed here.
"""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from transformers import Qwen3ForCausalLM

from mothertongue_export.checkpoint import read_checkpoint
from mothertongue_export.graph import write_device_graph
from mothertongue_export.quantization import FLOAT, Plan, Storage

FLOAT32 = 2e-5  # absolute, on logits up to 20: float32 sums in another order through two layers
BLOCK = 32
CONTEXT = 64  # of the checkpoints of conftest

Array = np.ndarray[Any, Any]


def rounded(weight: torch.Tensor) -> torch.Tensor:
    """Return what 8 bits leave of a weight (N, K), block by block."""
    parts = []
    for block in weight.split(BLOCK, dim=1):
        step = block.abs().amax(dim=1, keepdim=True) / 127
        parts.append((block / step.clamp(min=1e-30)).round() * step)
    return torch.cat(parts, dim=1)


def rounded_network(checkpoint: Path) -> Qwen3ForCausalLM:
    network = Qwen3ForCausalLM.from_pretrained(checkpoint, attn_implementation="eager").eval()
    for parameter in network.parameters():
        if parameter.ndim == 2:
            parameter.data = rounded(parameter.data)
    return network


class Driver:
    """Runs a device graph with any batch, and a cache that grows or has its full length from the start."""

    def __init__(self, folder: Path) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        self.session = onnxruntime.InferenceSession(str(folder / "model.onnx"), options)
        self.caches = [i for i in self.session.get_inputs() if i.name.startswith("past_key_values.")]

    def empty(self, batch: int, length: int) -> dict[str, Array]:
        return {i.name: np.zeros((batch, i.shape[1], length, i.shape[3]), np.float32) for i in self.caches}

    def run(self, ids: Array, total: int, cache: dict[str, Array]) -> tuple[Array, dict[str, Array]]:
        inputs = {"input_ids": ids, "attention_mask": np.ones((len(ids), total), np.int64)}
        presents = [name.replace("past_key_values", "present") for name in cache]
        logits, *values = self.session.run(["logits", *presents], inputs | cache)
        assert logits.shape[1] == 1
        return logits[:, 0], dict(zip(cache, values, strict=True))

    def rows(self, ids: Array, kept: int) -> Array:
        inputs = {"input_ids": ids, "attention_mask": np.ones(ids.shape, np.int64)}
        kept_ = {"num_logits_to_keep": np.array(kept, np.int64)}
        logits: Array = self.session.run(["logits"], inputs | kept_ | self.empty(len(ids), 0))[0]
        return logits


@pytest.fixture(params=["tied", "untied"])
def case(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Driver, Array, Array]:
    """A graph, ids (2, 40) and the logits (2, 40, V) that transformers computes for them."""
    checkpoint = request.getfixturevalue(request.param)
    model = read_checkpoint(checkpoint)
    write_device_graph(model, tmp_path, block_size=BLOCK, accuracy_level=0)
    ids = np.random.default_rng(0).integers(model.architecture.vocabulary, size=(2, 40))
    with torch.no_grad():
        expected = rounded_network(checkpoint)(torch.from_numpy(ids)).logits.numpy()
    return Driver(tmp_path), ids, expected


@pytest.mark.parametrize("batch", [1, 2])
def test_prefill_gives_the_logits_of_the_last_position(case: tuple[Driver, Array, Array], batch: int) -> None:
    driver, ids, expected = case
    logits, _ = driver.run(ids[:batch], 40, driver.empty(batch, 0))
    np.testing.assert_allclose(logits, expected[:batch, -1], atol=FLOAT32)


@pytest.mark.parametrize(("kept", "rows"), [(0, 40), (1, 1), (7, 7), (40, 40)])
def test_the_logits_of_any_number_of_last_positions_can_be_had(
    case: tuple[Driver, Array, Array], kept: int, rows: int
) -> None:
    driver, ids, expected = case
    logits = driver.rows(ids, kept)
    np.testing.assert_allclose(logits, expected[:, -rows:], atol=FLOAT32)


@pytest.mark.parametrize("kind", ["tied", "untied"])
def test_a_graph_of_float_weights_is_pytorch(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    checkpoint = request.getfixturevalue(kind)
    model = read_checkpoint(checkpoint)
    write_device_graph(model, tmp_path, plan=Plan(default=FLOAT))
    ids = np.random.default_rng(0).integers(model.architecture.vocabulary, size=(2, 40))
    network = Qwen3ForCausalLM.from_pretrained(checkpoint, attn_implementation="eager").eval()
    with torch.no_grad():
        expected = network(torch.from_numpy(ids)).logits.numpy()
    np.testing.assert_allclose(Driver(tmp_path).rows(ids, 0), expected, atol=FLOAT32)


def test_each_matrix_is_stored_as_the_plan_says(tied: Path, tmp_path: Path) -> None:
    exceptions = {
        "logits": Storage(bits=8, block_size=64),
        "model.layers.0.mlp.down_proj": FLOAT,
        "model.layers.1.self_attn.qkv": Storage(bits=8, block_size=16),
    }
    plan = Plan(default=Storage(bits=4, block_size=32), exceptions=exceptions)
    write_device_graph(read_checkpoint(tied), tmp_path, plan=plan)
    nodes = onnx.load(tmp_path / "model.onnx", load_external_data=False).graph.node
    stored = {
        node.name: tuple(a.i for name in ("bits", "block_size") for a in node.attribute if a.name == name)
        for node in nodes
        if node.op_type == "MatMulNBits"
    }
    assert stored.pop("logits") == (8, 64)
    assert stored.pop("model.layers.1.self_attn.qkv") == (8, 16)
    assert "model.layers.0.mlp.down_proj" not in stored
    assert set(stored.values()) == {(4, 32)}
    assert len(stored) == 6


@pytest.mark.parametrize("cache_length", [0, CONTEXT])
def test_cached_decoding_equals_recomputing(case: tuple[Driver, Array, Array], cache_length: int) -> None:
    driver, ids, expected = case
    cache = driver.empty(1, cache_length)
    for position in range(40):
        logits, cache = driver.run(ids[:1, position : position + 1], position + 1, cache)
        np.testing.assert_allclose(logits, expected[:1, position], atol=FLOAT32)


@pytest.mark.parametrize("boundary", [1, 16, 39])
def test_chunks_of_any_length_continue_where_the_last_one_ended(
    case: tuple[Driver, Array, Array], boundary: int
) -> None:
    driver, ids, expected = case
    _, cache = driver.run(ids[:1, :boundary], boundary, driver.empty(1, CONTEXT))
    logits, _ = driver.run(ids[:1, boundary:], 40, cache)
    np.testing.assert_allclose(logits, expected[:1, -1], atol=FLOAT32)


def test_the_last_position_of_the_context_is_right(tied: Path, tmp_path: Path) -> None:
    model = read_checkpoint(tied)
    write_device_graph(model, tmp_path, block_size=BLOCK, accuracy_level=0)
    ids = np.random.default_rng(1).integers(model.architecture.vocabulary, size=(1, CONTEXT))
    driver = Driver(tmp_path)
    with torch.no_grad():
        expected = rounded_network(tied)(torch.from_numpy(ids)).logits.numpy()
    logits, _ = driver.run(ids, CONTEXT, driver.empty(1, CONTEXT))
    np.testing.assert_allclose(logits, expected[:, -1], atol=FLOAT32)


def test_a_table_whose_width_its_blocks_do_not_divide_is_cut(tied: Path, tmp_path: Path) -> None:
    """128 columns a block, 64 in the table: rows are padded, and the embedding must not show it."""
    model = read_checkpoint(tied)
    write_device_graph(model, tmp_path, block_size=128, accuracy_level=0)
    driver = Driver(tmp_path)
    logits, _ = driver.run(np.array([[0, 9, 7]]), 3, driver.empty(1, CONTEXT))
    network = Qwen3ForCausalLM.from_pretrained(tied, attn_implementation="eager").eval()
    with torch.no_grad():
        expected = network(torch.tensor([[0, 9, 7]])).logits[0, -1].numpy()
    assert np.abs(logits[0] - expected).max() < 0.1  # of 8-bit weights; a misplaced row is off by whole units
    assert logits[0].argmax() == expected.argmax()


def test_the_same_checkpoint_gives_the_same_bytes(tied: Path, tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        write_device_graph(read_checkpoint(tied), tmp_path / name, block_size=BLOCK)
    for file in ("model.onnx", "model.onnx.data"):
        assert (tmp_path / "one" / file).read_bytes() == (tmp_path / "two" / file).read_bytes()


def test_a_tied_table_is_stored_once(tied: Path, untied: Path, tmp_path: Path) -> None:
    sizes = {}
    for name, checkpoint in {"tied": tied, "untied": untied}.items():
        (tmp_path / name).mkdir()
        write_device_graph(read_checkpoint(checkpoint), tmp_path / name, block_size=BLOCK)
        sizes[name] = (tmp_path / name / "model.onnx.data").stat().st_size
    vocabulary, width = read_checkpoint(tied).weights["model.embed_tokens.weight"].shape
    assert sizes["untied"] - sizes["tied"] >= vocabulary * width


def test_the_graph_is_called_as_onnxruntime_genai_and_transformers_js_call_it(
    tied: Path, tmp_path: Path
) -> None:
    write_device_graph(read_checkpoint(tied), tmp_path, block_size=BLOCK)
    session = onnxruntime.InferenceSession(str(tmp_path / "model.onnx"))
    cached = [f"{layer}.{kind}" for layer in (0, 1) for kind in ("key", "value")]
    inputs = {value.name: value.type for value in session.get_inputs()}
    assert list(inputs) == ["input_ids", "attention_mask", *(f"past_key_values.{name}" for name in cached)]
    assert inputs["input_ids"] == inputs["attention_mask"] == "tensor(int64)"
    outputs = {value.name: value.shape for value in session.get_outputs()}
    assert list(outputs) == ["logits", "last_logits", *(f"present.{name}" for name in cached)]
    vocabulary = read_checkpoint(tied).architecture.vocabulary
    assert outputs["logits"] == ["batch", "kept", vocabulary]
    assert outputs["last_logits"] == ["batch", 1, vocabulary], "genai asks for all positions without the 1"
