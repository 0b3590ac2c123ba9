"""Read device and host events from a file of nvprof."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from typing import Final

import numpy as np
import numpy.typing as npt

from traceprof.formats.nvprof.file import NvprofFile, integer_sql, object_ids
from traceprof.formats.nvprof.format import PREFIX
from traceprof.formats.shared import cupti
from traceprof.formats.sqlite.columns import known
from traceprof.model.grouping import groups_of
from traceprof.model.table import Column, Names, Table
from traceprof.model.tables import ABSENT, empty_table, make_table, stack
from traceprof.model.timing import TimeWindow

_PLACE_COLUMNS: Final = ("deviceId", "streamId", "correlationId")
_MEMORY_KINDS: Final = {
    code + 1: kind for code, kind in cupti.MEMORY_KINDS.items() if kind != "unknown"
}
"""nvprof's codes of memory kinds are nsys's plus one; 0 is unknown."""
MIGRATIONS: Final = {1: "h2d", 2: "d2h", 8: "p2p"}
"""Kind of unified memory counter → direction of the page migration."""
_KERNELS: Final = ("CONCURRENT_KERNEL", "KERNEL")
_SHAPE_COLUMNS: Final = tuple(cupti.KERNEL_SHAPE.values())
_NO_STREAM: Final = 0xFFFFFFFF
MARK: Final = 1
START: Final = 2
END: Final = 4
_THREAD: Final = 2  # kind of object: a push/pop range belongs to a thread
_THREAD_BITS: Final = 0xFFFFFFFF
_PAYLOADS: Final = {0: "<d", 1: "<Q", 4: "<q"}
_OVERHEADS: Final = {1: "compiler"} | {
    code << 16: name for code, name in enumerate(("buffer flush", "instrumentation", "resource"), 1)
}


def read_kernels(
    file: NvprofFile, window: TimeWindow | None = None, *, with_shapes: bool = False
) -> tuple[Table, Table]:
    """Return the kernels, and with ``with_shapes`` their launch shapes if the file has them.

    A CUDA graph that was traced as a whole is one row.
    """
    kernels, shapes = [], []
    with_shapes = with_shapes and has_kernel_shapes(file)
    optional = ("graphNodeId", *_SHAPE_COLUMNS) if with_shapes else ("graphNodeId",)
    for table in filter(file.has, _KERNELS):
        raw = file.columns(table, (*_PLACE_COLUMNS, "name"), window, optional, _SHAPE_COLUMNS)
        place, names = _place_columns(file, raw), file.kernel_names(raw["name"])
        kernels.append(cupti.make_kernels(place, names, file.rules, raw["graphNodeId"]))
        if with_shapes:
            shapes.append(cupti.make_kernel_shapes(place, raw))
    if file.has("GRAPH_TRACE"):
        raw = file.columns("GRAPH_TRACE", (*_PLACE_COLUMNS, "graphId"), window)
        place = _place_columns(file, raw)
        kernels.append(cupti.make_traced_graphs(place, raw["graphId"]))
        if with_shapes:
            shapes.append(make_table("kernel_shapes", place))
    return stack("kernels", kernels), stack("kernel_shapes", shapes)


def has_kernel_shapes(file: NvprofFile) -> bool:
    """Return whether the file contains the launch shapes (grid and block) of kernels."""
    return any({"gridX", "blockX"} <= file.database.columns(PREFIX + table) for table in _KERNELS)


def read_copies(file: NvprofFile, window: TimeWindow | None = None) -> Table:
    """Return the copies (also between devices), the memsets, and the page migrations."""
    parts = []
    for table in filter(file.has, ("MEMCPY", "MEMCPY2")):
        needed = (*_PLACE_COLUMNS, "copyKind", "srcKind", "dstKind", "bytes")
        raw = file.columns(table, needed, window, ("graphNodeId", "srcDeviceId", "dstDeviceId"))
        parts.append(
            cupti.make_copies(
                _place_columns(file, raw), raw, raw["srcKind"], raw["dstKind"], _MEMORY_KINDS
            )
        )
    if file.has("MEMSET"):
        raw = file.columns(
            "MEMSET", (*_PLACE_COLUMNS, "bytes"), window, ("memoryKind", "graphNodeId")
        )
        parts.append(
            cupti.make_copies(
                _place_columns(file, raw), raw, None, raw["memoryKind"], _MEMORY_KINDS
            )
        )
    if file.has("UNIFIED_MEMORY_COUNTER"):
        parts.append(_migrations(file, window))
    return stack("copies", parts)


def _migrations(file: NvprofFile, window: TimeWindow | None) -> Table:
    """Return the page migrations of unified memory as copies."""
    optional = ("srcId", "dstId", "streamId")
    raw = file.columns("UNIFIED_MEMORY_COUNTER", ("counterKind", "value"), window, optional)
    kept = np.isin(raw["counterKind"], list(MIGRATIONS))
    raw = {name: values[kept] for name, values in raw.items()}
    raw["deviceId"] = np.where(raw["counterKind"] == 2, raw["srcId"], raw["dstId"])
    raw["correlationId"] = np.full(len(raw["value"]), ABSENT)
    managed = Names.repeated("managed", len(raw["value"]))
    return make_table(
        "copies",
        {
            **_place_columns(file, raw),
            "direction": cupti.decode(raw["counterKind"], MIGRATIONS),
            "n_bytes": known(raw["value"]),
            "src_kind": managed,
            "dst_kind": managed,
        },
    )


def read_syncs(file: NvprofFile, window: TimeWindow | None = None) -> Table:
    """Return the synchronizations, each on the device of its context."""
    if not file.has("SYNCHRONIZATION"):
        return empty_table("syncs")
    numbers = ("type", "contextId", "streamId", "correlationId")
    raw = file.columns("SYNCHRONIZATION", numbers, window)
    devices = dict(file.rows("CONTEXT", ("contextId", "deviceId")))
    contexts, place = np.unique(raw["contextId"], return_inverse=True)
    owners = np.array([devices.get(context, ABSENT) for context in contexts.tolist()], np.int64)
    raw["deviceId"] = owners[place.ravel()]
    return cupti.make_syncs(_place_columns(file, raw), raw["type"])


def _place_columns(file: NvprofFile, raw: Mapping[str, npt.NDArray[np.int64]]) -> cupti.Place:
    """Return the columns of time and place of device events for the Trace."""
    stream = known(raw["streamId"])
    return {
        "start_ns": raw["start_ns"],
        "end_ns": raw["end_ns"],
        "device": known(raw["deviceId"]),
        "stream": np.where(stream == _NO_STREAM, ABSENT, stream),
        "process": np.full(len(stream), file.process),
        "correlation": known(raw["correlationId"]),
    }


def read_api_calls(file: NvprofFile, window: TimeWindow | None = None) -> Table:
    """Return the calls of the CUDA runtime and driver; a call without name shows its number."""
    parts = []
    for domain in ("runtime", "driver"):
        if not file.has(domain.upper()):
            continue
        wanted = ("cbid", "processId", "threadId", "correlationId")
        raw = file.columns(domain.upper(), wanted, window)
        known_names = cupti.api_names(domain)
        names = {
            code: known_names.get(code, f"{domain} cbid {code}")
            for code in set(raw["cbid"].tolist())
        }
        parts.append(
            make_table(
                "api_calls",
                {
                    "start_ns": raw["start_ns"],
                    "end_ns": raw["end_ns"],
                    "process": raw["processId"],
                    # Markers store the same 32 bits as an unsigned number.
                    "thread": raw["threadId"] & _THREAD_BITS,
                    "correlation": raw["correlationId"],
                    "name": cupti.names_by_number(raw["cbid"], names.__getitem__),
                },
            )
        )
    return stack("api_calls", parts)


def read_overheads(file: NvprofFile) -> Table:
    """Return the intervals that the profiler reports as its own overhead."""
    rows = file.rows("OVERHEAD", ("overheadKind", "start", "end"), ["objectId"])
    timed = [row for row in rows if row[1] > 0 and row[2] > 0]
    if not timed:
        return empty_table("overheads")
    kinds, starts, ends, owners = zip(*timed, strict=True)
    process, thread = object_ids(owners)
    start, end = (np.array(times, np.int64) - file.zero_ns for times in (starts, ends))
    return make_table(
        "overheads",
        {
            "start_ns": start,
            "end_ns": np.maximum(start, end),
            "process": process,
            "thread": np.where(thread == 0, ABSENT, thread),
            "name": [_OVERHEADS.get(kind, "overhead") for kind in kinds],
        },
    )


def read_markers(file: NvprofFile, last_ns: Callable[[], int]) -> cupti.Annotations:
    """Return the NVTX ranges and marks.

    Start and end of a range are two records with the same id; only the start has a name. A range
    without an end lasts until the last record, whose end ``last_ns`` returns.
    """
    if not file.has("MARKER"):
        return cupti.NO_ANNOTATIONS
    events = _read_marker_records(file)
    spans, ends, marks = (events.take((events["flags"] & flag) != 0) for flag in (START, END, MARK))
    ended = dict(zip(_occurrences(ends), ends["time"].tolist(), strict=True))
    found = [ended.get(occurrence) for occurrence in _occurrences(spans)]
    n_unclosed = found.count(None)
    latest = max(last_ns(), 0) if n_unclosed else 0
    return cupti.make_annotations(
        {**_event_columns(file, spans), "category": spans["category"]},
        np.array([latest if end is None else end for end in found], np.int64),
        spans["kind"] == _THREAD,
        _event_columns(file, marks),
        n_unclosed,
    )


def _occurrences(events: Table) -> list[tuple[int, int]]:
    """Return (id, number of earlier events with this id) for each event."""
    groups = groups_of(events["id"])
    ordinal = np.empty(len(events), np.int64)
    ordinal[groups.order] = np.arange(len(events)) - np.repeat(groups.first, groups.counts)
    return list(zip(events["id"].tolist(), ordinal.tolist(), strict=True))


def _read_marker_records(file: NvprofFile) -> Table:
    """Return the records of table MARKER by time, with thread, payload, and category."""
    has_domain = "domain" in file.database.columns(f"{PREFIX}MARKER")
    numbers = ", ".join(map(integer_sql, ("flags", "timestamp", "id", "objectKind")))
    domain = integer_sql("domain") if has_domain else "0"
    rows = file.database.rows(
        f"SELECT {numbers}, hex(objectId), {integer_sql('name')}, {domain} FROM {PREFIX}MARKER "
        "ORDER BY 2, _id_"
    )
    columns = ("flags", "time", "id", "kind", "object", "name", "domain")
    values_of = dict(
        zip(columns, zip(*rows, strict=True) if rows else [()] * len(columns), strict=True)
    )
    process, thread = object_ids(values_of.pop("object"))
    numbers_of = {name: np.array(values, np.int64) for name, values in values_of.items()}
    data = _marker_data(file)
    details = [data.get(number, (np.nan, ABSENT)) for number in values_of["id"]]
    return Table(
        {
            **numbers_of,
            "time": numbers_of["time"] - file.zero_ns,
            "process": process,
            "thread": np.where(thread == 0, ABSENT, thread),
            "payload": np.array([payload for payload, _ in details], np.float64),
            "category": np.array([category for _, category in details], np.int64),
        }
    )


def _marker_data(file: NvprofFile) -> dict[int, tuple[float, int]]:
    """Return id → payload and category of markers; the first record of an id counts."""
    table, rows = f"{PREFIX}MARKER_DATA", []
    if {"id", "payloadKind", "payload", "category"} <= file.database.columns(table):
        columns = f"{integer_sql('id')}, payloadKind, payload, {integer_sql('category')}"
        rows = file.database.rows(f"SELECT {columns} FROM {table}")
    return {
        number: (_payload(kind, payload), category or ABSENT)
        for number, kind, payload, category in reversed(rows)
    }


def _payload(kind: int, data: object) -> float:
    """Return a payload as a number; NaN for none. A payload of zero looks the same as none."""
    code = _PAYLOADS.get(kind)
    if code is None or not isinstance(data, bytes) or len(data) < 8 or not any(data):
        return np.nan
    return float(struct.unpack(code, data[:8])[0])


def _event_columns(file: NvprofFile, events: Table) -> dict[str, Column]:
    """Return the columns that ranges and marks have in common."""
    return {
        "start_ns": events["time"],
        **events.select("process", "thread", "payload").columns,
        "domain": file.names(events["domain"]),
        "name": file.names(events["name"]),
    }
