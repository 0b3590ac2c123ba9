"""What happened on devices and host, from a file of nvprof."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final

import numpy as np
import pandas as pd

from traceprof.formats.nvprof.file import NvprofFile, object_ids, whole
from traceprof.formats.nvprof.format import PREFIX
from traceprof.formats.shared import cupti
from traceprof.formats.sqlite.columns import Column, known
from traceprof.model.tables import ABSENT, empty_table, make_table, stack
from traceprof.model.timing import TimeWindow

_PLACE: Final = ("deviceId", "streamId", "correlationId")
_KINDS: Final = {code + 1: kind for code, kind in cupti.MEMORY_KINDS.items() if kind != "unknown"}
"""nvprof's codes of kinds of memory are nsys's plus one; 0 is not known."""
MIGRATIONS: Final = {1: "h2d", 2: "d2h", 8: "p2p"}
_KERNELS: Final = ("CONCURRENT_KERNEL", "KERNEL")
_SHAPE: Final = tuple(cupti.KERNEL_SHAPE.values())
_NO_STREAM: Final = 0xFFFFFFFF
MARK: Final = 1
START: Final = 2
END: Final = 4
_THREAD: Final = 2  # the kind of object that a push/pop range belongs to
_THREAD_BITS: Final = 0xFFFFFFFF
_PAYLOADS: Final = {0: "<d", 1: "<Q", 4: "<q"}
_OVERHEADS: Final = {1: "compiler"} | {
    code << 16: name for code, name in enumerate(("buffer flush", "instrumentation", "resource"), 1)
}


def read_kernels(
    file: NvprofFile, window: TimeWindow | None = None, *, with_shapes: bool = False
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the kernels, and with ``with_shapes`` how each was launched, where that is told.

    CUDA graphs that were traced whole are one row each.
    """
    kernels, shapes = [], []
    with_shapes = with_shapes and has_kernel_shapes(file)
    optional = ("graphNodeId", *_SHAPE) if with_shapes else ("graphNodeId",)
    for table in filter(file.has, _KERNELS):
        raw = file.columns(table, (*_PLACE, "name"), window, optional)
        place, names = _place(file, raw), file.kernel_names(raw["name"])
        kernels.append(cupti.make_kernels(place, names, file.rules, raw["graphNodeId"]))
        if with_shapes:
            shapes.append(cupti.make_kernel_shapes(place, raw))
    if file.has("GRAPH_TRACE"):
        raw = file.columns("GRAPH_TRACE", (*_PLACE, "graphId"), window)
        place = _place(file, raw)
        kernels.append(cupti.make_traced_graphs(place, raw["graphId"]))
        if with_shapes:
            shapes.append(make_table("kernel_shapes", place))
    return stack("kernels", kernels), stack("kernel_shapes", shapes)


def has_kernel_shapes(file: NvprofFile) -> bool:
    """Return whether the file says how its kernels were launched."""
    return any({"gridX", "blockX"} <= file.database.columns(PREFIX + table) for table in _KERNELS)


def read_copies(file: NvprofFile, window: TimeWindow | None = None) -> pd.DataFrame:
    """Return the copies (those between devices too), the memsets, and migrations of pages."""
    parts = []
    for table in filter(file.has, ("MEMCPY", "MEMCPY2")):
        needed = (*_PLACE, "copyKind", "srcKind", "dstKind", "bytes")
        raw = file.columns(table, needed, window, ("graphNodeId", "srcDeviceId", "dstDeviceId"))
        parts.append(
            cupti.make_copies(_place(file, raw), raw, raw["srcKind"], raw["dstKind"], _KINDS)
        )
    if file.has("MEMSET"):
        raw = file.columns("MEMSET", (*_PLACE, "bytes"), window, ("memoryKind", "graphNodeId"))
        parts.append(cupti.make_copies(_place(file, raw), raw, None, raw["memoryKind"], _KINDS))
    if file.has("UNIFIED_MEMORY_COUNTER"):
        parts.append(_migrations(file, window))
    return stack("copies", parts)


def _migrations(file: NvprofFile, window: TimeWindow | None) -> pd.DataFrame:
    """Return the migrations of pages of unified memory as copies, which they are."""
    optional = ("srcId", "dstId", "streamId")
    raw = file.columns("UNIFIED_MEMORY_COUNTER", ("counterKind", "value"), window, optional)
    kept = np.isin(raw["counterKind"], list(MIGRATIONS))
    raw = {name: values[kept] for name, values in raw.items()}
    raw["deviceId"] = np.where(raw["counterKind"] == 2, raw["srcId"], raw["dstId"])
    raw["correlationId"] = np.full(len(raw["value"]), ABSENT)
    managed = cupti.constant_name("managed", len(raw["value"]))
    return make_table(
        "copies",
        {
            **_place(file, raw),
            "direction": cupti.decode(raw["counterKind"], MIGRATIONS),
            "n_bytes": known(raw["value"]),
            "src_kind": managed,
            "dst_kind": managed,
        },
    )


def read_syncs(file: NvprofFile, window: TimeWindow | None = None) -> pd.DataFrame:
    """Return the synchronisations; their device is that of their context."""
    if not file.has("SYNCHRONIZATION"):
        return empty_table("syncs")
    numbers = ("type", "contextId", "streamId", "correlationId")
    raw = file.columns("SYNCHRONIZATION", numbers, window)
    devices = dict(file.rows("CONTEXT", ("contextId", "deviceId")))
    contexts, place = np.unique(raw["contextId"], return_inverse=True)
    owners = np.array([devices.get(context, ABSENT) for context in contexts.tolist()], np.int64)
    raw["deviceId"] = owners[place.ravel()]
    return cupti.make_syncs(_place(file, raw), raw["type"])


def _place(file: NvprofFile, raw: cupti.Place) -> cupti.Place:
    stream = known(raw["streamId"])
    return {
        "start_ns": raw["start_ns"],
        "end_ns": raw["end_ns"],
        "device": known(raw["deviceId"]),
        "stream": np.where(stream == _NO_STREAM, ABSENT, stream),
        "process": np.full(len(stream), file.process),
        "correlation": known(raw["correlationId"]),
    }


def read_api_calls(file: NvprofFile, window: TimeWindow | None = None) -> pd.DataFrame:
    """Return the calls of the CUDA runtime and driver; one without a name shows its number."""
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
                    # Markers have these 32 bits without a sign.
                    "thread": raw["threadId"] & _THREAD_BITS,
                    "correlation": raw["correlationId"],
                    "name": cupti.names_by_number(raw["cbid"], names.__getitem__),
                },
            )
        )
    return stack("api_calls", parts)


def read_overheads(file: NvprofFile) -> pd.DataFrame:
    """Return what the profiler itself took."""
    rows = file.rows("OVERHEAD", ("overheadKind", "start", "end"), ["objectId"])
    told = [row for row in rows if row[1] > 0 and row[2] > 0]
    if not told:
        return empty_table("overheads")
    kinds, starts, ends, owners = zip(*told, strict=True)
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

    Start and end of a range are two records with the same id; the end has no name. A range
    without an end lasts until the last record, which ``last_ns`` finds.
    """
    if not file.has("MARKER"):
        return cupti.NO_ANNOTATIONS
    events = _events(file)
    starts = events[(events["flags"] & START) != 0]
    ends = events[(events["flags"] & END) != 0]
    spans = starts.merge(
        ends[["id", "turn", "time"]], how="left", on=["id", "turn"], suffixes=("", "_end")
    )
    unclosed = spans["time_end"].isna().to_numpy()
    latest = max(last_ns(), 0) if unclosed.any() else 0
    return cupti.make_annotations(
        {**_described(file, spans), "category": spans["category"].to_numpy(np.int64)},
        spans["time_end"].fillna(latest).to_numpy(np.int64),
        (spans["kind"] == _THREAD).to_numpy(),
        _described(file, events[(events["flags"] & MARK) != 0]),
        int(unclosed.sum()),
    )


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
    table, rows = f"{PREFIX}MARKER_DATA", []
    if {"id", "payloadKind", "payload", "category"} <= file.database.columns(table):
        told = f"{whole('id')}, payloadKind, payload, {whole('category')}"
        rows = file.database.rows(f"SELECT {told} FROM {table}")
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
