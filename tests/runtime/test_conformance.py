"""Bundles whose hashes are right and whose graph is not: refused before onnxruntime sees them."""

import dataclasses
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

import mothertongue
from mothertongue import BundleError
from mothertongue.bundle import Manifest
from mothertongue.conformance import check_graph, problems, read_sizes
from mothertongue.graph import KEEP_INPUT, Graph, Tensor, Value, read_graph

Change = Callable[[dict[str, Any]], object]


@pytest.fixture
def no_onnxruntime(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails the test where onnxruntime is asked for anything."""

    def refuse(*arguments: object, **options: object) -> None:
        raise AssertionError("onnxruntime has seen the bundle")

    monkeypatch.setattr("onnxruntime.InferenceSession", refuse)


def found(bundle: Path, **changes: Mapping[str, Any]) -> list[str]:
    """The problems of the tiny graph with some inputs, outputs or tensors replaced, or removed by None."""
    graph = read_graph(bundle / "model.onnx")
    for part, values in changes.items():
        merged = {**getattr(graph, part), **values}
        kept = {name: value for name, value in merged.items() if value is not None}
        graph = dataclasses.replace(graph, **{part: kept})
    assert isinstance(graph, Graph)
    return list(problems(graph, read_sizes(bundle), Manifest.read(bundle)))


def test_the_tiny_graph_is_one_of_the_format(bundle: Path) -> None:
    assert found(bundle) == []
    check_graph(bundle, Manifest.read(bundle))


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"inputs": {"secret": Value(type=7, shape=(1,))}}, "the input 'secret' is not in the format"),
        ({"inputs": {"input_ids": None}}, "the input 'input_ids' is missing"),
        ({"inputs": {"input_ids": Value(type=1, shape=("b", "s"))}}, "the input 'input_ids' has type 1"),
        (
            {"inputs": {"past_key_values.0.key": Value(type=1, shape=("b", 2, "past", 1 << 40))}},
            "the input 'past_key_values.0.key' has type 1 and shape",
        ),
        ({"inputs": {"past_key_values.2.key": Value(type=1, shape=("b", 2, "p", 16))}}, "not in the format"),
        ({"outputs": {"present.1.value": None}}, "the output 'present.1.value' is missing"),
        ({"outputs": {"logits": Value(type=1, shape=("b", "k", 10**12))}}, "config.json asks for type 1"),
        (
            {"outputs": {"last_logits": Value(type=1, shape=("b", "k", 384))}},
            "asks for type 1 and ['any', 1,",
        ),
        ({"tensors": {KEEP_INPUT: None}}, f"the input {KEEP_INPUT!r} is not in the format"),
        ({"tensors": {"t": Tensor(type=1, shape=(10**9, 10**9), bytes=4)}}, "has 4 bytes, its shape"),
        ({"tensors": {"t": Tensor(type=1, shape=(-1, -4), bytes=16)}}, "has type 1 and shape [-1, -4]"),
        ({"tensors": {"t": Tensor(type=8, shape=(1,), bytes=1)}}, "has type 8"),
        (
            {"tensors": {"t": Tensor(type=1, shape=(1,), bytes=4, location="../../etc/passwd")}},
            "lies in '../../etc/passwd', which is no file of the bundle",
        ),
        (
            {"tensors": {"t": Tensor(type=1, shape=(1,), bytes=4, location="/etc/passwd")}},
            "which is no file of the bundle",
        ),
        (
            {"tensors": {"t": Tensor(type=1, shape=(1,), bytes=4, location="model.onnx.data", offset=10**9)}},
            "lies beyond the end of model.onnx.data",
        ),
        (
            {"tensors": {"t": Tensor(type=1, shape=(1,), bytes=4, location="model.onnx.data", offset=-1)}},
            "lies beyond the end of model.onnx.data",
        ),
    ],
)
def test_a_graph_that_is_not_of_the_format_is_told_so(
    bundle: Path, changes: dict[str, Any], complaint: str
) -> None:
    assert any(complaint in problem for problem in found(bundle, **changes)), found(bundle, **changes)


def edit_config(folder: Path, change: Change) -> None:
    path = folder / "config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    change(config)
    path.write_text(json.dumps(config), encoding="utf-8")


@pytest.mark.usefixtures("no_onnxruntime")
@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda config: config.pop("head_dim"), "KeyError.*head_dim"),
        (lambda config: config.update(num_hidden_layers=0), "num_hidden_layers is 0, a positive integer"),
        (lambda config: config.update(vocab_size="many"), "vocab_size is 'many'"),
        (lambda config: config.update(head_dim=True), "head_dim is True"),
        (lambda config: config.update(max_position_embeddings=1 << 50), "needs a cache of .* bytes; at most"),
        (lambda config: config.update(num_hidden_layers=10**9), "needs a cache of"),
        (lambda config: config.update(num_hidden_layers=3), "'past_key_values.2.key' is missing"),
        (lambda config: config.update(vocab_size=385), "the output 'logits' has type 1"),
    ],
)
def test_a_config_that_the_graph_does_not_fit_never_reaches_onnxruntime(
    copied: Path, sign: Callable[[Path, str], None], change: Change, complaint: str
) -> None:
    edit_config(copied, change)
    sign(copied, "config.json")
    with pytest.raises(BundleError, match=complaint):
        mothertongue.load(copied)


@pytest.mark.usefixtures("no_onnxruntime")
@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        (b"model.onnx.data", b"../../../secret", "which is no file of the bundle"),
        (b"attention_mask", b"attention_maks", "'attention_maks' is not in the format"),
        (b"present.0.value", b"present.0.valeu", "'present.0.valeu' is not in the format"),
    ],
)
def test_a_graph_that_was_tampered_with_and_signed_never_reaches_onnxruntime(
    copied: Path, sign: Callable[[Path, str], None], old: bytes, new: bytes, complaint: str
) -> None:
    content = (copied / "model.onnx").read_bytes()
    assert old in content
    (copied / "model.onnx").write_bytes(content.replace(old, new))
    sign(copied, "model.onnx")
    with pytest.raises(BundleError, match=complaint):
        mothertongue.load(copied)


@pytest.mark.usefixtures("no_onnxruntime")
@pytest.mark.parametrize("text", ["[" * 100_000, "", "[]", '"a"'])
def test_a_config_that_is_none_is_named(copied: Path, sign: Callable[[Path, str], None], text: str) -> None:
    (copied / "config.json").write_text(text, encoding="utf-8")
    sign(copied, "config.json")
    with pytest.raises(BundleError, match=r"config\.json"):
        mothertongue.load(copied)
