"""Writes small XPlane files and the Chrome JSON that is made of them; times in ns."""

from __future__ import annotations

import gzip
import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Event = tuple[str, float, float, Mapping[str, Any]]
"""Name, start, end (ns; fractions are ps), statistics."""


@dataclass(frozen=True)
class WrittenLine:
    """A line: its number, name and events; ``base_ns`` is what offsets count from."""

    number: int
    name: str
    events: Sequence[Event]
    base_ns: int = 0


@dataclass(frozen=True)
class WrittenPlane:
    """A plane; ``long_names`` gives events a name of their own besides what is shown."""

    name: str
    lines: Sequence[WrittenLine] = ()
    stats: Mapping[str, Any] = field(default_factory=dict)
    number: int = 0
    long_names: Mapping[str, str] = field(default_factory=dict)


def varint(value: int) -> bytes:
    value &= (1 << 64) - 1
    found = b""
    while value > 127:
        found += bytes([value & 127 | 128])
        value >>= 7
    return found + bytes([value])


def encoded(number: int, value: int | float | str | bytes) -> bytes:
    """Return a field of a message."""
    if isinstance(value, float):
        return varint(number << 3 | 1) + struct.pack("<d", value)
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    data = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(data)) + data


class _Written:
    """One plane as bytes, with the numbers that names have in it."""

    def __init__(self, plane: WrittenPlane) -> None:
        self.plane = plane
        self.stats: dict[str, int] = {}
        self.events: dict[str, int] = {}

    def stat(self, name: str, value: Any) -> bytes:
        own = encoded(1, self.stats.setdefault(name, len(self.stats) + 1))
        if name == "kernel_details":  # texts that repeat are names of statistics
            return own + encoded(7, self.stats.setdefault(value, len(self.stats) + 1))
        number = {float: 2, int: 4 if isinstance(value, int) and value < 0 else 3, str: 5}
        return own + encoded(number.get(type(value), 6), value)

    def line(self, line: WrittenLine) -> bytes:
        data = encoded(1, line.number) + encoded(2, line.name) + encoded(3, line.base_ns)
        for name, start, end, stats in line.events:
            event = encoded(1, self.events.setdefault(name, len(self.events) + 1))
            offset, length = round((start - line.base_ns) * 1000), round((end - start) * 1000)
            event += encoded(2, offset) + encoded(3, length)
            for stat, value in stats.items():
                event += encoded(4, self.stat(stat, value))
            data += encoded(4, event)
        return data

    def data(self) -> bytes:
        lines = [encoded(3, self.line(line)) for line in self.plane.lines]
        told = [encoded(6, self.stat(*one)) for one in self.plane.stats.items()]
        found = encoded(2, self.plane.name) + b"".join(lines)
        for name, key in self.events.items():
            long = self.plane.long_names.get(name)
            own = encoded(1, key) + encoded(2, long or name) + (encoded(4, name) if long else b"")
            found += encoded(4, encoded(1, key) + encoded(2, own))
        for name, key in self.stats.items():
            own = encoded(1, key) + encoded(2, name)
            found += encoded(5, encoded(1, key) + encoded(2, own))
        return found + b"".join(told)


def write_xplane(path: Path, planes: Sequence[WrittenPlane], host: str = "vm") -> Path:
    """Write an XPlane file, gzipped where its name ends so."""
    data = b"".join(encoded(1, _Written(plane).data()) for plane in planes) + encoded(4, host)
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


def write_chrome(path: Path, planes: Sequence[WrittenPlane]) -> Path:
    """Write the Chrome JSON of planes, gzipped where its name ends so."""
    events: list[dict[str, Any]] = []
    for plane in planes:
        name = {"name": plane.name}
        events.append({"ph": "M", "pid": plane.number, "name": "process_name", "args": name})
        for line in plane.lines:
            place = {"pid": plane.number, "tid": line.number}
            named = {"name": "thread_name", "args": {"name": line.name}}
            events.append({"ph": "M", **place, **named})
            for title, start, end, stats in line.events:
                times = {"ts": start / 1000, "dur": (end - start) / 1000}
                args = {stat: str(value) for stat, value in stats.items()}
                event = {"ph": "X", **place, **times, "name": title}
                events.append({**event, "args": args} if args else event)
    document = {"displayTimeUnit": "ns", "traceEvents": [*events, {}]}
    data = json.dumps(document).encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path
