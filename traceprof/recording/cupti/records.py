"""Convert CUPTI activity records to tables.

From CUDA 11.7 to 13.5 no field that is read here has moved: newer records are only longer. The C
library writes the size of each kind of record to the file. One description of the fields therefore
reads all versions, including future ones.
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
"""(process, device number in the process) → device number in the trace."""

COPY, MEMSET, SERIAL_KERNEL, DRIVER, RUNTIME, KERNEL = 1, 2, 3, 4, 5, 10
OVERHEAD, PEER_COPY, SYNC, GRAPH = 17, 22, 38, 51
_U1, _U2, _U4, _I4, _U8 = "u1", "<u2", "<u4", "<i4", "<u8"
_DEVICE_FIELDS: Final = "start:16:<u8 end:24:<u8 device:{}:<u4 context:{}:<u4 stream:{}:<u4"
_COPY_FIELDS: Final = "copyKind:4:u1 srcKind:5:u1 dstKind:6:u1 bytes:8:<u8 " + _DEVICE_FIELDS
_CALL_FIELDS: Final = "cbid:4:<u4 start:8:<u8 end:16:<u8 thread:28:<u4 correlation:32:<u4"
_GRID_FIELDS: Final = " ".join(
    f"{name}:{52 + 4 * at}:<i4"
    for at, name in enumerate(f"{of}{axis}" for of in ("grid", "block") for axis in "XYZ")
)
_FIELDS: Final = {
    COPY: _COPY_FIELDS.format(32, 36, 40) + " correlation:44:<u4 graphNodeId:64:<u8",
    MEMSET: "bytes:8:<u8 memKind:50:<u2 graphNodeId:64:<u8 correlation:44:<u4 "
    + _DEVICE_FIELDS.format(32, 36, 40),
    KERNEL: f"registersPerThread:6:<u2 {_DEVICE_FIELDS.format(40, 44, 48)} {_GRID_FIELDS} "
    "name:104:<u8 staticSharedMemory:76:<i4 dynamicSharedMemory:80:<i4 correlation:92:<u4 "
    "graphNodeId:144:<u8",
    RUNTIME: _CALL_FIELDS,
    OVERHEAD: "what:4:<u4 object:8:<u4 thread:16:<u4 start:24:<u8 end:32:<u8",
    PEER_COPY: _COPY_FIELDS.format(32, 36, 40) + " srcDeviceId:44:<u4 dstDeviceId:52:<u4 "
    "correlation:60:<u4 graphNodeId:72:<u8",
    GRAPH: "correlation:4:<u4 start:8:<u8 end:16:<u8 device:24:<u4 graph:28:<u4 context:32:<u4 "
    "stream:36:<u4",
    SYNC: "type:4:<u4 start:8:<u8 end:16:<u8 correlation:24:<u4 context:28:<u4 stream:32:<u4",
}
"""The fields that are read of each kind of record, as name:offset:dtype (offset in bytes)."""

_SAME_LAYOUT: Final = {SERIAL_KERNEL: KERNEL, DRIVER: RUNTIME}
_NO_STREAM: Final = 0xFFFFFFFF
_THREAD_OBJECT: Final = 2
_OVERHEAD_NAMES: Final = {
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
_MAX_TIME_NS: Final = 1 << 62
_MAX_SAME_CLOCK_OFFSET_NS: Final = 10_000
_BUFFERS_PER_BLOCK: Final = 16
"""Buffers (1 MB each) per block of tables. This bounds memory use."""

_ALWAYS_RECORDED: Final = frozenset({"kernels", "kernel_shapes", "copies", "devices", "overheads"})


@cache
def _record_dtype(kind: int) -> np.dtype[Any]:
    """Return the dtype of the fields that are read of a kind of record.

    The dtype ends after the last of these fields, rounded up to 8 bytes.
    """
    parts = [field.split(":") for field in _FIELDS[_SAME_LAYOUT.get(kind, kind)].split()]
    names, offsets, formats = zip(*parts, strict=True)
    byte_offsets = list(map(int, offsets))
    size = max(
        offset + np.dtype(format_).itemsize
        for offset, format_ in zip(byte_offsets, formats, strict=True)
    )
    return np.dtype(
        {"names": names, "formats": formats, "offsets": byte_offsets, "itemsize": -(-size // 8) * 8}
    )


def split_buffer(body: bytes, steps: Mapping[int, int]) -> tuple[dict[int, Records], int]:
    """Return the records of a buffer by kind, and the number of bytes that were parsed.

    ``steps`` is the size in bytes of each kind of record. Records are adjacent. Each begins with
    its kind, which alone determines its size.
    """
    kinds = memoryview(body)[: len(body) // 8 * 8].cast("I")
    size_of_kind = {kind: size // 4 for kind, size in steps.items() if size}
    starts: list[int] = []
    at, end = 0, len(kinds)
    while at < end:  # each offset depends on the previous record, so numpy cannot vectorize it
        size = size_of_kind.get(kinds[at], end)
        if size > end - at:
            break
        starts.append(at)
        at += size
    words: Words = np.frombuffer(body, "<u8", len(kinds) // 2)
    start_words = np.array(starts, np.int64) // 2
    kind_of_record = words[start_words] & np.uint64(0xFFFFFFFF)
    found = {}
    for kind in (*_FIELDS, *_SAME_LAYOUT):
        if steps.get(kind, 0) < _record_dtype(kind).itemsize:
            continue  # shorter than all known versions: an unknown record
        rows = start_words[kind_of_record == kind]
        if len(rows):
            n_words = _record_dtype(kind).itemsize // 8
            found[kind] = (
                words[rows[:, None] + np.arange(n_words)].view(_record_dtype(kind)).ravel()
            )
    return found, at * 4


def number_devices(activities: Iterable[DeviceActivity]) -> tuple[Numbers, list[DeviceFacts]]:
    """Return the number of each device in the trace, and the devices of all processes.

    Each process numbers the devices visible to it. If one number means different devices in
    different processes, the devices are renumbered in the order of processes.
    """
    devices_by_process = [
        (activity.pid, facts) for activity in activities for facts in activity.devices
    ]
    uuids_of_number: dict[int, set[str]] = {}
    for _, facts in devices_by_process:
        uuids_of_number.setdefault(facts.device, set()).add(facts.uuid)
    uuids = list(dict.fromkeys(facts.uuid for _, facts in devices_by_process))
    is_unambiguous = all(len(found) == 1 for found in uuids_of_number.values())
    numbers = {
        (pid, facts.device): facts.device if is_unambiguous else uuids.index(facts.uuid)
        for pid, facts in devices_by_process
    }
    known = {
        facts.uuid: facts._replace(device=numbers[pid, facts.device])
        for pid, facts in devices_by_process
    }
    return numbers, sorted(known.values())


def activity_tables(
    activity: DeviceActivity,
    numbers: Numbers,
    to_trace_time: Clock,
    mask_name: Callable[[str], str],
) -> Iterator[dict[str, Table]]:
    """Yield the CUPTI records of a process as tables, in blocks that bound memory use.

    Args:
        activity: the file of the process.
        numbers: (process, device) → number of the device in the trace.
        to_trace_time: converts ns since 1970 to the clock of the trace.
        mask_name: masks the secrets in a name.
    """
    reader = _ProcessReader(activity, numbers, to_trace_time, mask_name)
    for _, group in groupby(buffers(activity), key=lambda part: id(part[1])):
        while parts := list(islice(group, _BUFFERS_PER_BLOCK)):
            yield reader.tables(b"".join(body for body, _ in parts), parts[0][1])


class _ProcessReader:
    """Convert the records of one process; contexts are assigned to devices while reading."""

    def __init__(
        self,
        activity: DeviceActivity,
        numbers: Numbers,
        to_trace_time: Clock,
        mask_name: Callable[[str], str],
    ) -> None:
        self._activity = activity
        self._names: Mapping[int, str] = {}
        self._to_trace_time = to_trace_time
        self._shown_name = cache(lambda name: mask_name(_demangled(name)))
        clocks = np.array(sorted(reading[:2] for reading in activity.clocks) or [(0, 0)], np.int64)
        self._clock_ns, offset_ns = clocks[:, 0], clocks[:, 1] - clocks[:, 0]
        # CUPTI usually uses the wall clock. The difference is then the time to read both.
        is_same = np.abs(offset_ns).max() < _MAX_SAME_CLOCK_OFFSET_NS
        self._offset_ns = np.zeros_like(offset_ns) if is_same else offset_ns
        self._device_of: dict[int, int] = {}  # context → device
        self._number_of_device = {d: at for (pid, d), at in numbers.items() if pid == activity.pid}

    def tables(self, body: bytes, names: Mapping[int, str]) -> dict[str, Table]:
        """Return the tables of adjacent buffers; ``names`` maps pointers to kernel names."""
        self._names = names
        found, _ = split_buffer(body, self._activity.steps)
        parts: dict[str, list[Table]] = {}
        for kind, records in found.items():
            start, end = records["start"], records["end"]
            has_times = (start > 0) & (end >= start) & (end < _MAX_TIME_NS)
            rows = records if has_times.all() else records[has_times]
            for name, table in self._make_tables(kind, rows).items() if len(rows) else ():
                parts.setdefault(name, []).append(table)
        return {name: stack(name, tables) for name, tables in parts.items()}

    def _make_tables(self, kind: int, rows: Records) -> dict[str, Table]:
        """Return the tables of the records of one kind."""
        layout = _SAME_LAYOUT.get(kind, kind)
        if layout == RUNTIME:
            return {"api_calls": self._calls(kind, rows)}
        if layout == OVERHEAD:
            return {"overheads": self._overheads(rows)}
        columns = self._device_columns(rows)
        if layout == KERNEL:
            return {
                "kernels": self._kernels(rows, columns),
                "kernel_shapes": _make_shapes(rows, columns),
            }
        if layout == GRAPH:
            graphs = make_traced_graphs(columns, rows["graph"].astype(np.int64))
            return {"kernels": graphs, "kernel_shapes": make_table("kernel_shapes", columns)}
        if layout == SYNC:
            return {"syncs": make_syncs(columns, rows["type"].astype(np.int64))}
        return {"copies": _make_copies(kind, rows, columns)}

    def _times(self, rows: Records) -> dict[str, npt.NDArray[np.int64]]:
        """Return start and end of records in ns on the clock of the trace."""
        times = {}
        for column, name in (("start", "start_ns"), ("end", "end_ns")):
            cupti_ns = rows[column].astype(np.int64)
            since = cupti_ns - self._clock_ns[0]
            offset = np.interp(since, self._clock_ns - self._clock_ns[0], self._offset_ns)
            times[name] = self._to_trace_time(cupti_ns + np.rint(offset).astype(np.int64))
        return {**times, "end_ns": np.maximum(times["start_ns"], times["end_ns"])}

    def _device_columns(self, rows: Records) -> dict[str, npt.NDArray[np.int64]]:
        """Return the columns that all kinds of GPU activity share.

        Records without a device (synchronization) get the device of their context, ABSENT if it is
        unknown.
        """
        contexts = rows["context"].astype(np.int64)
        if "device" in (rows.dtype.names or ()):
            device = renamed(rows["device"].astype(np.int64), self._number_of_device)
            _, first = np.unique(contexts, return_index=True)
            seen = zip(contexts[first].tolist(), device[first].tolist(), strict=True)
            self._device_of.update(seen)
        else:
            known = (self._device_of.get(context, ABSENT) for context in contexts.tolist())
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
        """Return correlation ids that are unique across the programs that one process executed."""
        numbers = rows["correlation"].astype(np.int64)
        return np.where(numbers > 0, numbers + (self._activity.program << 32), numbers)

    def _kernels(self, rows: Records, columns: Mapping[str, Any]) -> Table:
        names = names_by_number(rows["name"].astype(np.int64), self._name_at)
        return make_table("kernels", {**columns, "name": names, "graph_node": _graph_nodes(rows)})

    def _name_at(self, pointer: int) -> str:
        """Return the name of the kernel whose name is at ``pointer``."""
        return self._shown_name(self._names.get(pointer, f"[kernel {pointer:#x}]"))

    def _calls(self, kind: int, rows: Records) -> Table:
        domain = "driver" if kind == DRIVER else "runtime"
        names = api_names(domain)
        columns = {
            "process": np.full(len(rows), self._activity.pid),
            "thread": rows["thread"].astype(np.int64),
            "correlation": self._correlations(rows),
            "name": names_by_number(
                rows["cbid"].astype(np.int64),
                lambda number: names.get(number, f"{domain} cbid {number}"),
            ),
        }
        return make_table("api_calls", {**self._times(rows), **columns})

    def _overheads(self, rows: Records) -> Table:
        threads = rows["thread"].astype(np.int64)
        columns = {
            "process": np.full(len(rows), self._activity.pid),
            "thread": np.where(rows["object"] == _THREAD_OBJECT, threads, ABSENT),
            "name": names_by_number(
                rows["what"].astype(np.int64), lambda code: _OVERHEAD_NAMES.get(code, "CUPTI")
            ),
        }
        return make_table("overheads", {**self._times(rows), **columns})


def _demangled(name: str) -> str:
    return (pydemumble.demangle(name) or name) if name.startswith("_Z") else name


def _graph_nodes(rows: Records) -> npt.NDArray[np.int64]:
    """Return the CUDA graph node of each row, ABSENT for none."""
    nodes = rows["graphNodeId"].astype(np.int64)
    return np.where(nodes > 0, nodes, ABSENT)


def _make_shapes(rows: Records, columns: Mapping[str, Any]) -> Table:
    fields = rows.dtype.names or ()
    raw = {name: rows[name].astype(np.int64) for name in KERNEL_SHAPE.values() if name in fields}
    raw["contextId"] = rows["context"].astype(np.int64)
    raw["sharedMemoryTotal"] = np.full(len(rows), ABSENT)
    return make_kernel_shapes(columns, raw)


def _make_copies(kind: int, rows: Records, columns: Mapping[str, Any]) -> Table:
    raw = {"bytes": rows["bytes"].astype(np.int64), "graphNodeId": _graph_nodes(rows)}
    if kind == MEMSET:
        return make_copies(columns, raw, None, rows["memKind"].astype(np.int64))
    for name in ("srcDeviceId", "dstDeviceId"):
        raw[name] = rows[name].astype(np.int64) if kind == PEER_COPY else np.full(len(rows), ABSENT)
    raw["copyKind"] = rows["copyKind"].astype(np.int64)
    src, dst = (rows[name].astype(np.int64) for name in ("srcKind", "dstKind"))
    return make_copies(columns, raw, src, dst)


def recorded_of(activities: Iterable[DeviceActivity]) -> set[str]:
    """Return the names of the recorded tables; API calls and syncs only if requested."""
    found = set(_ALWAYS_RECORDED)
    for activity in activities:
        if activity.calls != "none":
            found.add("api_calls")
        if "syncs" in activity.notes:
            found.add("syncs")
    return found


def device_columns(devices: Sequence[DeviceFacts]) -> dict[str, list[Any]]:
    """Return the columns of the table of devices."""
    return {name: [getattr(device, name) for device in devices] for name in DeviceFacts._fields}
