"""What an nsys export holds, read or not: where rows stand, what was recorded, warnings of nsys.

It says of tables that are not read what their readers would make of them: the same rows.
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
from traceprof.formats.sqlite.conditions import Condition, among
from traceprof.formats.sqlite.database import Database
from traceprof.formats.sqlite.pages.totals import Counted, TableExtent
from traceprof.formats.sqlite.survey import RowSource, Survey
from traceprof.model.table import Table
from traceprof.model.tables import ABSENT

_BITS: Final = 24
_ON_DEVICE: Final = "globalPid"
_RANGES: Final = among("eventType", schema.NVTX_RANGES)
_MARKS: Final = among("eventType", (schema.NVTX_MARK,))
_LOOKED_UP_BY: Final = {schema.NVTX: (), schema.API_CALLS: ("start", "end", "correlationId")}
"""The columns by which rows are looked up: none of what is always read as a whole."""


def survey_of(
    database: Database, tables: Mapping[str, Table], capture_end_ns: int | None
) -> Survey:
    """Return what the event tables are like, of which ``tables`` were read whole."""

    def with_told(own: TableExtent) -> TableExtent:
        if own.n_rows:
            return own
        n_calls, n_annotations, _ = count_communication(database)
        if schema.COLLECTIVES not in database.tables:
            n_calls += count_mpi_collectives(database)
            return TableExtent(n_calls or n_annotations)
        return TableExtent(n_annotations)

    def with_counters(samples: TableExtent) -> TableExtent:
        if NETWORK in database.tables:
            samples |= TableExtent.of(network_metrics(database))
        if GENERIC in database.tables:
            samples |= generic_extent(database)
        return samples

    closed = TableExtent(end_ns=max(capture_end_ns or 0, 0))
    more: dict[str, Callable[[TableExtent], TableExtent]] = {
        "ranges": lambda ranges: ranges | closed if ranges.n_open else ranges,
        "collectives": with_told,
    }
    if not database.tables.isdisjoint((NETWORK, GENERIC)):
        more["samples"] = with_counters
    found = {
        "kernels": _rows_of(schema.KERNELS, schema.GRAPHS, owner=_ON_DEVICE),
        "copies": _rows_of(schema.COPIES, schema.MEMSETS, owner=_ON_DEVICE),
        "syncs": _rows_of(schema.SYNCS, owner=_ON_DEVICE),
        "api_calls": _rows_of(schema.API_CALLS),
        "ranges": _rows_of(schema.NVTX, where=_RANGES),
        "marks": _rows_of(schema.NVTX, where=_MARKS, end=""),
        "host_ops": _rows_of(*schema.HOST_SOURCES, *schema.MPI_SOURCES, schema.OPERATORS),
        "overheads": _rows_of(*schema.OVERHEADS),
        "collectives": _rows_of(schema.COLLECTIVES),
        "samples": [RowSource(schema.SAMPLES, end=""), *metric_sources(database)],
    }
    sources = {
        name: [source for source in every if source.table in database.tables]
        for name, every in found.items()
    }
    told = {"collectives": lambda: tells_of_collectives(database)}
    elsewhere = {} if sources["collectives"] or "collectives" in tables else told
    return Survey(database, sources, tables, more, elsewhere=elsewhere)


def tells_of_collectives(database: Database) -> bool:
    """Return whether ranges, or calls of MPI, are collectives."""
    return has_communication(database) or bool(count_mpi_collectives(database))


def _rows_of(
    *tables: str, owner: str = "globalTid", where: Condition | None = None, end: str = "end"
) -> list[RowSource]:
    """Return the rows of ``tables``; ``owner`` is the column that says of whom they are."""
    device = "deviceId" if owner == _ON_DEVICE else ""
    times = ("start", end) if end else ("start",)
    return [
        RowSource(
            table,
            end=f"[{end}]" if end else "",
            process=f"coalesce({owner} >> {_BITS} & 16777215, {ABSENT})",  # as `process_of`
            device=f"coalesce({device}, {NULL})" if device else "",
            where=where.sql if where else "",
            counted=Counted(
                *("start", end, owner, device, schema.process_of, _BITS, where),
                _LOOKED_UP_BY.get(table, times),
            ),
        )
        for table in tables
    ]


_CUDA_TABLES: Final = ("kernels", "copies", "api_calls", "syncs")


def recorded_tables(database: Database, has_rows: set[str]) -> set[str]:
    """Return the tables that the profiler was asked to fill.

    Exports leave out tables without rows, so that an absent kernel table means "none" where
    CUDA was traced at all, which its API calls show.
    """
    recorded = set(has_rows)
    asked_for = set()
    if "META_DATA_CAPTURE" in database.tables:
        asked = "SELECT value FROM META_DATA_CAPTURE WHERE name = 'CAPTURE_EVENT_TYPE'"
        asked_for = {str(value) for (value,) in database.rows(asked)}
    # Rows that are left out were recorded, too.
    left_out = [table for table, faults in database.catalogue.left_out.items() if faults]
    asked_for |= {"Cuda" for table in left_out if table.startswith("CUPTI_ACTIVITY_KIND_")}
    asked_for |= {"NvtxEvents" for table in left_out if table == schema.NVTX}
    if recorded & set(_CUDA_TABLES) or "Cuda" in asked_for:
        recorded |= set(_CUDA_TABLES)
    if recorded & {"ranges", "marks"} or "NvtxEvents" in asked_for:
        recorded |= {"ranges", "marks"}
    if has_kernel_shapes(database):
        recorded.add("kernel_shapes")
    own = {schema.COLLECTIVES: "collectives", schema.SAMPLES: "samples"}
    recorded |= {name for table, name in own.items() if table in database.tables}
    return recorded


def unrecorded_graphs(database: Database) -> tuple[int, int]:
    """Return how often CUDA graphs were launched of whose work nothing is in the file, and of all.

    Work belongs to the launch whose correlation it has. A scan only where strings say that a graph
    was launched.
    """
    if "nameId" not in database.columns(schema.API_CALLS):
        return 0, 0
    named = "value GLOB 'cudaGraphLaunch*' OR value GLOB 'cuGraphLaunch*'"
    ids = tuple(key for (key,) in database.rows(f"SELECT id FROM StringIds WHERE {named}"))
    if not ids:
        return 0, 0
    launched = _correlated(database, schema.API_CALLS, "globalTid", among("nameId", ids))
    worked = [_correlated(database, table, _ON_DEVICE) for table in _OF_GRAPHS]
    is_lost = np.isin(launched, np.concatenate(worked), invert=True)
    return int(is_lost.sum()), len(launched)


_OF_GRAPHS: Final = (schema.KERNELS, schema.COPIES, schema.MEMSETS, schema.GRAPHS)


def _correlated(
    database: Database, table: str, owner: str, where: Condition | None = None
) -> npt.NDArray[np.int64]:
    """Return process and correlation of each row of ``table`` as one number."""
    names = {"correlationId", owner}
    if not names <= database.columns(table):
        return np.empty(0, np.int64)
    found = database.read_columns(table, dict.fromkeys(names, ColumnType.INTEGER), where=where)
    correlation = np.asarray(found["correlationId"], np.int64)
    return schema.process_of(found[owner]) << 32 | correlation & 0xFFFFFFFF


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

    nsys warns for every process that does not use CUDA or schema.NVTX, and where it may not sample
    the CPU; these say nothing about what was recorded.
    """
    if not {"severity", "text"} <= database.columns("DIAGNOSTIC_EVENT"):
        return []
    rows = database.rows(
        f"SELECT severity, text FROM DIAGNOSTIC_EVENT WHERE severity IN ({_WARNING}, {_ERROR})"
    )
    texts = Counter(
        text.strip().splitlines()[0]
        for severity, text in ((severity, str(text)) for severity, text in rows)
        if text.strip()
        and not _CPU_SAMPLING.search(text)
        and (severity == _ERROR or _MATTERS.search(text))
    )
    told = [
        f"nsys: {text}" + (f" ({count} times)" if count > 1 else "")
        for text, count in texts.most_common(_MOST)
    ]
    if len(texts) > _MOST:
        told.append(f"nsys: {len(texts) - _MOST} more errors and warnings in the trace")
    return told
