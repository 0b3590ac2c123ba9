"""CUPTI's records as tables: their fields, going from one to the next, and what they become.

No field that is read here has moved from CUDA 11.7 to 13.5: newer records are only longer, and how
long they are the library itself has told. So one description reads all versions, and those to come.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import groupby, islice
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pydemumble

from traceprof.formats.shared.cupti import (
    KERNEL_SHAPE,
    api_names,
    make_copies,
    make_kernel_shapes,
    make_syncs,
    make_traced_graphs,
    names_by_number,
)
from traceprof.model.grouping import renamed
from traceprof.model.table import Table
from traceprof.model.tables import ABSENT, make_table, stack
from traceprof.recording.cupti.spool import DeviceActivity, DeviceFacts, buffers

Words = npt.NDArray[np.uint64]
Records = npt.NDArray[Any]
Clock = Callable[[npt.NDArray[np.int64]], npt.NDArray[np.int64]]
Numbers = Mapping[tuple[int, int], int]
"""(process, number of a device there) → its number in the trace."""

COPY, MEMSET, SERIAL_KERNEL, DRIVER, RUNTIME, KERNEL = 1, 2, 3, 4, 5, 10
OVERHEAD, PEER_COPY, SYNC, GRAPH = 17, 22, 38, 51
_U1, _U2, _U4, _I4, _U8 = "u1", "<u2", "<u4", "<i4", "<u8"
_PLACE: Final = "start:16:<u8 end:24:<u8 device:{}:<u4 context:{}:<u4 stream:{}:<u4"
_COPIED: Final = "copyKind:4:u1 srcKind:5:u1 dstKind:6:u1 bytes:8:<u8 " + _PLACE
_CALL: Final = "cbid:4:<u4 start:8:<u8 end:16:<u8 thread:28:<u4 correlation:32:<u4"
_GRIDS: Final = " ".join(
    f"{name}:{52 + 4 * at}:<i4"
    for at, name in enumerate(f"{of}{axis}" for of in ("grid", "block") for axis in "XYZ")
)
_FIELDS: Final = {
    COPY: _COPIED.format(32, 36, 40) + " correlation:44:<u4 graphNodeId:64:<u8",
    MEMSET: "bytes:8:<u8 memKind:50:<u2 graphNodeId:64:<u8 correlation:44:<u4 "
    + _PLACE.format(32, 36, 40),
    KERNEL: f"registersPerThread:6:<u2 {_PLACE.format(40, 44, 48)} {_GRIDS} name:104:<u8 "
    "staticSharedMemory:76:<i4 dynamicSharedMemory:80:<i4 correlation:92:<u4 graphNodeId:144:<u8",
    RUNTIME: _CALL,
    OVERHEAD: "what:4:<u4 object:8:<u4 thread:16:<u4 start:24:<u8 end:32:<u8",
    PEER_COPY: _COPIED.format(32, 36, 40) + " srcDeviceId:44:<u4 dstDeviceId:52:<u4 "
    "correlation:60:<u4 graphNodeId:72:<u8",
    GRAPH: "correlation:4:<u4 start:8:<u8 end:16:<u8 device:24:<u4 graph:28:<u4 context:32:<u4 "
    "stream:36:<u4",
    SYNC: "type:4:<u4 start:8:<u8 end:16:<u8 correlation:24:<u4 context:28:<u4 stream:32:<u4",
}
"""What is read of records: name, where it begins, type."""

_ALIKE: Final = {SERIAL_KERNEL: KERNEL, DRIVER: RUNTIME}
_NO_STREAM: Final = 0xFFFFFFFF
_OF_THREAD: Final = 2
_OVERHEADS: Final = {
    1: "Driver compiler",
    1 << 16: "CUPTI buffer flush",
    2 << 16: "CUPTI instrumentation",
    3 << 16: "CUPTI resources",
    4 << 16: "Module loading",
    5 << 16: "Lazy loading of a function",
    6 << 16: "Command buffer full",
    7 << 16: "CUPTI buffer request",
    8 << 16: "Start of unified memory activity",
}
_NEVER_NS: Final = 1 << 62
_SAME_CLOCK_NS: Final = 10_000
_BUFFERS_TOGETHER: Final = 16
"""Of 1 MB each: memory while tables are made is bounded by them."""

_ALWAYS: Final = frozenset({"kernels", "kernel_shapes", "copies", "devices", "overheads"})


@cache
def _shape_of(kind: int) -> np.dtype[Any]:
    """Return the fields that are read of a kind of records; those behind them are left out."""
    parts = [one.split(":") for one in _FIELDS[_ALIKE.get(kind, kind)].split()]
    names, offsets, formats = zip(*parts, strict=True)
    places = list(map(int, offsets))
    size = max(at + np.dtype(form).itemsize for at, form in zip(places, formats, strict=True))
    return np.dtype(
        {"names": names, "formats": formats, "offsets": places, "itemsize": -(-size // 8) * 8}
    )


def split_buffer(body: bytes, steps: Mapping[int, int]) -> tuple[dict[int, Records], int]:
    """Return the records of a buffer by kind, and how many bytes were understood.

    Records lie back to back, each beginning with its kind, which alone tells how long it is.
    """
    kinds = memoryview(body)[: len(body) // 8 * 8].cast("I")
    step_of = {kind: step // 4 for kind, step in steps.items() if step}
    places: list[int] = []
    at, end = 0, len(kinds)
    while at < end:  # every step depends on the last: numpy has no way to do this at once
        step = step_of.get(kinds[at], end)
        if step > end - at:
            break
        places.append(at)
        at += step
    words: Words = np.frombuffer(body, "<u8", len(kinds) // 2)
    begins = np.array(places, np.int64) // 2
    of_kind = words[begins] & np.uint64(0xFFFFFFFF)
    found = {}
    for kind in (*_FIELDS, *_ALIKE):
        if steps.get(kind, 0) < _shape_of(kind).itemsize:
            continue  # shorter than any known one: it is another record
        rows = begins[of_kind == kind]
        if len(rows):
            n_words = _shape_of(kind).itemsize // 8
            found[kind] = words[rows[:, None] + np.arange(n_words)].view(_shape_of(kind)).ravel()
    return found, at * 4


def number_devices(activities: Iterable[DeviceActivity]) -> tuple[Numbers, list[DeviceFacts]]:
    """Return the numbers of devices in a trace of several processes, and the devices.

    Each process counts those that it may see; where they mean different ones by a number, devices
    are numbered anew, in the order of processes.
    """
    told = [(one.pid, facts) for one in activities for facts in one.devices]
    by_number: dict[int, set[str]] = {}
    for _, facts in told:
        by_number.setdefault(facts.device, set()).add(facts.uuid)
    uuids = list(dict.fromkeys(facts.uuid for _, facts in told))
    is_plain = all(len(found) == 1 for found in by_number.values())
    numbers = {
        (pid, facts.device): facts.device if is_plain else uuids.index(facts.uuid)
        for pid, facts in told
    }
    known = {facts.uuid: facts._replace(device=numbers[pid, facts.device]) for pid, facts in told}
    return numbers, sorted(known.values())


def activity_tables(
    activity: DeviceActivity, numbers: Numbers, to_trace_time: Clock, shown: Callable[[str], str]
) -> Iterator[dict[str, Table]]:
    """Yield what CUPTI recorded of a process as tables, so many at a time that memory is bounded.

    Args:
        activity: what the process left.
        numbers: how its devices are numbered in the trace.
        to_trace_time: turns ns since 1970 into the clock of the trace.
        shown: gives a name as it may be shown.
    """
    reading = _Reading(activity, numbers, to_trace_time, shown)
    for _, some in groupby(buffers(activity), key=lambda part: id(part[1])):
        while parts := list(islice(some, _BUFFERS_TOGETHER)):
            yield reading.tables(b"".join(body for body, _ in parts), parts[0][1])


class _Reading:
    """One process's records: what its numbers mean is found on the way."""

    def __init__(
        self,
        activity: DeviceActivity,
        numbers: Numbers,
        to_trace_time: Clock,
        shown: Callable[[str], str],
    ) -> None:
        self._activity = activity
        self._names: Mapping[int, str] = {}
        self._to_trace_time = to_trace_time
        self._shown = cache(lambda name: shown(_demangled(name)))
        clocks = np.array(sorted(one[:2] for one in activity.clocks) or [(0, 0)], np.int64)
        self._since_ns, offset_ns = clocks[:, 0], clocks[:, 1] - clocks[:, 0]
        # CUPTI mostly uses the wall clock itself: then they differ by what it takes to ask both.
        is_same = np.abs(offset_ns).max() < _SAME_CLOCK_NS
        self._offset_ns = np.zeros_like(offset_ns) if is_same else offset_ns
        self._device_of: dict[int, int] = {}  # a context → its device
        self._numbers = {d: at for (pid, d), at in numbers.items() if pid == activity.pid}

    def tables(self, body: bytes, names: Mapping[int, str]) -> dict[str, Table]:
        """Return the tables of buffers that lie one behind the other."""
        self._names = names
        found, _ = split_buffer(body, self._activity.steps)
        parts: dict[str, list[Table]] = {}
        for kind, records in found.items():
            start, end = records["start"], records["end"]
            has_times = (start > 0) & (end >= start) & (end < _NEVER_NS)
            rows = records if has_times.all() else records[has_times]
            for name, table in self._tables_of(kind, rows).items() if len(rows) else ():
                parts.setdefault(name, []).append(table)
        return {name: stack(name, tables) for name, tables in parts.items()}

    def _tables_of(self, kind: int, rows: Records) -> dict[str, Table]:
        alike = _ALIKE.get(kind, kind)
        if alike == RUNTIME:
            return {"api_calls": self._calls(kind, rows)}
        if alike == OVERHEAD:
            return {"overheads": self._overheads(rows)}
        place = self._on_device(rows)
        if alike == KERNEL:
            return {"kernels": self._kernels(rows, place), "kernel_shapes": _shapes(rows, place)}
        if alike == GRAPH:
            graphs = make_traced_graphs(place, rows["graph"].astype(np.int64))
            return {"kernels": graphs, "kernel_shapes": make_table("kernel_shapes", place)}
        if alike == SYNC:
            return {"syncs": make_syncs(place, rows["type"].astype(np.int64))}
        return {"copies": _copies(kind, rows, place)}

    def _times(self, rows: Records) -> dict[str, npt.NDArray[np.int64]]:
        """Return when records began and ended, by the clock of the trace."""
        times = {}
        for column, name in (("start", "start_ns"), ("end", "end_ns")):
            cupti_ns = rows[column].astype(np.int64)
            since = cupti_ns - self._since_ns[0]
            offset = np.interp(since, self._since_ns - self._since_ns[0], self._offset_ns)
            times[name] = self._to_trace_time(cupti_ns + np.rint(offset).astype(np.int64))
        return {**times, "end_ns": np.maximum(times["start_ns"], times["end_ns"])}

    def _on_device(self, rows: Records) -> dict[str, npt.NDArray[np.int64]]:
        contexts = rows["context"].astype(np.int64)
        if "device" in (rows.dtype.names or ()):
            device = renamed(rows["device"].astype(np.int64), self._numbers)
            _, first = np.unique(contexts, return_index=True)
            seen = zip(contexts[first].tolist(), device[first].tolist(), strict=True)
            self._device_of.update(seen)
        else:
            known = (self._device_of.get(one, ABSENT) for one in contexts.tolist())
            device = np.fromiter(known, np.int64, len(contexts))
        streams = rows["stream"].astype(np.int64)
        return {
            **self._times(rows),
            "device": device,
            "stream": np.where(streams == _NO_STREAM, ABSENT, streams),
            "process": np.full(len(rows), self._activity.pid),
            "correlation": self._correlations(rows),
        }

    def _correlations(self, rows: Records) -> npt.NDArray[np.int64]:
        """Return the numbers of calls, those of each program of the process apart."""
        numbers = rows["correlation"].astype(np.int64)
        return np.where(numbers > 0, numbers + (self._activity.program << 32), numbers)

    def _kernels(self, rows: Records, place: Mapping[str, Any]) -> Table:
        called = names_by_number(rows["name"].astype(np.int64), self._name_at)
        return make_table("kernels", {**place, "name": called, "graph_node": _nodes(rows)})

    def _name_at(self, pointer: int) -> str:
        return self._shown(self._names.get(pointer, f"[kernel {pointer:#x}]"))

    def _calls(self, kind: int, rows: Records) -> Table:
        domain = "driver" if kind == DRIVER else "runtime"
        names = api_names(domain)
        own = {
            "process": np.full(len(rows), self._activity.pid),
            "thread": rows["thread"].astype(np.int64),
            "correlation": self._correlations(rows),
            "name": names_by_number(
                rows["cbid"].astype(np.int64),
                lambda number: names.get(number, f"{domain} cbid {number}"),
            ),
        }
        return make_table("api_calls", {**self._times(rows), **own})

    def _overheads(self, rows: Records) -> Table:
        threads = rows["thread"].astype(np.int64)
        own = {
            "process": np.full(len(rows), self._activity.pid),
            "thread": np.where(rows["object"] == _OF_THREAD, threads, ABSENT),
            "name": names_by_number(
                rows["what"].astype(np.int64), lambda code: _OVERHEADS.get(code, "CUPTI")
            ),
        }
        return make_table("overheads", {**self._times(rows), **own})


def _demangled(name: str) -> str:
    return (pydemumble.demangle(name) or name) if name.startswith("_Z") else name


def _nodes(rows: Records) -> npt.NDArray[np.int64]:
    nodes = rows["graphNodeId"].astype(np.int64)
    return np.where(nodes > 0, nodes, ABSENT)


def _shapes(rows: Records, place: Mapping[str, Any]) -> Table:
    fields = rows.dtype.names or ()
    raw = {name: rows[name].astype(np.int64) for name in KERNEL_SHAPE.values() if name in fields}
    raw["contextId"] = rows["context"].astype(np.int64)
    raw["sharedMemoryTotal"] = np.full(len(rows), ABSENT)
    return make_kernel_shapes(place, raw)


def _copies(kind: int, rows: Records, place: Mapping[str, Any]) -> Table:
    raw = {"bytes": rows["bytes"].astype(np.int64), "graphNodeId": _nodes(rows)}
    if kind == MEMSET:
        return make_copies(place, raw, None, rows["memKind"].astype(np.int64))
    for name in ("srcDeviceId", "dstDeviceId"):
        is_told = kind == PEER_COPY
        raw[name] = rows[name].astype(np.int64) if is_told else np.full(len(rows), ABSENT)
    raw["copyKind"] = rows["copyKind"].astype(np.int64)
    src, dst = (rows[name].astype(np.int64) for name in ("srcKind", "dstKind"))
    return make_copies(place, raw, src, dst)


def recorded_of(activities: Iterable[DeviceActivity]) -> set[str]:
    """Return the tables that were recorded: calls and waits only where they were asked for."""
    found = set(_ALWAYS)
    for one in activities:
        if one.calls != "none":
            found.add("api_calls")
        if "syncs" in one.notes:
            found.add("syncs")
    return found


def device_columns(devices: Sequence[DeviceFacts]) -> dict[str, list[Any]]:
    """Return devices as columns of the table of them."""
    return {name: [getattr(one, name) for one in devices] for name in DeviceFacts._fields}
