"""Read scalars from the event files of TensorBoard, without its library.

A record is a length, two checksums and an ``Event`` (a protobuf message). traceprof reads its time,
its step, and the tags and numbers of its summary. Field numbers are those of TensorFlow's
``event.proto``, ``summary.proto`` and ``tensor.proto``.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from traceprof.errors import TraceError
from traceprof.files import special_file_kind
from traceprof.protobuf import read_fields, to_signed

_RECORD_HEAD: Final = struct.Struct("<QI")
_MAX_RECORD_BYTES: Final = 1 << 26
_VERSION: Final = b"brain.Event:"
_VERSION_BYTES: Final = 64
_STRUCT_CODES: Final = {1: "<f", 2: "<d"}
"""Data type of a tensor → how to unpack it; training logs no scalars of other types."""


class EventScalar(NamedTuple):
    """A logged number; ``unix_s`` is the time of logging in seconds since 1970."""

    tag: str
    step: int
    unix_s: float
    value: float


def is_event_file(path: Path) -> bool:
    """Return whether a file is a TensorBoard event file."""
    if special_file_kind(path):
        return False
    try:
        with path.open("rb") as file:
            return _VERSION in file.read(_VERSION_BYTES)
    except OSError:
        return False


def scalars_in(path: Path) -> Iterator[EventScalar]:
    """Yield the scalars of an event file up to its end, or to a truncated or damaged record.

    Raises:
        TraceError: the file cannot be read.
    """
    try:
        with path.open("rb") as file:
            while len(head := file.read(_RECORD_HEAD.size)) == _RECORD_HEAD.size:
                length, _ = _RECORD_HEAD.unpack(head)
                if length > _MAX_RECORD_BYTES or len(record := file.read(length)) < length:
                    return
                file.read(4)
                try:
                    yield from _event(record)
                except (ValueError, IndexError, struct.error):
                    return
    except OSError as error:
        raise TraceError(f"{path}: cannot be read ({error.strerror or error})") from error


def _event(record: bytes) -> Iterator[EventScalar]:
    """Yield the scalars of an ``Event``."""
    unix_s, step, values = 0.0, 0, list[bytes]()
    for number, value in read_fields(record):
        if number == 1 and isinstance(value, bytes):
            (unix_s,) = struct.unpack("<d", value)
        elif number == 2 and isinstance(value, int):
            step = to_signed(value)
        elif number == 5 and isinstance(value, bytes):
            values += (entry for _, entry in read_fields(value) if isinstance(entry, bytes))
    for scalar in map(_scalar, values):
        if scalar is not None:
            yield EventScalar(scalar[0], step, unix_s, scalar[1])


def _scalar(entry: bytes) -> tuple[str, float] | None:
    """Return tag and number of an entry of a summary; None for an image or a histogram."""
    tag, scalar = "", None
    for number, value in read_fields(entry):
        if number == 1 and isinstance(value, bytes):
            tag = value.decode("utf-8", "replace")
        elif number == 2 and isinstance(value, bytes):
            (scalar,) = struct.unpack("<f", value)
        elif number == 8 and isinstance(value, bytes):
            scalar = _scalar_of_tensor(value)
    return None if scalar is None else (tag, scalar)


def _scalar_of_tensor(tensor: bytes) -> float | None:
    """Return the only number of a tensor; None if it has several, or is not of a float type."""
    dtype, content, numbers = 0, b"", list[float]()
    for number, value in read_fields(tensor):
        if number == 1 and isinstance(value, int):
            dtype = value
        elif number == 4 and isinstance(value, bytes):
            content = value
        elif number in (5, 6) and isinstance(value, bytes):
            code = "f" if number == 5 else "d"
            numbers += struct.unpack(f"<{len(value) // struct.calcsize(code)}{code}", value)
    code = _STRUCT_CODES.get(dtype, "")
    if code and len(content) == struct.calcsize(code):
        return float(struct.unpack(code, content)[0])
    return numbers[0] if code and len(numbers) == 1 else None
