"""Assign rows to the lanes of Chrome trace events, and format columns of rows as JSON texts.

Each process, and each device that a process uses, is a process of the Chrome format. Its lanes are
the threads of the format. The slices of a lane must nest. A slice that partly overlaps another one
gets an additional lane, because viewers drop slices that do not nest.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import repeat
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from traceprof.model.grouping import rows_by_first
from traceprof.model.ranks import Ranks
from traceprof.model.table import Names, Table, objects
from traceprof.model.tables import ABSENT
from traceprof.model.trace import Trace, make_trace
from traceprof.render.escape import plain_text, visible_text
from traceprof.render.timeline.lanes import describe_device, describe_process

Text: TypeAlias = str | list[str]
"""The same text in every row, or a list with one text per row."""


def joined(*pieces: Text) -> list[str]:
    """Return the concatenated pieces of each row. At least one piece is a list."""
    columns = [repeat(piece) if isinstance(piece, str) else piece for piece in pieces]
    return list(map("".join, zip(*columns)))  # noqa: B905 (what repeats has no end)


def numbers_as_text(values: npt.NDArray[Any]) -> list[str]:
    """Return each number as a decimal text."""
    return list(map(str, values.tolist()))


def microseconds(ns: npt.NDArray[np.int64]) -> list[str]:
    """Return times in ns as decimal texts in microseconds, exact to the nanosecond."""
    whole, rest = (part.tolist() for part in np.divmod(np.abs(ns), 1000))
    signs = np.where(ns < 0, "-", "").tolist()
    return list(map("{}{}.{:03d}".format, signs, whole, rest))


def number(key: str, values: npt.NDArray[Any], is_known: npt.NDArray[np.bool_]) -> list[str]:
    """Return the text ``,"key":value`` for each row; an empty text if the value is unknown."""
    before = f",{json.dumps(key)}:"
    given = zip(values.tolist(), is_known.tolist(), strict=True)
    return [f"{before}{value}" if known else "" for value, known in given]


def quoted(key: str, names: Names) -> list[str]:
    """Return the text ``,"key":"name"`` for each row; an empty text if the name is empty."""
    used = names.used()  # these rows can use few of the many names of their table
    texts = [f",{json.dumps(key)}:{as_json(name)}" if name else "" for name in used.texts]
    return text_of_each_row(texts, used)


def names_as_json(names: Names) -> list[str]:
    """Return the name of each row as a JSON string."""
    used = names.used()
    return text_of_each_row(list(map(as_json, used.texts)), used)


def picked(texts: Sequence[str], places: npt.NDArray[np.int64]) -> list[str]:
    """Return the text at each place."""
    found: list[str] = objects(texts)[places].tolist()
    return found


def as_json(text: str) -> str:
    """Return a text as a JSON string with visible control characters."""
    return visible_text(json.dumps(text.encode("utf-8", "replace").decode(), ensure_ascii=False))


def text_of_each_row(texts: list[str], names: Names) -> list[str]:
    """Return the text for the name of each row. ``texts`` corresponds to ``names.texts``."""
    return picked(texts, names.codes)


_FIRST_DEVICE: Final = 3_000_000_000
"""The first process number of the Chrome format that stands for a device."""
_FIRST_EXTRA: Final = 2_000_000_000
"""The first number of additional lanes."""
_HOST: Final = -2
"""The device number that stands for the host."""
_MAX_NESTED_LANES: Final = 64
"""The maximum number of overlapping lanes with nested slices.

Further rows are in flat lanes, in which no slices nest. The time to find a flat lane does not grow
linearly with the number of lanes.
"""
_NO_STREAM: Final = 1 << 31
"""Stream numbers from this value on are -1 stored without a sign: a wait for all streams."""

_Int64Array = npt.NDArray[np.int64]
Places = tuple[_Int64Array, _Int64Array]
"""The numbers of the process and the lane of each row."""


@dataclass(slots=True)
class ChromeLanes:
    """The processes and lanes so far. A lane is created and numbered when a row needs it.

    A *place* is a process number, a thread or stream, and a kind. ``_extra_lanes`` has the numbers
    of additional lanes by place and overlap level. ``_names`` has the name and the thread or stream
    by process and lane number. ``_open_ends`` has the ends of unfinished slices by process, lane,
    and table, outermost first. ``_flat_lanes`` has a heap of (end, level) by place and table.
    """

    trace: Trace
    _threads: dict[tuple[int, int], str]
    _processes: dict[tuple[int, int], int] = field(default_factory=dict)
    _extra_lanes: dict[tuple[int, int, str, int], int] = field(default_factory=dict)
    _names: dict[tuple[int, int], tuple[str, int]] = field(default_factory=dict)
    _open_ends: dict[tuple[int, int, str], list[int]] = field(default_factory=dict)
    _flat_lanes: dict[tuple[object, ...], list[tuple[int, int]]] = field(default_factory=dict)
    _n_devices: int = 0

    @classmethod
    def of(cls, ranks: Ranks) -> ChromeLanes:
        """Return an object without lanes, with the processes, threads, and devices of ``ranks``."""
        tables = {name: ranks.table(name) for name in ("processes", "threads", "devices")}
        trace = make_trace(ranks.info, tables, ranks.recorded, ranks.span, ())
        threads = tables["threads"].rows()
        return cls(trace, {(row["process"], row["thread"]): row["name"] for row in threads})

    def of_devices(self, table: str, events: Table, kind: str = "") -> Places:
        """Return the process and lane of each row of GPU work. Each ``kind`` has separate lanes."""
        return self._place_rows(table, events, ("process", "device", "stream"), kind)

    def of_threads(self, table: str, events: Table, kind: str = "") -> Places:
        """Return the process and lane of each row of CPU work. Each ``kind`` has separate lanes."""
        return self._place_rows(table, events, ("process", "", "thread"), kind)

    def _place_rows(
        self, table: str, events: Table, columns: tuple[str, str, str], kind: str
    ) -> Places:
        """Return the process and lane of each row.

        ``columns`` are the names of the columns with the process, the device, and the stream or
        thread. An empty device column means the host.
        """
        processes, lanes = np.zeros(len(events), np.int64), np.zeros(len(events), np.int64)
        starts, nothing = events["start_ns"], np.full(len(events), ABSENT)
        ends = events.get("end_ns", starts)
        keys = [events.get(column, nothing) for column in columns]
        for rows in rows_by_first(*keys):
            process, device, lane = (int(key[rows[0]]) for key in keys)
            pid = self.process_of(process, device if columns[1] else None)
            processes[rows] = pid
            lanes[rows] = self._assign_lanes(table, (pid, lane, kind), starts[rows], ends[rows])
        return processes, lanes

    def process_of(self, process: int, device: int | None = None) -> int:
        """Return the number of a process, or of a device that the process uses."""
        if device is None:
            return self._processes.setdefault((process, _HOST), max(process, 0))
        if (process, device) not in self._processes:
            self._processes[process, device] = _FIRST_DEVICE + self._n_devices
            self._n_devices += 1
        return self._processes[process, device]

    def _assign_lanes(
        self, table: str, place: tuple[int, int, str], starts: _Int64Array, ends: _Int64Array
    ) -> _Int64Array:
        """Return the lane number of each row at ``place``.

        Rows of one table nest in each lane, or follow one another in flat lanes.
        """
        lanes = np.zeros(len(starts), np.int64)
        remaining, level = np.arange(len(starts)), 0
        while len(remaining) and level < _MAX_NESTED_LANES:
            number = self._lane(place, level)
            open_ends = self._open_ends.setdefault((place[0], number, table), [])
            nests = _find_nesting(starts[remaining], ends[remaining], open_ends)
            lanes[remaining[nests]] = number
            remaining = remaining[~nests]
            level += 1
        flat_lanes = self._flat_lanes.setdefault((*place, table), [])
        for row, start, end in zip(
            remaining.tolist(), starts[remaining], ends[remaining], strict=True
        ):
            is_free = bool(flat_lanes) and flat_lanes[0][0] <= start
            level = heappop(flat_lanes)[1] if is_free else _MAX_NESTED_LANES + len(flat_lanes)
            heappush(flat_lanes, (int(end), level))
            lanes[row] = self._lane(place, level)
        return lanes

    def _lane(self, place: tuple[int, int, str], level: int) -> int:
        """Return the number of the lane at ``place`` for rows at this overlap level.

        Level 0 without a kind has the number of the thread or stream, or 0 if it is unknown.
        """
        pid, lane, kind = place
        number = max(lane, 0)
        if kind or level:
            number = self._extra_lanes.setdefault(
                (*place, level), _FIRST_EXTRA + len(self._extra_lanes)
            )
        if (pid, number) not in self._names:
            name_parts = [self._name(pid, lane), kind, f"overlapping {level}" if level else ""]
            self._names[pid, number] = (" · ".join(filter(None, name_parts)), lane)
        return number

    def _name(self, pid: int, lane: int) -> str:
        """Return the name of a stream (if ``pid`` stands for a device) or thread."""
        if pid >= _FIRST_DEVICE:
            is_known = 0 <= lane < _NO_STREAM
            return f"stream {lane}" if is_known else "no stream"
        if lane == ABSENT:
            return "unknown thread"
        name = self._threads.get((pid, lane), "")
        main = "main thread" if lane == pid else f"thread {lane}"
        return name if name.startswith("thread ") else " · ".join(filter(None, [main, name]))

    def described(self) -> Iterator[str]:
        """Yield JSON metadata events with the names and the order of processes and lanes."""
        yield from self._describe_processes()
        ordered = sorted(self._names.items(), key=lambda lane: (lane[0][0], lane[1][1], lane[0][1]))
        for order, ((pid, number), (name, _)) in enumerate(ordered):
            yield _metadata("thread_name", pid, number, f'"name":{as_json(plain_text(name))}')
            yield _metadata("thread_sort_index", pid, number, f'"sort_index":{order}')

    def _describe_processes(self) -> Iterator[str]:
        ranks = {row["process"]: row["rank"] for row in self.trace.processes.rows()}

        def order_of(place: tuple[int, int]) -> tuple[bool, int, int, int]:
            rank = ranks.get(place[0], ABSENT)
            return (rank == ABSENT, rank, *place)

        for order, place in enumerate(sorted(self._processes, key=order_of)):
            process, device = place
            name = describe_process(self.trace, process)
            if device != _HOST:
                rank = ranks.get(process, ABSENT)
                device_name = describe_device(self.trace, device)
                owner = f"rank {rank}" if rank != ABSENT else f"process {process}"
                # In a run of several files, the device name already contains the rank.
                name = f"{owner} · {device_name.replace(f' · rank {rank}', '')}"
            pid = self._processes[place]
            yield _metadata("process_name", pid, 0, f'"name":{as_json(plain_text(name))}')
            label = "GPU" if device != _HOST else "CPU"
            yield _metadata("process_labels", pid, 0, f'"labels":"{label}"')
            yield _metadata("process_sort_index", pid, 0, f'"sort_index":{order}')


def _metadata(name: str, pid: int, tid: int, arguments: str) -> str:
    return f'{{"ph":"M","name":"{name}","pid":{pid},"tid":{tid},"ts":0,"args":{{{arguments}}}}}'


def _find_nesting(
    starts: _Int64Array, ends: _Int64Array, open_ends: list[int]
) -> npt.NDArray[np.bool_]:
    """Return whether each row nests in the preceding rows that nest.

    ``open_ends`` are the ends of unfinished rows, outermost first. The function updates them.
    """
    latest_ends = np.maximum.accumulate(np.append(max(open_ends, default=starts[0]), ends))
    nests = np.ones(len(starts), np.bool_)
    if bool((starts >= latest_ends[:-1]).all()):
        open_ends[:] = [int(latest_ends[-1])]
        return nests
    for row, (start, end) in enumerate(zip(starts.tolist(), ends.tolist(), strict=True)):
        while open_ends and open_ends[-1] <= start:
            open_ends.pop()
        if open_ends and end > open_ends[-1]:
            nests[row] = False
        else:
            open_ends.append(end)
    return nests


_DEVICE_PROPERTIES: Final = {"numSms": "sm_count", "totalGlobalMem": "memory_bytes"}


def trace_header(ranks: Ranks) -> bytes:
    """Return the JSON text before the events: the clock, the devices, and the rank.

    The rank is included only if all processes have the same one.
    """
    header: dict[str, Any] = {"schemaVersion": 1, "displayTimeUnit": "ns"}
    if ranks.info.utc_epoch_ns is not None:
        header["baseTimeNanoseconds"] = ranks.info.utc_epoch_ns + ranks.span.start_ns
    devices = ranks.table("devices").rows()
    if devices:
        header["deviceProperties"] = [
            {
                "id": row["device"],
                "name": row["name"],
                **{
                    key: row[name]
                    for key, name in _DEVICE_PROPERTIES.items()
                    if row[name] != ABSENT
                },
            }
            for row in devices
        ]
    rank_rows = [row for row in ranks.table("processes").rows() if row["rank"] != ABSENT]
    if len({row["rank"] for row in rank_rows}) == 1:
        size = max(row["world_size"] for row in rank_rows)
        header["distributedInfo"] = {
            "rank": rank_rows[0]["rank"],
            **({"world_size": size} if size != ABSENT else {}),
        }
    text = json.dumps(header, indent=1)
    return f'{text.removesuffix("}").rstrip()},\n "traceEvents": [\n'.encode()
