"""Decode messages in protobuf's wire format without its library.

See https://protobuf.dev/programming-guides/encoding/.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

_VARINT: Final = 0
_LENGTH: Final = 2
_FIXED_BYTES: Final = {1: 8, 5: 4}
"""Wire type of a value of fixed size → its bytes."""
_MAX_VARINT_BYTES: Final = 10


def read_fields(message: bytes) -> Iterator[tuple[int, Any]]:
    """Yield number and value of each field: an int of a varint, the bytes of other fields.

    Raises:
        ValueError: the message is damaged.
        IndexError: the message is truncated within a varint.
    """
    offset, end = 0, len(message)
    while offset < end:
        key, offset = _read_varint(message, offset)
        number, wire_type = key >> 3, key & 7
        if wire_type == _VARINT:
            value, offset = _read_varint(message, offset)
            yield number, value
            continue
        if wire_type == _LENGTH:
            length, offset = _read_varint(message, offset)
        elif wire_type in _FIXED_BYTES:
            length = _FIXED_BYTES[wire_type]
        else:
            raise ValueError(f"no message: a field of kind {wire_type}")
        if offset + length > end:
            raise ValueError("no message: a field is cut off")
        yield number, message[offset : offset + length]
        offset += length


def _read_varint(message: bytes, offset: int) -> tuple[int, int]:
    """Return the number at ``offset`` and the offset after it."""
    number = 0
    for place in range(_MAX_VARINT_BYTES):
        byte = message[offset + place]
        number |= (byte & 0x7F) << 7 * place
        if byte < 0x80:
            return number, offset + place + 1
    raise ValueError("no message: a number is too long")


def to_signed(value: int) -> int:
    """Return a varint as a signed number of 64 bits."""
    return value - (1 << 64) if value >= 1 << 63 else value
