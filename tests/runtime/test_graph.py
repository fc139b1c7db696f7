import contextlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mothertongue import BundleError, graph
from mothertongue.graph import KEEP_INPUT, Tensor, Value, parse_model, read_graph


def message(number: int, content: bytes | int) -> bytes:
    """One field of a protocol buffer."""
    if isinstance(content, int):
        return bytes([number << 3, content])
    assert len(content) < 128
    tag = [number << 3 | 2] if number < 16 else [(number << 3 | 2) & 0x7F | 0x80, number >> 4]
    return bytes([*tag, len(content)]) + content


def model(*parts: bytes) -> memoryview:
    return memoryview(message(7, b"".join(parts)))


def test_the_tiny_graph_says_what_it_takes_and_gives(bundle: Path) -> None:
    found = read_graph(bundle / "model.onnx")
    assert found.inputs["input_ids"] == Value(type=7, shape=("batch", "seq"))
    assert found.inputs["past_key_values.1.key"] == Value(type=1, shape=("batch", 2, "past", 16))
    assert found.inputs[KEEP_INPUT] == Value(type=7, shape=())
    assert len(found.inputs) == 3 + 4
    assert found.outputs["logits"].shape[-1] == 384
    steps = found.tensors["embedding.steps"]
    assert (steps.type, steps.shape, steps.bytes) == (2, (384, 2, 32), 384 * 64)
    assert (steps.location, steps.offset % 4096) == ("model.onnx.data", 0)


def test_a_tensor_within_the_graph_has_its_bytes_there() -> None:
    tensor = message(1, 2) + message(1, 3) + message(2, 7) + message(8, b"t") + message(9, bytes(48))
    found = parse_model(model(message(5, tensor)))
    assert found.tensors == {"t": Tensor(type=7, shape=(2, 3), bytes=48)}


OUTSIDE = message(8, b"t") + message(14, 1)
PLACE = message(13, message(1, b"location") + message(2, b"../x"))
NESTED = message(5, message(1, b"body") + message(6, b""))
FAR = message(5, message(1, b"value") + message(5, OUTSIDE + PLACE + message(13, message(1, b"length"))))


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"", "0 graphs in it, one expected"),
        (bytes(model()) * 2, "2 graphs in it"),
        (bytes(model()) + message(25, b""), "functions or training steps"),
        (bytes(model(message(1, NESTED))), "a graph within a node"),
        (bytes(model(message(1, FAR))), "invalid literal|tensor in another file"),
        (bytes(model(message(5, OUTSIDE))), "does not say where it lies"),
        (bytes(model(message(5, OUTSIDE + PLACE))), "does not say where it lies"),
        (bytes(model(message(5, message(8, b"t")) * 2)), "two tensors called 't'"),
        (bytes(model(message(15, b""))), "sparse tensors"),
        (b"nonsense", "wire type|field of|graphs in it"),
    ],
)
def test_what_is_no_plain_graph_is_refused(tmp_path: Path, content: bytes, complaint: str) -> None:
    (tmp_path / "model.onnx").write_bytes(content)
    with pytest.raises(BundleError, match=rf"model\.onnx: not an ONNX graph \(.*({complaint})"):
        read_graph(tmp_path / "model.onnx")


@given(data=st.data())
def test_a_damaged_graph_is_read_or_refused_and_never_crashes(bundle: Path, data: st.DataObject) -> None:
    content = bytearray((bundle / "model.onnx").read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    del content[data.draw(st.integers(len(content) // 2, len(content))) :]
    with contextlib.suppress(ValueError):
        parse_model(memoryview(bytes(content)))


def test_an_oversized_graph_is_refused_unread(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graph, "MAXIMUM_GRAPH_BYTES", 100)
    with pytest.raises(BundleError, match=r"bytes, a graph has at most 100"):
        read_graph(bundle / "model.onnx")
