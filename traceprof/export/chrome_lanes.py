"""The lanes of Chrome's trace events, and rows of a table as texts of JSON, made column by column.

Lanes are a process for each process, and for each device it uses. Slices of a lane must nest. A
slice that overlaps another one in part goes to a lane beside it, so that no viewer drops it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from traceprof.model.grouping import rows_by_first
from traceprof.model.ranks import Ranks
from traceprof.model.table import Names, Table
from traceprof.model.tables import ABSENT
from traceprof.model.trace import Trace, make_trace
from traceprof.render.escape import plain_text, visible_text
from traceprof.render.timeline.lanes import describe_device, describe_process

Text: TypeAlias = "str | pa.Array"
"""The same text in every row, or one for each."""

_FRACTIONS: Final = pa.array([f".{ns:03d}" for ns in range(1000)])


def joined(*pieces: Text) -> pa.Array:
    """Return the pieces of each row as one text; at least one of them is an array."""
    whole = [pa.scalar(piece) if isinstance(piece, str) else piece for piece in pieces]
    return pc.binary_join_element_wise(*whole, "")


def bytes_of(texts: pa.Array) -> bytes:
    """Return the texts, one after the other."""
    return "".join(texts.to_pylist()).encode("utf-8", "replace")


def microseconds(ns: npt.NDArray[np.int64]) -> pa.Array:
    """Return times as decimal microseconds, exact to the nanosecond."""
    signs = pa.array(np.where(ns < 0, "-", ""), pa.string())
    size = np.abs(ns)
    whole = pa.array(size // 1000).cast(pa.string())
    return joined(signs, whole, _FRACTIONS.take(pa.array(size % 1000)))


def number(key: str, values: npt.NDArray[Any], is_known: npt.NDArray[np.bool_]) -> pa.Array:
    """Return ``,"key":value`` for each row; nothing where the value is not known."""
    texts = pa.array(np.asarray(values)).cast(pa.string())
    return pc.if_else(pa.array(is_known), joined(f",{json.dumps(key)}:", texts), "")


def quoted(key: str, names: Names) -> pa.Array:
    """Return ``,"key":"name"`` for each row; nothing where there is no name."""
    own = names.used()  # these rows may have few of the many of their table
    texts = [f",{json.dumps(key)}:{as_json(word)}" if word else "" for word in own.texts]
    return taken(texts, own)


def names_as_json(names: Names) -> pa.Array:
    """Return the name of each row in quotation marks."""
    own = names.used()
    return taken(list(map(as_json, own.texts)), own)


def as_json(text: str) -> str:
    """Return a text as JSON, without what a terminal would obey."""
    return visible_text(json.dumps(text.encode("utf-8", "replace").decode(), ensure_ascii=False))


def taken(texts: list[str], names: Names) -> pa.Array:
    """Return what stands for each row's name: ``texts`` has one for each of ``names.texts``."""
    return pa.array(texts, pa.string()).take(pa.array(names.codes))


_FIRST_DEVICE: Final = 3_000_000_000
_FIRST_EXTRA: Final = 2_000_000_000
_HOST: Final = -2
_MOST_NESTED: Final = 64
"""What overlaps in more lanes than this lies in lanes in which nothing nests, so that finding one
does not grow with their number."""
_NO_STREAM: Final = 1 << 31
"""From here on numbers are minus one, written without a sign: a wait that is for all streams."""

_Int64Array = npt.NDArray[np.int64]
Places = tuple[_Int64Array, _Int64Array]
"""The process and the lane of each row, by their numbers."""


@dataclass(slots=True)
class ChromeLanes:
    """The lanes so far; they get their numbers as rows ask for them."""

    trace: Trace
    _threads: dict[tuple[int, int], str]
    _processes: dict[tuple[int, int], int] = field(default_factory=dict)
    _extra: dict[tuple[int, int, str, int], int] = field(default_factory=dict)
    _names: dict[tuple[int, int], tuple[str, int]] = field(default_factory=dict)
    _open: dict[tuple[int, int, str], list[int]] = field(default_factory=dict)
    _until: dict[tuple[object, ...], list[tuple[int, int]]] = field(default_factory=dict)
    _n_devices: int = 0

    @classmethod
    def of(cls, ranks: Ranks) -> ChromeLanes:
        """Return no lanes yet, of a run that knows its processes, threads and devices."""
        tables = {name: ranks.table(name) for name in ("processes", "threads", "devices")}
        trace = make_trace(ranks.info, tables, ranks.recorded, ranks.span, ())
        threads = tables["threads"].rows()
        return cls(trace, {(row["process"], row["thread"]): row["name"] for row in threads})

    def of_devices(self, table: str, events: Table, kind: str = "") -> Places:
        """Return where each row of device work is; ``kind`` has lanes of its own."""
        return self._placed(table, events, ("process", "device", "stream"), kind)

    def of_threads(self, table: str, events: Table, kind: str = "") -> Places:
        """Return where each row of the host is; ``kind`` has lanes of its own."""
        return self._placed(table, events, ("process", "", "thread"), kind)

    def _placed(
        self, table: str, events: Table, columns: tuple[str, str, str], kind: str
    ) -> Places:
        processes, lanes = np.zeros(len(events), np.int64), np.zeros(len(events), np.int64)
        starts, nothing = events["start_ns"], np.full(len(events), ABSENT)
        ends = events.get("end_ns", starts)
        keys = [events.get(column, nothing) for column in columns]
        for rows in rows_by_first(*keys):
            process, device, lane = (int(own[rows[0]]) for own in keys)
            pid = self.process_of(process, device if columns[1] else None)
            processes[rows] = pid
            lanes[rows] = self._nested(table, (pid, lane, kind), starts[rows], ends[rows])
        return processes, lanes

    def process_of(self, process: int, device: int | None = None) -> int:
        """Return the number of a process, or of a device that it uses."""
        if device is None:
            return self._processes.setdefault((process, _HOST), max(process, 0))
        if (process, device) not in self._processes:
            self._processes[process, device] = _FIRST_DEVICE + self._n_devices
            self._n_devices += 1
        return self._processes[process, device]

    def _nested(
        self, table: str, place: tuple[int, int, str], starts: _Int64Array, ends: _Int64Array
    ) -> _Int64Array:
        """Return the lane of each row, so that in each lane those of a table nest."""
        found = np.zeros(len(starts), np.int64)
        rest, level = np.arange(len(starts)), 0
        while len(rest) and level < _MOST_NESTED:
            number = self._lane(place, level)
            is_open = self._open.setdefault((place[0], number, table), [])
            fits = _that_nest(starts[rest], ends[rest], is_open)
            found[rest[fits]] = number
            rest = rest[~fits]
            level += 1
        until = self._until.setdefault((*place, table), [])
        for row, start, end in zip(rest.tolist(), starts[rest], ends[rest], strict=True):
            is_free = bool(until) and until[0][0] <= start
            level = heappop(until)[1] if is_free else _MOST_NESTED + len(until)
            heappush(until, (int(end), level))
            found[row] = self._lane(place, level)
        return found

    def _lane(self, place: tuple[int, int, str], level: int) -> int:
        """Return the number of a lane: that of the thread or stream, if it can be."""
        pid, lane, kind = place
        number = max(lane, 0)
        if kind or level:
            number = self._extra.setdefault((*place, level), _FIRST_EXTRA + len(self._extra))
        if (pid, number) not in self._names:
            words = [self._name(pid, lane), kind, f"overlapping {level}" if level else ""]
            self._names[pid, number] = (" · ".join(filter(None, words)), lane)
        return number

    def _name(self, pid: int, lane: int) -> str:
        if pid >= _FIRST_DEVICE:
            is_known = 0 <= lane < _NO_STREAM
            return f"stream {lane}" if is_known else "no stream"
        if lane == ABSENT:
            return "unknown thread"
        name = self._threads.get((pid, lane), "")
        main = "main thread" if lane == pid else f"thread {lane}"
        return name if name.startswith("thread ") else " · ".join(filter(None, [main, name]))

    def described(self) -> Iterator[str]:
        """Yield what processes and lanes are called, and their order, as events of JSON."""
        yield from self._described_processes()
        ordered = sorted(self._names.items(), key=lambda lane: (lane[0][0], lane[1][1], lane[0][1]))
        for order, ((pid, number), (name, _)) in enumerate(ordered):
            yield _metadata("thread_name", pid, number, f'"name":{as_json(plain_text(name))}')
            yield _metadata("thread_sort_index", pid, number, f'"sort_index":{order}')

    def _described_processes(self) -> Iterator[str]:
        ranks = {row["process"]: row["rank"] for row in self.trace.processes.rows()}

        def order_of(place: tuple[int, int]) -> tuple[bool, int, int, int]:
            rank = ranks.get(place[0], ABSENT)
            return (rank == ABSENT, rank, *place)

        for order, place in enumerate(sorted(self._processes, key=order_of)):
            process, device = place
            name = describe_process(self.trace, process)
            if device != _HOST:
                rank = ranks.get(process, ABSENT)
                own = describe_device(self.trace, device)
                owner = f"rank {rank}" if rank != ABSENT else f"process {process}"
                # A run of several files calls its devices by their ranks already.
                name = f"{owner} · {own.replace(f' · rank {rank}', '')}"
            pid = self._processes[place]
            yield _metadata("process_name", pid, 0, f'"name":{as_json(plain_text(name))}')
            label = "GPU" if device != _HOST else "CPU"
            yield _metadata("process_labels", pid, 0, f'"labels":"{label}"')
            yield _metadata("process_sort_index", pid, 0, f'"sort_index":{order}')


def _metadata(name: str, pid: int, tid: int, told: str) -> str:
    return f'{{"ph":"M","name":"{name}","pid":{pid},"tid":{tid},"ts":0,"args":{{{told}}}}}'


def _that_nest(starts: _Int64Array, ends: _Int64Array, is_open: list[int]) -> npt.NDArray[np.bool_]:
    """Return which rows nest in those before them, whose ends are ``is_open``, outer first."""
    before = np.maximum.accumulate(np.append(max(is_open, default=starts[0]), ends))
    fits = np.ones(len(starts), np.bool_)
    if bool((starts >= before[:-1]).all()):
        is_open[:] = [int(before[-1])]
        return fits
    for row, (start, end) in enumerate(zip(starts.tolist(), ends.tolist(), strict=True)):
        while is_open and is_open[-1] <= start:
            is_open.pop()
        if is_open and end > is_open[-1]:
            fits[row] = False
        else:
            is_open.append(end)
    return fits
