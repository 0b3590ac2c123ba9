"""What an nsys export holds, read or not: where rows stand, what was recorded, warnings of nsys.

It says of tables that are not read what their readers would make of them: the same rows.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from typing import Final

import pandas as pd

from traceprof.formats.nsys.communication import count_communication, has_communication
from traceprof.formats.nsys.device import COPIES, GRAPHS, KERNELS, MEMSETS, SYNCS, has_kernel_shapes
from traceprof.formats.nsys.host import API_CALLS, HOST_SOURCES, OVERHEADS
from traceprof.formats.nsys.metrics import metric_sources, network_extent
from traceprof.formats.nsys.mpi import MPI_TABLES, count_mpi_collectives
from traceprof.formats.nsys.schema import NVTX_MARK, NVTX_PUSH_POP, NVTX_START_END, process_of
from traceprof.formats.nsys.sidecar import COLLECTIVES, OPERATORS, SAMPLES
from traceprof.formats.sqlite.columns import NULL, ColumnType
from traceprof.formats.sqlite.conditions import Among
from traceprof.formats.sqlite.database import Database
from traceprof.formats.sqlite.pages.totals import Counted
from traceprof.formats.sqlite.survey import RowSource, Survey, TableExtent
from traceprof.model.tables import ABSENT

_BITS: Final = 24
_RANGES: Final = Among("eventType", (NVTX_PUSH_POP, NVTX_START_END))
_MARKS: Final = Among("eventType", (NVTX_MARK,))


def survey_of(
    database: Database, frames: Mapping[str, pd.DataFrame], capture_end_ns: int | None
) -> Survey:
    """Return what the event tables are like, of which ``frames`` were read whole."""

    def closed(ranges: TableExtent) -> TableExtent:
        return ranges | TableExtent(end_ns=max(capture_end_ns or 0, 0)) if ranges.n_open else ranges

    def with_told(own: TableExtent) -> TableExtent:
        if own.n_rows:
            return own
        n_calls, n_annotations, _ = count_communication(database)
        if COLLECTIVES not in database.tables:
            n_calls += count_mpi_collectives(database)
            return TableExtent(n_calls or n_annotations)
        return TableExtent(n_annotations)

    more = {
        "ranges": closed,
        "collectives": with_told,
        "samples": lambda samples: samples | network_extent(database),
    }
    told = {"collectives": lambda: tells_of_collectives(database)}
    return Survey(database, _sources(database), frames, more, found_elsewhere=told)


def tells_of_collectives(database: Database) -> bool:
    """Return whether ranges, or calls of MPI, are collectives."""
    return has_communication(database) or bool(count_mpi_collectives(database))


def _sources(database: Database) -> dict[str, list[RowSource]]:
    found = {
        "kernels": _on_devices(KERNELS, GRAPHS),
        "copies": _on_devices(COPIES, MEMSETS),
        "syncs": _on_devices(SYNCS),
        "api_calls": _on_host(API_CALLS),
        "ranges": _on_host("NVTX_EVENTS", where=_RANGES),
        "marks": _on_host("NVTX_EVENTS", where=_MARKS, end=""),
        "host_ops": _on_host(*HOST_SOURCES, *MPI_TABLES, OPERATORS),
        "overheads": _on_host(*OVERHEADS),
        "collectives": _on_host(COLLECTIVES),
        "samples": [RowSource(SAMPLES, end=""), *metric_sources(database)],
    }
    return {
        name: [source for source in sources if source.table in database.tables]
        for name, sources in found.items()
    }


def _on_devices(*tables: str) -> list[RowSource]:
    device = f"coalesce(deviceId, {NULL})"
    return [_source(table, "globalPid", device=device) for table in tables]


def _on_host(*tables: str, where: Among | None = None, end: str = "end") -> list[RowSource]:
    return [_source(table, "globalTid", where=where, end=end) for table in tables]


def _source(
    table: str, number: str, device: str = "", where: Among | None = None, end: str = "end"
) -> RowSource:
    return RowSource(
        table,
        end=f"[{end}]" if end else "",
        process=f"coalesce({number} >> {_BITS} & 16777215, {ABSENT})",  # as `process_of`
        device=device,
        where=where.sql() if where else "",
        number=number,
        number_bits=_BITS,
        counted=Counted(
            "start",
            end,
            number,
            "deviceId" if device else "",
            process_of,
            _BITS,
            where,
            _sought(table, end),
        ),
    )


def _sought(table: str, end: str) -> tuple[str, ...]:
    """Return the columns by which rows of a table are looked up."""
    if table == "NVTX_EVENTS":  # always read as a whole
        return ()
    times = ("start", end) if end else ("start",)
    return (*times, "correlationId") if table == API_CALLS else times


_CUDA_TABLES: Final = ("kernels", "copies", "api_calls", "syncs")


def recorded_tables(database: Database, has_rows: set[str]) -> set[str]:
    """Return the tables that the profiler was asked to fill.

    Exports leave out tables without rows, so that an absent kernel table means "none" where
    CUDA was traced at all, which its API calls show.
    """
    recorded = set(has_rows)
    asked = (
        database.rows("SELECT value FROM META_DATA_CAPTURE WHERE name = 'CAPTURE_EVENT_TYPE'")
        if "META_DATA_CAPTURE" in database.tables
        else []
    )
    asked_for = {str(value) for (value,) in asked}
    # Rows that are left out were recorded, too.
    left_out = [table for table, faults in database.catalogue.left_out.items() if faults]
    asked_for |= {"Cuda" for table in left_out if table.startswith("CUPTI_ACTIVITY_KIND_")}
    asked_for |= {"NvtxEvents" for table in left_out if table == "NVTX_EVENTS"}
    if recorded & set(_CUDA_TABLES) or "Cuda" in asked_for:
        recorded |= set(_CUDA_TABLES)
    if recorded & {"ranges", "marks"} or "NvtxEvents" in asked_for:
        recorded |= {"ranges", "marks"}
    if has_kernel_shapes(database):
        recorded.add("kernel_shapes")
    own = {COLLECTIVES: "collectives", SAMPLES: "samples"}
    recorded |= {name for table, name in own.items() if table in database.tables}
    return recorded


def unrecorded_graphs(database: Database) -> int:
    """Return how often CUDA graphs were launched of whose work nothing is in the file."""
    n_launches = _graph_launches(database)
    return 0 if n_launches and _graph_work_is_recorded(database) else n_launches


def _graph_launches(database: Database) -> int:
    """Return how often a CUDA graph was launched; a scan only where strings say that one was."""
    if not {"nameId"} <= database.columns(API_CALLS):
        return 0
    named = "value GLOB 'cudaGraphLaunch*' OR value GLOB 'cuGraphLaunch*'"
    ids = [key for (key,) in database.rows(f"SELECT id FROM StringIds WHERE {named}")]
    if not ids:
        return 0
    wanted = Among("nameId", tuple(ids))
    return len(
        database.read_columns(API_CALLS, {"nameId": ColumnType.INTEGER}, where=wanted)["nameId"]
    )


def _graph_work_is_recorded(database: Database) -> bool:
    if database.has_rows(GRAPHS):
        return True
    has_nodes = "graphNodeId" in database.columns(KERNELS)
    nodes = f"SELECT 1 FROM {KERNELS} WHERE graphNodeId > 0 LIMIT 1"
    return has_nodes and bool(database.rows(nodes))


_WARNING: Final = 2
_ERROR: Final = 3
_MOST: Final = 5
_MATTERS: Final = re.compile(
    r"not all (CUDA|NVTX|MPI|NCCL)|lost|dropped|discarded|overflow|out of memory|too many"
    r"|clock|timestamp|graph",
    re.IGNORECASE,
)
_CPU_SAMPLING: Final = re.compile(r"\bCPU\b|perf event|event source Perf|backtrace", re.IGNORECASE)


def read_diagnostics(database: Database) -> list[str]:
    """Return the errors and the warnings about lost data, each once, the most frequent first.

    nsys warns for every process that does not use CUDA or NVTX, and where it may not sample
    the CPU; these say nothing about what was recorded.
    """
    if not {"severity", "text"} <= database.columns("DIAGNOSTIC_EVENT"):
        return []
    rows = database.rows(
        f"SELECT severity, text FROM DIAGNOSTIC_EVENT WHERE severity IN ({_WARNING}, {_ERROR})"
    )
    texts = Counter(
        str(text).strip().splitlines()[0]
        for severity, text in rows
        if str(text).strip() and _is_relevant(severity, str(text))
    )
    told = [
        f"nsys: {text}" + (f" ({count} times)" if count > 1 else "")
        for text, count in texts.most_common(_MOST)
    ]
    if len(texts) > _MOST:
        told.append(f"nsys: {len(texts) - _MOST} more errors and warnings")
    return told


def _is_relevant(severity: int, text: str) -> bool:
    if _CPU_SAMPLING.search(text):
        return False
    return severity == _ERROR or bool(_MATTERS.search(text))
