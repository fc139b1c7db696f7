"""The wire format of protocol buffers, as far as reading a message needs it: no library, no schema.

https://protobuf.dev/programming-guides/encoding. Nothing is copied: fields are views of the bytes given.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
FIXED_BYTES = {FIXED64: 8, FIXED32: 4}
LONGEST_VARINT = 10  # bytes; 64 bits in groups of seven

Field: TypeAlias = tuple[int, int | memoryview]  # its number, and an integer or bytes


def fields(message: memoryview) -> Iterator[Field]:
    """Yield the fields of `message` in order; raise ValueError where it is none."""
    place = 0
    while place < len(message):
        tag, place = varint(message, place)
        number, kind = tag >> 3, tag & 7
        if kind == VARINT:
            value, place = varint(message, place)
            yield number, value
            continue
        if kind == BYTES:
            length, place = varint(message, place)
        elif kind in FIXED_BYTES:
            length = FIXED_BYTES[kind]
        else:
            raise ValueError(f"wire type {kind} at byte {place}")
        if length > len(message) - place:
            raise ValueError(f"a field of {length} bytes where {len(message) - place} are left")
        yield number, message[place : place + length]
        place += length


def varint(message: memoryview, place: int) -> tuple[int, int]:
    """Return the integer that begins at `place` and the place after it; raise ValueError if it has no end."""
    value = 0
    for count, byte in enumerate(message[place : place + LONGEST_VARINT]):
        value |= (byte & 0x7F) << (7 * count)
        if byte < 0x80:
            return value, place + count + 1
    raise ValueError(f"an integer without an end at byte {place}")


def signed(value: int) -> int:
    """Return an int64 that was written as a varint."""
    return value - (1 << 64) if value >= 1 << 63 else value


def message_of(value: int | memoryview) -> memoryview:
    """Return a field that must hold bytes; raise ValueError if it holds an integer."""
    if isinstance(value, int):
        raise ValueError("an integer where a message belongs")
    return value


def number_of(value: int | memoryview) -> int:
    """Return a field that must hold an integer; raise ValueError if it holds bytes."""
    if not isinstance(value, int):
        raise ValueError("bytes where an integer belongs")
    return signed(value)


def text_of(value: int | memoryview) -> str:
    """Return a field that must hold UTF-8; raise ValueError if it does not."""
    return bytes(message_of(value)).decode("utf-8")
