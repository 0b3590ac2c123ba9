"""Scalars in the event files of TensorBoard: records of protobuf, read without its library.

A record is a length, two checksums and an ``Event``; of it the time, the step and the summary are
read, of that tags and numbers. Field numbers are those of TensorFlow's ``event.proto``,
``summary.proto`` and ``tensor.proto``.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from traceprof.errors import TraceError
from traceprof.files import kind_of_no_file

_HEAD: Final = struct.Struct("<QI")
_LONGEST: Final = 1 << 26
_VERSION: Final = b"brain.Event:"
_WHERE: Final = 64
_FLOAT, _DOUBLE = 1, 2
"""Types of tensors: those of other numbers are no scalars that training logs."""


class EventScalar(NamedTuple):
    """A number that was logged: ``unix_s`` is when, in seconds since 1970."""

    tag: str
    step: int
    unix_s: float
    value: float


def is_event_file(path: Path) -> bool:
    """Return whether a file is one of events."""
    if kind_of_no_file(path):
        return False
    try:
        with path.open("rb") as file:
            return _VERSION in file.read(_WHERE)
    except OSError:
        return False


def scalars_in(path: Path) -> Iterator[EventScalar]:
    """Yield the scalars of an event file, up to where it is cut off or damaged.

    Raises:
        TraceError: the file cannot be read.
    """
    try:
        with path.open("rb") as file:
            while len(head := file.read(_HEAD.size)) == _HEAD.size:
                length, _ = _HEAD.unpack(head)
                if length > _LONGEST or len(record := file.read(length)) < length:
                    return
                file.read(4)
                try:
                    yield from _event(record)
                except (ValueError, IndexError, struct.error):
                    return
    except OSError as error:
        raise TraceError(f"{path}: cannot be read ({error.strerror or error})") from error


def _event(record: bytes) -> Iterator[EventScalar]:
    unix_s, step, values = 0.0, 0, list[bytes]()
    for number, value in _fields(record):
        if number == 1 and isinstance(value, bytes):
            (unix_s,) = struct.unpack("<d", value)
        elif number == 2 and isinstance(value, int):
            step = value if value < 1 << 63 else value - (1 << 64)
        elif number == 5 and isinstance(value, bytes):
            values += (own for _, own in _fields(value) if isinstance(own, bytes))
    for found in map(_scalar, values):
        if found is not None:
            yield EventScalar(found[0], step, unix_s, found[1])


def _scalar(value: bytes) -> tuple[str, float] | None:
    """Return tag and number of a value of a summary; None: it is an image or a histogram."""
    tag, scalar = "", None
    for number, own in _fields(value):
        if number == 1 and isinstance(own, bytes):
            tag = own.decode("utf-8", "replace")
        elif number == 2 and isinstance(own, bytes):
            (scalar,) = struct.unpack("<f", own)
        elif number == 8 and isinstance(own, bytes):
            scalar = _of_tensor(own)
    return None if scalar is None else (tag, scalar)


def _of_tensor(tensor: bytes) -> float | None:
    """Return the one number of a tensor; None: it has several, or is of another type."""
    kind, content, numbers = 0, b"", list[float]()
    for number, own in _fields(tensor):
        if number == 1 and isinstance(own, int):
            kind = own
        elif number == 4 and isinstance(own, bytes):
            content = own
        elif number in (5, 6) and isinstance(own, bytes):
            code = "f" if number == 5 else "d"
            numbers += struct.unpack(f"<{len(own) // struct.calcsize(code)}{code}", own)
    form = {_FLOAT: "<f", _DOUBLE: "<d"}.get(kind, "")
    if form and len(content) == struct.calcsize(form):
        return float(struct.unpack(form, content)[0])
    return numbers[0] if form and len(numbers) == 1 else None


def _fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield the fields of a message: numbers of varints, bytes of all others."""
    at, end = 0, len(message)
    while at < end:
        key, at = _varint(message, at)
        number, wire = key >> 3, key & 7
        if wire == 0:
            value, at = _varint(message, at)
            yield number, value
            continue
        if wire == 2:
            length, at = _varint(message, at)
        elif wire in (1, 5):
            length = 8 if wire == 1 else 4
        else:
            raise ValueError(f"no message: a field of kind {wire}")
        if at + length > end:
            raise ValueError("no message: a field is cut off")
        yield number, message[at : at + length]
        at += length


def _varint(message: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = message[at]
        value |= (byte & 0x7F) << shift
        at += 1
        if byte < 0x80:
            return value, at
        shift += 7
        if shift > 63:
            raise ValueError("no message: a number is too long")
