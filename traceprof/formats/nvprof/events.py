"""What happened on devices and host, from a file of nvprof."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pandas as pd

from traceprof.formats.nvprof.file import NvprofFile, call_names, object_ids, unsigned_thread, whole
from traceprof.formats.nvprof.format import PREFIX
from traceprof.formats.shared.cupti import (
    COPY_DIRECTIONS,
    MEMORY_KINDS,
    SYNC_KINDS,
    decode,
    with_depth,
    with_shared_bytes,
)
from traceprof.formats.sqlite.columns import Column, categorical, known
from traceprof.model.activity import Activity
from traceprof.model.tables import ABSENT, empty_table, make_table, stack
from traceprof.model.timing import TimeWindow
from traceprof.names.classes import classify

_PLACE: Final = ("deviceId", "streamId", "correlationId")
_KINDS: Final = {code + 1: kind for code, kind in MEMORY_KINDS.items() if kind != "unknown"}
"""nvprof's codes of kinds of memory are nsys's plus one; 0 is not known."""
MIGRATIONS: Final = {1: "h2d", 2: "d2h", 8: "p2p"}
_KERNELS: Final = ("CONCURRENT_KERNEL", "KERNEL")
_SHAPE: Final = {
    "context": "contextId",
    **{f"grid_{axis.lower()}": f"grid{axis}" for axis in "XYZ"},
    **{f"block_{axis.lower()}": f"block{axis}" for axis in "XYZ"},
    "registers": "registersPerThread",
    "static_shared_bytes": "staticSharedMemory",
    "dynamic_shared_bytes": "dynamicSharedMemory",
}
_NO_STREAM: Final = 0xFFFFFFFF


def read_kernels(file: NvprofFile, window: TimeWindow | None = None) -> pd.DataFrame:
    """Return the kernels, and the CUDA graphs that were traced whole as one row each."""
    parts = []
    for table in _KERNELS:
        if file.has(table):
            raw = file.columns(
                table, (*_PLACE, "name", "graphNodeId"), window, optional=("graphNodeId",)
            )
            names = file.kernel_names(raw["name"])
            parts.append(
                make_table(
                    "kernels",
                    {
                        **_common(file, raw),
                        "name": names,
                        "activity": classify(names, file.rules),
                        "graph_node": _graph_node(raw),
                    },
                )
            )
    if file.has("GRAPH_TRACE"):
        raw = file.columns("GRAPH_TRACE", (*_PLACE, "graphId"), window)
        distinct, place = np.unique(raw["graphId"], return_inverse=True)
        names = categorical(place, [f"CUDA graph {graph}" for graph in distinct])
        activity = categorical(np.zeros(len(names), np.int64), [Activity.CUDA_GRAPH.value])
        parts.append(
            make_table("kernels", {**_common(file, raw), "name": names, "activity": activity})
        )
    return stack("kernels", parts)


def has_kernel_shapes(file: NvprofFile) -> bool:
    """Return whether the file says how its kernels were launched."""
    return any({"gridX", "blockX"} <= file.database.columns(PREFIX + table) for table in _KERNELS)


def read_kernel_shapes(file: NvprofFile, window: TimeWindow | None = None) -> pd.DataFrame:
    """Return how the kernels were launched: a row for each of `read_kernels`, graphs among them."""
    if not has_kernel_shapes(file):
        return empty_table("kernel_shapes")
    wanted, parts = tuple(_SHAPE.values()), []
    for table in _KERNELS:
        if file.has(table):
            raw = file.columns(table, (*_PLACE, *wanted), window, optional=wanted)
            shape = {column: known(raw[source]) for column, source in _SHAPE.items()}
            columns = {**_common(file, raw), **with_shared_bytes(shape)}
            parts.append(make_table("kernel_shapes", columns))
    if file.has("GRAPH_TRACE"):
        raw = file.columns("GRAPH_TRACE", _PLACE, window)
        parts.append(make_table("kernel_shapes", _common(file, raw)))
    return stack("kernel_shapes", parts)


def read_copies(file: NvprofFile, window: TimeWindow | None = None) -> pd.DataFrame:
    """Return the copies (those between devices too), the memsets, and migrations of pages."""
    parts = [_copies(file, table, window) for table in ("MEMCPY", "MEMCPY2") if file.has(table)]
    if file.has("MEMSET"):
        raw = file.columns(
            "MEMSET",
            (*_PLACE, "bytes", "memoryKind", "graphNodeId"),
            window,
            optional=("memoryKind", "graphNodeId"),
        )
        parts.append(
            make_table(
                "copies",
                {
                    **_common(file, raw),
                    "direction": categorical(np.zeros(len(raw["bytes"]), np.int64), ["memset"]),
                    "n_bytes": known(raw["bytes"]),
                    "dst_kind": decode(raw["memoryKind"], _KINDS),
                    "graph_node": _graph_node(raw),
                },
            )
        )
    if file.has("UNIFIED_MEMORY_COUNTER"):
        parts.append(_migrations(file, window))
    return stack("copies", parts)


def read_syncs(file: NvprofFile, window: TimeWindow | None = None) -> pd.DataFrame:
    """Return the synchronisations; their device is that of their context."""
    if not file.has("SYNCHRONIZATION"):
        return empty_table("syncs")
    numbers = ("type", "contextId", "streamId", "correlationId")
    raw = file.columns("SYNCHRONIZATION", numbers, window)
    devices: dict[int, int] = {}
    if {"contextId", "deviceId"} <= file.database.columns(f"{PREFIX}CONTEXT"):
        sql = f"SELECT {whole('contextId')}, {whole('deviceId')} FROM {PREFIX}CONTEXT"
        devices = dict(file.database.rows(sql))
    distinct, place = np.unique(raw["contextId"], return_inverse=True)
    owner = np.array([devices.get(int(context), ABSENT) for context in distinct], np.int64)
    return make_table(
        "syncs",
        {
            **_common(file, {**raw, "deviceId": owner[place.ravel()]}),
            "kind": decode(raw["type"], SYNC_KINDS),
        },
    )


def _copies(file: NvprofFile, table: str, window: TimeWindow | None) -> pd.DataFrame:
    ends = ("srcDeviceId", "dstDeviceId")
    raw = file.columns(
        table,
        (*_PLACE, "copyKind", "srcKind", "dstKind", "bytes", "graphNodeId", *ends),
        window,
        optional=("graphNodeId", *ends),
    )
    return make_table(
        "copies",
        {
            **_common(file, raw),
            "direction": decode(raw["copyKind"], COPY_DIRECTIONS),
            "n_bytes": known(raw["bytes"]),
            "src_kind": decode(raw["srcKind"], _KINDS),
            "dst_kind": decode(raw["dstKind"], _KINDS),
            "src_device": known(raw["srcDeviceId"]),
            "dst_device": known(raw["dstDeviceId"]),
            "graph_node": _graph_node(raw),
        },
    )


def _migrations(file: NvprofFile, window: TimeWindow | None) -> pd.DataFrame:
    """Return the migrations of pages of unified memory as copies, which they are."""
    numbers = ("counterKind", "value", "srcId", "dstId", "streamId")
    raw = file.columns(
        "UNIFIED_MEMORY_COUNTER", numbers, window, optional=("srcId", "dstId", "streamId")
    )
    kept = np.isin(raw["counterKind"], list(MIGRATIONS))
    raw = {name: values[kept] for name, values in raw.items()}
    from_device = raw["counterKind"] == 2
    place = {
        "deviceId": np.where(from_device, raw["srcId"], raw["dstId"]),
        "correlationId": np.full(len(from_device), ABSENT),
    }
    managed = categorical(np.zeros(len(from_device), np.int64), ["managed"])
    return make_table(
        "copies",
        {
            **_common(file, {**raw, **place}),
            "direction": decode(raw["counterKind"], MIGRATIONS),
            "n_bytes": known(raw["value"]),
            "src_kind": managed,
            "dst_kind": managed,
        },
    )


def _common(
    file: NvprofFile, raw: dict[str, npt.NDArray[np.int64]]
) -> dict[str, npt.NDArray[np.int64]]:
    stream = known(raw["streamId"])
    return {
        "start_ns": raw["start_ns"],
        "end_ns": raw["end_ns"],
        "device": known(raw["deviceId"]),
        "stream": np.where(stream == _NO_STREAM, ABSENT, stream),
        "process": np.full(len(stream), file.process),
        "correlation": known(raw["correlationId"]),
    }


def _graph_node(raw: dict[str, npt.NDArray[np.int64]]) -> npt.NDArray[np.int64]:
    node = known(raw["graphNodeId"])
    return np.where(node == 0, ABSENT, node)


MARK: Final = 1
START: Final = 2
END: Final = 4
_THREAD: Final = 2  # the kind of object that a push/pop range belongs to
_PAYLOADS: Final = {0: "<d", 1: "<Q", 4: "<q"}
_OVERHEADS: Final = {
    1: "compiler",
    1 << 16: "buffer flush",
    2 << 16: "instrumentation",
    3 << 16: "resource",
}


def read_api_calls(file: NvprofFile, window: TimeWindow | None = None) -> pd.DataFrame:
    """Return the calls of the CUDA runtime and driver; one without a name shows its number."""
    parts = []
    for domain in ("runtime", "driver"):
        if not file.has(domain.upper()):
            continue
        wanted = ("cbid", "processId", "threadId", "correlationId")
        raw = file.columns(domain.upper(), wanted, window)
        known_names = call_names(domain)
        numbers, place = np.unique(raw["cbid"], return_inverse=True)
        names = [
            known_names[number - 1] if 0 < number <= len(known_names) else f"{domain} cbid {number}"
            for number in numbers.tolist()
        ]
        parts.append(
            make_table(
                "api_calls",
                {
                    "start_ns": raw["start_ns"],
                    "end_ns": raw["end_ns"],
                    "process": raw["processId"],
                    "thread": unsigned_thread(raw["threadId"]),
                    "correlation": raw["correlationId"],
                    "name": categorical(place.ravel(), names or [""]),
                },
            )
        )
    return stack("api_calls", parts)


def read_overheads(file: NvprofFile) -> pd.DataFrame:
    """Return what the profiler itself took."""
    if not file.has("OVERHEAD"):
        return empty_table("overheads")
    rows = file.database.rows(
        f"SELECT {whole('overheadKind')}, hex(objectId), {whole('start')}, {whole('end')} "
        f"FROM {PREFIX}OVERHEAD WHERE {whole('start')} > 0 AND {whole('end')} > 0"
    )
    table = pd.DataFrame(rows, columns=["kind", "object", "start", "end"])
    process, thread = object_ids(table["object"].tolist())
    start = table["start"].to_numpy(np.int64) - file.zero_ns
    end = table["end"].to_numpy(np.int64) - file.zero_ns
    return make_table(
        "overheads",
        {
            "start_ns": start,
            "end_ns": np.maximum(start, end),
            "process": process,
            "thread": np.where(thread == 0, ABSENT, thread),
            "name": [_OVERHEADS.get(kind, "overhead") for kind in table["kind"]],
        },
    )


@dataclass(frozen=True, slots=True)
class Markers:
    """NVTX: ranges, marks, and how many ranges were never closed."""

    ranges: pd.DataFrame
    marks: pd.DataFrame
    n_unclosed: int = 0


def read_markers(file: NvprofFile, last_ns: Callable[[], int]) -> Markers:
    """Return the NVTX ranges and marks.

    Start and end of a range are two records with the same id; the end has no name. A range
    without an end lasts until the last record, which ``last_ns`` finds.
    """
    if not file.has("MARKER"):
        return Markers(empty_table("ranges"), empty_table("marks"))
    events = _events(file)
    starts = events[(events["flags"] & START) != 0]
    ends = events[(events["flags"] & END) != 0]
    spans = starts.merge(
        ends[["id", "turn", "time"]], how="left", on=["id", "turn"], suffixes=("", "_end")
    )
    unclosed = spans["time_end"].isna().to_numpy()
    latest = max(last_ns(), 0) if unclosed.any() else 0
    end_ns = spans["time_end"].fillna(latest).to_numpy(np.int64)
    start_ns = spans["time"].to_numpy(np.int64)
    kinds = (spans["kind"] == _THREAD).to_numpy(np.int64)
    ranges = make_table(
        "ranges",
        {
            **_described(file, spans),
            "end_ns": np.maximum(start_ns, end_ns),
            "category": spans["category"].to_numpy(np.int64),
            "kind": categorical(kinds, ["start_end", "push_pop"]),
        },
    )
    points = events[(events["flags"] & MARK) != 0]
    marks = make_table("marks", _described(file, points))
    return Markers(with_depth(ranges), marks, int(unclosed.sum()))


def _events(file: NvprofFile) -> pd.DataFrame:
    has_domain = "domain" in file.database.columns(f"{PREFIX}MARKER")
    numbers = ", ".join(map(whole, ("flags", "timestamp", "id", "objectKind")))
    domain = whole("domain") if has_domain else "0"
    rows = file.database.rows(
        f"SELECT {numbers}, hex(objectId), {whole('name')}, {domain} FROM {PREFIX}MARKER "
        "ORDER BY 2, _id_"
    )
    columns = ["flags", "time", "id", "kind", "object", "name", "domain"]
    events = pd.DataFrame(rows, columns=columns)
    events["time"] = events["time"].astype("int64") - file.zero_ns
    events["turn"] = events.groupby(["id", events["flags"] & (START | END)]).cumcount()
    process, thread = object_ids(events["object"].tolist())
    events["process"], events["thread"] = process, np.where(thread == 0, ABSENT, thread)
    return events.merge(_marker_data(file), how="left", on="id").fillna({"category": ABSENT})


def _marker_data(file: NvprofFile) -> pd.DataFrame:
    wanted = {"id", "payloadKind", "payload", "category"}
    if wanted <= file.database.columns(f"{PREFIX}MARKER_DATA"):
        rows = file.database.rows(
            f"SELECT {whole('id')}, payloadKind, payload, {whole('category')} "
            f"FROM {PREFIX}MARKER_DATA"
        )
    else:
        rows = []
    return pd.DataFrame(
        {
            "id": np.array([row[0] for row in rows], np.int64),
            "payload": np.array([_payload(row[1], row[2]) for row in rows], np.float64),
            "category": np.array([row[3] or ABSENT for row in rows], np.int64),
        }
    ).drop_duplicates("id")


def _payload(kind: int, data: object) -> float:
    """Return a payload; a payload of zero cannot be told from none."""
    code = _PAYLOADS.get(kind)
    if code is None or not isinstance(data, bytes) or len(data) < 8 or not any(data):
        return np.nan
    return float(struct.unpack(code, data[:8])[0])


def _described(file: NvprofFile, events: pd.DataFrame) -> dict[str, Column]:
    return {
        "start_ns": events["time"].to_numpy(np.int64),
        "process": events["process"].to_numpy(np.int64),
        "thread": events["thread"].to_numpy(np.int64),
        "payload": events["payload"].to_numpy(np.float64),
        "domain": file.names(events["domain"].to_numpy(np.int64)),
        "name": file.names(events["name"].to_numpy(np.int64)),
    }
