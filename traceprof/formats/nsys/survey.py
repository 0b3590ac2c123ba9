"""Survey an nsys export without reading it: extents of tables, recorded tables, nsys diagnostics.

For tables that are not read, SQL counts the rows that their readers would return.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Final

import numpy as np
import numpy.typing as npt

from traceprof.formats.nsys import schema
from traceprof.formats.nsys.communication import count_communication, has_communication
from traceprof.formats.nsys.device import has_kernel_shapes
from traceprof.formats.nsys.metrics import (
    GENERIC,
    NETWORK,
    generic_extent,
    metric_sources,
    network_metrics,
)
from traceprof.formats.nsys.mpi import count_mpi_collectives
from traceprof.formats.sqlite.columns import NULL, ColumnType
from traceprof.formats.sqlite.conditions import Condition, is_one_of
from traceprof.formats.sqlite.database import Database
from traceprof.formats.sqlite.pages.totals import Counted, TableExtent
from traceprof.formats.sqlite.survey import RowSource, Survey
from traceprof.model.table import Table
from traceprof.model.tables import ABSENT

_PROCESS_SHIFT_BITS: Final = 24
_DEVICE_OWNER: Final = "globalPid"
_RANGES: Final = is_one_of("eventType", schema.NVTX_RANGES)
_MARKS: Final = is_one_of("eventType", (schema.NVTX_MARK,))
_LOOKUP_COLUMNS: Final = {schema.NVTX: (), schema.API_CALLS: ("start", "end", "correlationId")}
"""Table → columns by which rows are looked up; no columns of tables that are always read whole."""


def survey_of(
    database: Database, tables: Mapping[str, Table], capture_end_ns: int | None
) -> Survey:
    """Return the extents of all event tables; ``tables`` are those that were read whole."""

    def with_implied(collectives: TableExtent) -> TableExtent:
        """Return the extent of collectives, also of those that NVTX ranges and MPI calls imply."""
        if collectives.n_rows:
            return collectives
        n_calls, n_annotations, _ = count_communication(database)
        if schema.COLLECTIVES not in database.tables:
            n_calls += count_mpi_collectives(database)
            return TableExtent(n_calls or n_annotations)
        return TableExtent(n_annotations)

    def with_counters(samples: TableExtent) -> TableExtent:
        """Return the extent of samples, with network and generic GPU counters."""
        if NETWORK in database.tables:
            samples |= TableExtent.of(network_metrics(database))
        if GENERIC in database.tables:
            samples |= generic_extent(database)
        return samples

    closed = TableExtent(end_ns=max(capture_end_ns or 0, 0))
    corrections: dict[str, Callable[[TableExtent], TableExtent]] = {
        "ranges": lambda ranges: ranges | closed if ranges.n_open else ranges,
        "collectives": with_implied,
    }
    if not database.tables.isdisjoint((NETWORK, GENERIC)):
        corrections["samples"] = with_counters
    all_sources = {
        "kernels": _row_sources(schema.KERNELS, schema.GRAPHS, owner=_DEVICE_OWNER),
        "copies": _row_sources(schema.COPIES, schema.MEMSETS, owner=_DEVICE_OWNER),
        "syncs": _row_sources(schema.SYNCS, owner=_DEVICE_OWNER),
        "api_calls": _row_sources(schema.API_CALLS),
        "ranges": _row_sources(schema.NVTX, where=_RANGES),
        "marks": _row_sources(schema.NVTX, where=_MARKS, end=""),
        "host_ops": _row_sources(*schema.HOST_SOURCES, *schema.MPI_SOURCES, schema.OPERATORS),
        "functions": _row_sources(schema.FUNCTIONS),
        "overheads": _row_sources(*schema.OVERHEADS),
        "collectives": _row_sources(schema.COLLECTIVES),
        "samples": [RowSource(schema.SAMPLES, end=""), *metric_sources(database)],
    }
    sources = {
        name: [source for source in candidates if source.table in database.tables]
        for name, candidates in all_sources.items()
    }
    implied = {"collectives": lambda: contains_collectives(database)}
    elsewhere = {} if sources["collectives"] or "collectives" in tables else implied
    return Survey(database, sources, tables, corrections, elsewhere=elsewhere)


def contains_collectives(database: Database) -> bool:
    """Return whether NVTX ranges or MPI calls become collectives."""
    return has_communication(database) or bool(count_mpi_collectives(database))


def _row_sources(
    *tables: str, owner: str = "globalTid", where: Condition | None = None, end: str = "end"
) -> list[RowSource]:
    """Return the row sources for ``tables``; ``owner`` is the column with the process of a row."""
    device = "deviceId" if owner == _DEVICE_OWNER else ""
    times = ("start", end) if end else ("start",)
    return [
        RowSource(
            table,
            end=f"[{end}]" if end else "",
            process=f"coalesce({owner} >> {_PROCESS_SHIFT_BITS} & 16777215, {ABSENT})",
            device=f"coalesce({device}, {NULL})" if device else "",
            where=where.sql if where else "",
            counted=Counted(
                *("start", end, owner, device, schema.process_of, _PROCESS_SHIFT_BITS, where),
                _LOOKUP_COLUMNS.get(table, times),
            ),
        )
        for table in tables
    ]


_CUDA_TABLES: Final = ("kernels", "copies", "api_calls", "syncs")


def recorded_tables(database: Database, has_rows: set[str]) -> set[str]:
    """Return the tables that the profiler was asked to record.

    An export omits tables without rows. An absent kernel table therefore means that there were no
    kernels if CUDA was traced at all, which its API calls show.
    """
    recorded = set(has_rows)
    requested = set()
    if "META_DATA_CAPTURE" in database.tables:
        sql = "SELECT value FROM META_DATA_CAPTURE WHERE name = 'CAPTURE_EVENT_TYPE'"
        requested = {str(value) for (value,) in database.rows(sql)}
    # Rows that traceprof ignores as damaged were recorded.
    left_out = [table for table, faults in database.catalogue.left_out.items() if faults]
    requested |= {"Cuda" for table in left_out if table.startswith("CUPTI_ACTIVITY_KIND_")}
    requested |= {"NvtxEvents" for table in left_out if table == schema.NVTX}
    if recorded & set(_CUDA_TABLES) or "Cuda" in requested:
        recorded |= set(_CUDA_TABLES)
    if recorded & {"ranges", "marks"} or "NvtxEvents" in requested:
        recorded |= {"ranges", "marks"}
    if has_kernel_shapes(database):
        recorded.add("kernel_shapes")
    traceprof_tables = {schema.COLLECTIVES: "collectives", schema.SAMPLES: "samples"}
    recorded |= {name for table, name in traceprof_tables.items() if table in database.tables}
    return recorded


def unrecorded_graphs(database: Database) -> tuple[int, int]:
    """Return the number of CUDA graph launches without recorded work, and of all graph launches.

    Work belongs to the launch with its correlation. The table of API calls is scanned only if the
    strings contain a graph launch.
    """
    if "nameId" not in database.columns(schema.API_CALLS):
        return 0, 0
    is_graph_launch = "value GLOB 'cudaGraphLaunch*' OR value GLOB 'cuGraphLaunch*'"
    ids = tuple(
        key for (key,) in database.rows(f"SELECT id FROM StringIds WHERE {is_graph_launch}")
    )
    if not ids:
        return 0, 0
    launched = _launch_keys(database, schema.API_CALLS, "globalTid", is_one_of("nameId", ids))
    worked = [_launch_keys(database, table, _DEVICE_OWNER) for table in _GRAPH_WORK_TABLES]
    is_lost = np.isin(launched, np.concatenate(worked), invert=True)
    return int(is_lost.sum()), len(launched)


_GRAPH_WORK_TABLES: Final = (schema.KERNELS, schema.COPIES, schema.MEMSETS, schema.GRAPHS)


def _launch_keys(
    database: Database, table: str, owner: str, where: Condition | None = None
) -> npt.NDArray[np.int64]:
    """Return process and correlation of each row of ``table``, combined into one number."""
    names = {"correlationId", owner}
    if not names <= database.columns(table):
        return np.empty(0, np.int64)
    found = database.read_columns(table, dict.fromkeys(names, ColumnType.INTEGER), where=where)
    correlation = np.asarray(found["correlationId"], np.int64)
    return schema.process_of(found[owner]) << 32 | correlation & 0xFFFFFFFF


_WARNING: Final = 2
_ERROR: Final = 3
_MAX_WARNINGS: Final = 5
_DATA_LOSS: Final = re.compile(
    r"not all (CUDA|NVTX|MPI|NCCL)|lost|dropped|discarded|overflow|out of memory|too many"
    r"|clock|timestamp|graph",
    re.IGNORECASE,
)
_OLD: Final = re.compile("not supported by this build")
"""Explains that no kernels were recorded; otherwise nsys recorded them anyway."""
_CPU_SAMPLING: Final = re.compile(r"\bCPU\b|perf event|event source Perf|backtrace", re.IGNORECASE)


def read_diagnostics(database: Database) -> list[str]:
    """Return errors and data-loss warnings of nsys, each once, the most frequent first.

    nsys also warns about every process that does not use CUDA or NVTX, and if it may not sample the
    CPU. These warnings say nothing about the recorded events, so they are omitted.
    """
    if not {"severity", "text"} <= database.columns("DIAGNOSTIC_EVENT"):
        return []
    has_kernels = schema.KERNELS in database.tables
    rows = database.rows(
        f"SELECT severity, text FROM DIAGNOSTIC_EVENT WHERE severity IN ({_WARNING}, {_ERROR})"
    )
    texts = Counter(
        text.strip().splitlines()[0]
        for severity, text in ((severity, str(text)) for severity, text in rows)
        if text.strip()
        and not _CPU_SAMPLING.search(text)
        and (
            severity == _ERROR or _DATA_LOSS.search(text) or (not has_kernels and _OLD.search(text))
        )
    )
    warnings = [
        f"nsys: {text}" + (f" ({count} times)" if count > 1 else "")
        for text, count in texts.most_common(_MAX_WARNINGS)
    ]
    if len(texts) > _MAX_WARNINGS:
        warnings.append(f"nsys: {len(texts) - _MAX_WARNINGS} more errors and warnings in the trace")
    return warnings
