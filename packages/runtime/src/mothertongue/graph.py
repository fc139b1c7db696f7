"""What a graph says of itself: its inputs, outputs and stored tensors, read without onnxruntime.

The nodes stay unread, but one that holds a graph of its own, or a tensor in another file, is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from mothertongue.errors import BundleError
from mothertongue.protobuf import fields, message_of, number_of, signed, text_of, varint

KEEP_INPUT = "num_logits_to_keep"
LAST_OUTPUT = "last_logits"  # for other programs; may be missing
MAXIMUM_GRAPH_BYTES = (1 << 31) - 1  # what a protocol buffer can hold


@dataclass(frozen=True, kw_only=True)
class Value:
    """An input or output: its element type, and each dimension: a number, or a name if it is free."""

    type: int
    shape: tuple[int | str, ...]


@dataclass(frozen=True, kw_only=True)
class Tensor:
    """A stored tensor, and where its bytes are; `location` is empty for those within the graph."""

    type: int
    shape: tuple[int, ...]
    bytes: int | None  # None where it is not said
    location: str = ""
    offset: int = 0


@dataclass(frozen=True, kw_only=True)
class Graph:
    """The parts of a model.onnx that say what it takes, gives and holds."""

    inputs: Mapping[str, Value]
    outputs: Mapping[str, Value]
    tensors: Mapping[str, Tensor] = field(repr=False)


def read_graph(path: Path) -> Graph:
    """Return what the graph at `path` says of itself; raise BundleError if it is none or nests others."""
    if path.stat().st_size > MAXIMUM_GRAPH_BYTES:
        raise BundleError(f"{path}: {path.stat().st_size} bytes, a graph has at most {MAXIMUM_GRAPH_BYTES}")
    try:
        return parse_model(memoryview(path.read_bytes()))
    except ValueError as error:
        raise BundleError(f"{path}: not an ONNX graph ({error}); copy or export the bundle again") from None


# ── the messages of onnx.proto; the numbers are its field numbers ──


def parse_model(message: memoryview) -> Graph:
    """Return the graph of a ModelProto."""
    graphs = []
    for number, value in fields(message):
        if number == 7:
            graphs.append(parse_graph(message_of(value)))
        elif number in (20, 25):
            raise ValueError("functions or training steps in it")
    if len(graphs) != 1:
        raise ValueError(f"{len(graphs)} graphs in it, one expected")
    return graphs[0]


def parse_graph(message: memoryview) -> Graph:
    """Return the parts of a GraphProto."""
    inputs: dict[str, Value] = {}
    outputs: dict[str, Value] = {}
    tensors: dict[str, Tensor] = {}
    for number, value in fields(message):
        if number == 1:
            refuse_nesting(message_of(value))
        elif number == 5:
            name, tensor = parse_tensor(message_of(value))
            if name in tensors:
                raise ValueError(f"two tensors called {name!r}")
            tensors[name] = tensor
        elif number in (11, 12):
            name, found = parse_value(message_of(value))
            (inputs if number == 11 else outputs)[name] = found
        elif number == 15:
            raise ValueError("sparse tensors in it")
    return Graph(inputs=inputs, outputs=outputs, tensors=tensors)


def refuse_nesting(node: memoryview) -> None:
    """Raise ValueError if an attribute of a NodeProto holds a graph, or a tensor kept outside."""
    for number, value in fields(node):
        if number != 5:
            continue
        for kind, content in fields(message_of(value)):
            if kind in (6, 11):
                raise ValueError("a graph within a node")
            if kind in (5, 10) and parse_tensor(message_of(content))[1].location:
                raise ValueError("a node with a tensor in another file")
            if kind in (22, 23):
                raise ValueError("a node with a sparse tensor")


def parse_value(message: memoryview) -> tuple[str, Value]:
    """Return name and type of a ValueInfoProto; type 0 if it is no tensor."""
    name, type_, shape = "", 0, []
    for number, value in fields(message):
        if number == 1:
            name = text_of(value)
        elif number == 2:
            for kind, tensor in fields(message_of(value)):
                if kind != 1:
                    continue
                for part, content in fields(message_of(tensor)):
                    if part == 1:
                        type_ = number_of(content)
                    elif part == 2:
                        shape = [
                            parse_dimension(message_of(d)) for n, d in fields(message_of(content)) if n == 1
                        ]
    return name, Value(type=type_, shape=tuple(shape))


def parse_dimension(message: memoryview) -> int | str:
    """Return a dimension: its size, or its name if it is free."""
    size: int | str = "?"
    for number, value in fields(message):
        size = number_of(value) if number == 1 else text_of(value) if number == 2 else size
    return size


def parse_tensor(message: memoryview) -> tuple[str, Tensor]:
    """Return name and place of a TensorProto."""
    name, type_, shape, length, outside = "", 0, list[int](), None, False
    place: dict[str, str] = {}
    for number, value in fields(message):
        match number:
            case 1:
                shape += [number_of(value)] if isinstance(value, int) else packed(value)
            case 2:
                type_ = number_of(value)
            case 8:
                name = text_of(value)
            case 9:
                length = len(message_of(value))
            case 13:
                pair = {part: text_of(content) for part, content in fields(message_of(value))}
                place[pair.get(1, "")] = pair.get(2, "")
            case 14:
                outside = number_of(value) == 1
    if not outside:
        return name, Tensor(type=type_, shape=tuple(shape), bytes=length)
    if not {"location", "length"} <= place.keys():
        raise ValueError(f"the tensor {name!r} does not say where it lies")
    return name, Tensor(
        type=type_,
        shape=tuple(shape),
        bytes=int(place["length"]),
        location=place["location"],
        offset=int(place.get("offset", "0")),
    )


def packed(message: memoryview) -> list[int]:
    """Return the integers of a packed field."""
    numbers, place = [], 0
    while place < len(message):
        value, place = varint(message, place)
        numbers.append(signed(value))
    return numbers
