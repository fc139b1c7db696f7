import pytest
from hypothesis import given
from hypothesis import strategies as st

from mothertongue.protobuf import fields, message_of, number_of, text_of, varint


def encoded(number: int) -> bytes:
    """A varint, from the definition: groups of seven bits, the lowest first, each but the last marked."""
    groups = [number & 0x7F]
    while number := number >> 7:
        groups.append(number & 0x7F)
    return bytes(group | 0x80 for group in groups[:-1]) + bytes(groups[-1:])


@given(number=st.integers(0, 2**64 - 1), after=st.binary(max_size=3))
def test_an_integer_is_read_as_it_was_written(number: int, after: bytes) -> None:
    assert varint(memoryview(encoded(number) + after), 0) == (number, len(encoded(number)))


def test_the_example_of_the_specification_is_read() -> None:
    # https://protobuf.dev/programming-guides/encoding: field 1 is 150; field 2 is "testing".
    message = bytes.fromhex("08 96 01 12 07 74 65 73 74 69 6e 67")
    (one, number), (two, text) = fields(memoryview(message))
    assert (one, number_of(number), two, text_of(text)) == (1, 150, 2, "testing")


def test_fixed_numbers_are_passed_over() -> None:
    message = b"\x09" + bytes(8) + b"\x15" + bytes(4) + b"\x18\x01"
    assert [number for number, _ in fields(memoryview(message))] == [1, 2, 3]


def test_a_negative_number_comes_back() -> None:
    ((_, value),) = fields(memoryview(b"\x08" + encoded(2**64 - 5)))
    assert number_of(value) == -5


@given(message=st.binary(max_size=60))
def test_any_bytes_are_read_or_refused(message: bytes) -> None:
    try:
        found = list(fields(memoryview(message)))
    except ValueError:
        return
    assert all(isinstance(value, int) or len(value) <= len(message) for _, value in found)


@pytest.mark.parametrize("message", [b"\x08", b"\x0a\x05ab", b"\x09\x00", b"\x0b", b"\x80" * 12])
def test_a_message_cut_short_is_refused(message: bytes) -> None:
    with pytest.raises(ValueError, match=r"field of|wire type|without an end"):
        list(fields(memoryview(message)))


def test_a_field_of_another_kind_is_refused() -> None:
    with pytest.raises(ValueError, match="an integer where a message belongs"):
        message_of(3)
    with pytest.raises(ValueError, match="bytes where an integer belongs"):
        number_of(memoryview(b"a"))
