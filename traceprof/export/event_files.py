"""The files that TensorBoard reads: records with checksums, each an ``Event`` of protobuf.

Only the few fields that scalars need are written; their numbers are those of TensorFlow's
``event.proto`` and ``summary.proto``.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Final

__all__ = ["crc32c", "record", "scalars_event", "version_event"]

_POLYNOMIAL: Final = 0x82F63B78  # Castagnoli's, reflected
_MASK_DELTA: Final = 0xA282EAD8
_32_BITS: Final = 0xFFFFFFFF
_64_BITS: Final = 0xFFFFFFFFFFFFFFFF

# Kinds of protobuf's wire format.
_VARINT: Final = 0
_FIXED_64: Final = 1
_LENGTH: Final = 2
_FIXED_32: Final = 5


def _table() -> tuple[int, ...]:
    values = []
    for byte in range(256):
        crc = byte
        for _ in range(8):
            crc = crc >> 1 ^ (_POLYNOMIAL if crc & 1 else 0)
        values.append(crc)
    return tuple(values)


_TABLE: Final = _table()


def crc32c(data: bytes) -> int:
    """Return the CRC-32C of ``data``, as iSCSI defines it."""
    crc = _32_BITS
    for byte in data:
        crc = crc >> 8 ^ _TABLE[(crc ^ byte) & 0xFF]
    return crc ^ _32_BITS


def record(data: bytes) -> bytes:
    """Return ``data`` as a record: its length, the data, and a masked checksum of either."""
    length = struct.pack("<Q", len(data))
    return b"".join((length, _masked_crc(length), data, _masked_crc(data)))


def _masked_crc(data: bytes) -> bytes:
    crc = crc32c(data)
    return struct.pack("<I", ((crc >> 15 | crc << 17) + _MASK_DELTA) & _32_BITS)


def version_event(wall_time_s: float) -> bytes:
    """Return what a file begins with: which version of events it has."""
    return _wall_time(wall_time_s) + _text(3, "brain.Event:2")


def scalars_event(wall_time_s: float, step: int, values: Mapping[str, float]) -> bytes:
    """Return the scalars of a step by their tags; they are kept in single precision."""
    summary = b"".join(
        _bytes(1, _text(1, tag) + _key(2, _FIXED_32) + struct.pack("<f", value))
        for tag, value in values.items()
    )
    step_field = _key(2, _VARINT) + _varint(step & _64_BITS)
    return _wall_time(wall_time_s) + step_field + _bytes(5, summary)


def _wall_time(seconds: float) -> bytes:
    return _key(1, _FIXED_64) + struct.pack("<d", seconds)


def _text(number: int, text: str) -> bytes:
    return _bytes(number, text.encode("utf-8", "replace"))


def _bytes(number: int, data: bytes) -> bytes:
    return _key(number, _LENGTH) + _varint(len(data)) + data


def _key(number: int, kind: int) -> bytes:
    return _varint(number << 3 | kind)


def _varint(value: int) -> bytes:
    parts = bytearray()
    while value > 0x7F:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    parts.append(value)
    return bytes(parts)
