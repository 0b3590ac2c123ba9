"""Read the planes that a profiler of XLA recorded, from its protobuf or its Chrome JSON.

A plane is a device or the host. It has lines (streams or threads) of events. The messages of
``xplane.proto`` are read by the numbers of their fields, which never change.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt

from traceprof.errors import TraceError
from traceprof.formats.shared.files import unpacking_source
from traceprof.formats.shared.json_stream import ByteSource, open_chrome_trace
from traceprof.model.table import objects
from traceprof.protobuf import read_fields, to_signed

_PS_PER_NS: Final = 1000
_LATEST_NS: Final = 1 << 62
NO_STATS: Final[Mapping[str, Any]] = {}
WANTED_STATS: Final = frozenset(
    {
        *("correlation_id", "cuda_graph_node_id", "hlo_category", "step_num"),
        *("kernel_details", "memcpy_details", "memset_details"),
    }
)
"""The statistics of events that traceprof reads."""


@dataclass(frozen=True, slots=True)
class Line:
    """A line of a plane: times (ns), names, and `WANTED_STATS` statistics of its events."""

    number: int
    name: str
    starts_ns: npt.NDArray[np.int64]
    ends_ns: npt.NDArray[np.int64]
    names: npt.NDArray[np.object_]
    stats: npt.NDArray[np.object_]

    def __len__(self) -> int:
        return len(self.starts_ns)


@dataclass(frozen=True, slots=True)
class Plane:
    """A plane: its lines and its statistics. ``number`` is its process in Chrome JSON."""

    name: str
    number: int
    lines: list[Line]
    stats: Mapping[str, Any]


@dataclass(slots=True)
class Space:
    """All planes of a file; ``left_out`` counts events with an invalid time."""

    planes: list[Plane] = field(default_factory=list)
    hosts: list[str] = field(default_factory=list)
    left_out: int = 0
    is_complete: bool = True


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else ""


def _entry(data: bytes) -> tuple[int, dict[int, Any], list[bytes]]:
    """Return key and value of an entry of a metadata map, and the statistics in the value."""
    entry = dict(read_fields(data))
    fields_of_value, stats = dict[int, Any](), list[bytes]()
    for number, value in read_fields(entry.get(2, b"")):
        if number == 5 and isinstance(value, bytes):
            stats.append(value)
        else:
            fields_of_value[number] = value
    return int(entry.get(1, 0)), fields_of_value, stats


_VALUES: Final[Mapping[int, Callable[[Any], Any]]] = {
    2: lambda data: struct.unpack("<d", data)[0],
    3: int,
    4: to_signed,
    5: _text,
}
"""Number of the field that contains the value of a statistic → function that decodes it."""


class _PlaneReader:
    """Reads one plane, which has its own maps of names of statistics and events."""

    def __init__(self, data: bytes) -> None:
        self.plane: dict[int, Any] = {}
        self.lines: list[bytes] = []
        self.plane_stats: list[bytes] = []
        self.stat_names: dict[int, str] = {}
        entries = []
        for number, value in read_fields(data):
            match number:
                case 3:
                    self.lines.append(value)
                case 4:
                    entries.append(_entry(value))
                case 5:
                    key, metadata, _ = _entry(value)
                    self.stat_names[key] = _text(metadata.get(2))
                case 6:
                    self.plane_stats.append(value)
                case _:
                    self.plane[number] = value
        self.cached_stats: dict[bytes, tuple[str, Any]] = {}
        self.events = {
            # The display name: an operation's name instead of its full text.
            key: (_text(metadata.get(4)) or _text(metadata.get(2)), self.wanted(stats))
            for key, metadata, stats in entries
        }
        self.left_out = 0

    def stat(self, data: bytes) -> tuple[str, Any]:
        """Return name and value of a statistic. Most statistics repeat, so results are cached."""
        cached = self.cached_stats.get(data)
        if cached is None:
            (name, value), names = ("", None), self.stat_names
            for number, field_value in read_fields(data):
                if number == 1:
                    name = names.get(field_value, "")
                elif number == 7:
                    value = names.get(field_value, "")
                elif number in _VALUES:
                    value = _VALUES[number](field_value)
            cached = self.cached_stats[data] = name, value
        return cached

    def wanted(self, stats: list[bytes]) -> Mapping[str, Any]:
        """Return the statistics that are `WANTED_STATS`."""
        found = dict(map(self.stat, stats))
        return {name: found[name] for name in WANTED_STATS & found.keys()} or NO_STATS

    def read(self) -> Plane:
        """Return the plane."""
        return Plane(
            _text(self.plane.get(2)),
            int(self.plane.get(1, 0)),
            [self.line(data) for data in self.lines],
            dict(map(self.stat, self.plane_stats)),
        )

    def line(self, data: bytes) -> Line:
        """Return a line. Aggregated occurrences without a time are not events."""
        line_fields, events = dict[int, Any](), list[bytes]()
        for number, value in read_fields(data):
            if number == 4:
                events.append(value)
            else:
                line_fields[number] = value
        rows = _Rows()
        base = to_signed(line_fields.get(3, 0)) * _PS_PER_NS
        for event in events:
            self.add_event(event, base, rows)
        self.left_out += rows.left_out
        # Viewers show the low half of a thread's address.
        number = line_fields.get(10) or line_fields.get(1, 0)
        return rows.line(
            number & 0xFFFFFFFF, _text(line_fields.get(11)) or _text(line_fields.get(2))
        )

    def add_event(self, data: bytes, base_ps: int, rows: _Rows) -> None:
        """Add an event of a line that begins at ``base_ps``."""
        event_fields, stats = dict[int, int](), list[bytes]()
        for number, value in read_fields(data):
            if number == 4:
                stats.append(value)
            else:
                event_fields[number] = value
        if 2 not in event_fields:
            return
        name, shared_stats = self.events.get(event_fields.get(1, 0), ("", NO_STATS))
        start = base_ps + to_signed(event_fields[2])
        event_stats = self.wanted(stats) if stats else NO_STATS
        all_stats = (
            {**shared_stats, **event_stats}
            if shared_stats and event_stats
            else (event_stats or shared_stats)
        )
        rows.add(
            start // _PS_PER_NS,
            (start + to_signed(event_fields.get(3, 0))) // _PS_PER_NS,
            name,
            all_stats,
        )


@dataclass(slots=True)
class _Rows:
    """The events of one line while they are read."""

    starts: array[int] = field(default_factory=lambda: array("q"))
    ends: array[int] = field(default_factory=lambda: array("q"))
    names: list[str] = field(default_factory=list)
    stats: list[Mapping[str, Any]] = field(default_factory=list)
    left_out: int = 0

    def add(self, start_ns: int, end_ns: int, name: str, stats: Mapping[str, Any]) -> None:
        if not -_LATEST_NS < start_ns <= end_ns < _LATEST_NS:
            self.left_out += 1
            return
        self.starts.append(start_ns)
        self.ends.append(end_ns)
        self.names.append(name)
        self.stats.append(stats)

    def line(self, number: int, name: str) -> Line:
        starts, ends = (np.array(times, np.int64) for times in (self.starts, self.ends))
        return Line(number, name, starts, ends, objects(self.names), objects(self.stats))


def read_space(path: Path) -> Space:
    """Return the content of an XPlane file.

    Raises:
        TraceError: the file is damaged or truncated.
    """
    with path.open("rb") as file:
        data = b"".join(_pieces(unpacking_source(file)))
    space = Space()
    try:
        for number, value in read_fields(data):
            if number == 1:
                reader = _PlaneReader(value)
                space.planes.append(reader.read())
                space.left_out += reader.left_out
            elif number == 4:
                space.hosts.append(_text(value))
    except (IndexError, TypeError, ValueError, struct.error) as error:
        raise TraceError(
            f"{path}: damaged or truncated XPlane file; copy or record it again"
        ) from error
    return space


def _pieces(source: ByteSource) -> Iterator[bytes]:
    while data := source.read(1 << 22):
        yield data


class _ChromeEvent(msgspec.Struct, gc=False):
    ph: str = ""
    pid: int = 0
    tid: int = 0
    ts: float = 0.0
    dur: float = 0.0
    name: str = ""
    args: dict[str, Any] | None = None


_EVENTS: Final = msgspec.json.Decoder(list[_ChromeEvent])


def _decoded(text: bytes) -> list[_ChromeEvent] | None:
    try:
        return _EVENTS.decode(text)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None


def _converted(item: Any) -> Iterator[_ChromeEvent]:
    try:
        yield msgspec.convert(item, _ChromeEvent, strict=False)
    except msgspec.MsgspecError:
        return


def read_chrome(path: Path) -> Space:
    """Return the content of the Chrome JSON of jax.profiler or TensorFlow.

    Raises:
        TraceError: the JSON is nested too deeply.
    """
    names: dict[tuple[int, int | None], str] = {}
    rows: dict[tuple[int, int], _Rows] = {}
    with open_chrome_trace(path, 1 << 21) as (stream, _):
        for item in chain.from_iterable(stream.batches(_decoded)):
            for event in [item] if isinstance(item, _ChromeEvent) else _converted(item):
                _add_event(event, names, rows)
    planes: dict[int, Plane] = {}
    for (pid, tid), line_rows in rows.items():
        plane = planes.setdefault(pid, Plane(names.get((pid, None), ""), pid, [], NO_STATS))
        plane.lines.append(line_rows.line(tid & 0xFFFFFFFF, names.get((pid, tid), "")))
    return Space(
        list(planes.values()),
        [],
        sum(line_rows.left_out for line_rows in rows.values()),
        stream.is_complete,
    )


def _add_event(
    event: _ChromeEvent,
    names: dict[tuple[int, int | None], str],
    rows: dict[tuple[int, int], _Rows],
) -> None:
    """Add an event to the rows of its line, or a name to ``names``."""
    arguments = event.args or NO_STATS
    if event.ph == "X":
        line_rows = rows.setdefault((event.pid, event.tid), _Rows())
        if not 0 <= abs(event.ts) + event.dur < _LATEST_NS / _PS_PER_NS:
            line_rows.left_out += 1
            return
        start, length = round(event.ts * _PS_PER_NS), round(event.dur * _PS_PER_NS)
        stats = {name: arguments[name] for name in WANTED_STATS & arguments.keys()} or NO_STATS
        line_rows.add(start, start + length, event.name, stats)
    elif event.name == "process_name":
        names[event.pid, None] = str(arguments.get("name", ""))
    elif event.name == "thread_name":
        names[event.pid, event.tid] = str(arguments.get("name", ""))
