"""Messages in protobuf's wire format are read field by field; damaged ones are refused."""

from __future__ import annotations

import pytest

from traceprof.protobuf import read_fields, to_signed


def test_fields_have_numbers_and_values() -> None:
    message = b"\x08\x96\x01\x12\x02hi\x19" + bytes(8) + b"\x25abcd"
    assert list(read_fields(message)) == [(1, 150), (2, b"hi"), (3, bytes(8)), (4, b"abcd")]


def test_a_number_of_64_bits_has_a_sign() -> None:
    ((_, value),) = read_fields(b"\x08" + b"\xff" * 9 + b"\x01")
    assert to_signed(value) == -1
    assert to_signed(5) == 5


@pytest.mark.parametrize(
    ("message", "kind"),
    [
        (b"\x12\x05hi", ValueError),  # a value that is cut off
        (b"\x0b", ValueError),  # a wire type that is not read
        (b"\x08" + b"\xff" * 10 + b"\x01", ValueError),  # a number of more than 10 bytes
        (b"\x08\xff", IndexError),  # a number that is cut off
    ],
)
def test_a_damaged_message_is_refused(message: bytes, kind: type[Exception]) -> None:
    with pytest.raises(kind):
        list(read_fields(message))
