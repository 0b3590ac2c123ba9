"""SQLite exports of Nsight Systems, 2019 to 2026, and recordings of traceprof in their shape."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np
import pandas as pd

from traceprof.formats.annotated_collectives import annotated_collectives
from traceprof.formats.base import Candidate, ReadOptions, TraceFormat
from traceprof.formats.nsys.device import read_copies, read_kernels, read_syncs
from traceprof.formats.nsys.diagnostics import read_diagnostics
from traceprof.formats.nsys.host import (
    read_annotations,
    read_api_calls,
    read_host_ops,
    read_overheads,
)
from traceprof.formats.nsys.metrics import read_metrics
from traceprof.formats.nsys.mpi import read_mpi_calls, read_mpi_collectives
from traceprof.formats.nsys.nccl import (
    NcclCall,
    communicators,
    make_nccl_collectives,
    read_nccl_calls,
)
from traceprof.formats.nsys.sidecar import read_collectives, read_operators, read_samples
from traceprof.formats.nsys.target import (
    capture_end_ns,
    physical_devices,
    read_devices,
    read_environment,
    read_info,
    read_processes,
    read_threads,
)
from traceprof.formats.sqlite.database import Database
from traceprof.model.frames import stack
from traceprof.model.trace import DEVICE_TABLES, Trace, make_trace

__all__ = ["FORMAT"]

_CUDA_TABLES: Final = ("kernels", "copies", "api_calls", "syncs")
_MARKS_OF_NSYS: Final = (
    "CUPTI_ACTIVITY_KIND_",
    "TARGET_INFO_",
    "NVTX_EVENTS",
    "OSRT_API",
    "META_DATA_EXPORT",
    "EXPORT_META_DATA",
)


def recognises(candidate: Candidate) -> bool:
    """Return whether the file has the tables of an nsys export."""
    return "StringIds" in candidate.tables and any(
        table.startswith(_MARKS_OF_NSYS) for table in candidate.tables
    )


def read(path: Path, options: ReadOptions) -> Trace:
    """Return the trace in an nsys export."""
    with Database(path) as database:
        capture_end = capture_end_ns(database)
        annotations = read_annotations(database, options, capture_end)
        nccl_calls = read_nccl_calls(database)
        kernels, api_calls = read_kernels(database, options), read_api_calls(database, options)
        tables = {
            "kernels": kernels,
            "copies": read_copies(database, options),
            "api_calls": api_calls,
            "ranges": annotations.ranges,
            "marks": annotations.marks,
            "host_ops": stack(
                "host_ops",
                [
                    read_host_ops(database, options),
                    read_mpi_calls(database, options),
                    read_operators(database, options),
                ],
            ),
            "syncs": read_syncs(database, options),
            "collectives": _collectives(database, options, nccl_calls, kernels, api_calls),
            "samples": stack("samples", [read_samples(database, options), read_metrics(database)]),
            "overheads": read_overheads(database, options),
            "devices": read_devices(database),
            "environment": read_environment(database),
        }
        if tables["collectives"].empty:
            tables["collectives"] = annotated_collectives(annotations.ranges, kernels, api_calls)
        tables |= _on_physical_devices(tables, physical_devices(database))
        used = _used_processes(tables)
        tables["processes"] = read_processes(database, used, communicators(nccl_calls))
        tables["threads"] = read_threads(database, used)
        recorded = _recorded(database, tables)
        trace = make_trace(read_info(database, FORMAT.name), tables, recorded)
        diagnostics = read_diagnostics(database)
    return trace.with_warnings(
        *_warnings(trace, annotations.n_unclosed), *_beyond(trace, capture_end), *diagnostics
    )


def _collectives(
    database: Database,
    options: ReadOptions,
    nccl_calls: Sequence[NcclCall],
    kernels: pd.DataFrame,
    api_calls: pd.DataFrame,
) -> pd.DataFrame:
    """Return the collectives that our recorder saw, else those that NCCL and MPI tell."""
    if "TRACEPROF_COLLECTIVES" in database.tables:
        return read_collectives(database, options)
    parts = [
        make_nccl_collectives(nccl_calls, options, kernels, api_calls),
        read_mpi_collectives(database, options),
    ]
    return stack("collectives", parts)


def _used_processes(tables: dict[str, pd.DataFrame]) -> np.ndarray:
    owners = [frame["process"].to_numpy() for frame in tables.values() if "process" in frame]
    used = np.unique(np.concatenate(owners))
    return used[used >= 0]


def _on_physical_devices(
    tables: dict[str, pd.DataFrame], places: dict[tuple[int, int], int]
) -> dict[str, pd.DataFrame]:
    """Return the device tables with the machine's device numbers for those of a process."""
    moved: dict[str, pd.DataFrame] = {}
    for (process, ordinal), device in places.items():
        if ordinal == device:
            continue
        for name in ("kernels", "copies", "syncs"):
            original = tables[name]
            rows = (original["process"] == process) & (original["device"] == ordinal)
            frame = moved.get(name, original)
            moved[name] = frame.assign(device=frame["device"].where(~rows, device))
    return moved


def _recorded(database: Database, tables: dict[str, pd.DataFrame]) -> set[str]:
    """Return the tables that the profiler was asked to fill.

    Exports leave out tables without rows, so that an absent kernel table means "none" where
    CUDA was traced at all, which its API calls show.
    """
    recorded = {name for name, frame in tables.items() if len(frame)}
    asked = (
        database.rows("SELECT value FROM META_DATA_CAPTURE WHERE name = 'CAPTURE_EVENT_TYPE'")
        if "META_DATA_CAPTURE" in database.tables
        else []
    )
    asked_for = {str(value) for (value,) in asked}
    if recorded & set(_CUDA_TABLES) or "Cuda" in asked_for:
        recorded |= set(_CUDA_TABLES)
    if recorded & {"ranges", "marks"} or "NvtxEvents" in asked_for:
        recorded |= {"ranges", "marks"}
    own = {"TRACEPROF_COLLECTIVES": "collectives", "TRACEPROF_SAMPLES": "samples"}
    recorded |= {name for table, name in own.items() if table in database.tables}
    return recorded


def _warnings(trace: Trace, n_unclosed: int) -> list[str]:
    warnings = []
    launches = (
        trace.api_calls["name"].astype(str).str.startswith(("cudaGraphLaunch", "cuGraphLaunch"))
    )
    if launches.any() and not _graph_work_is_recorded(trace.kernels):
        warnings.append(
            f"{int(launches.sum())} CUDA graphs were launched but their device work is not in the "
            "file: the devices look idle; record with nsys --cuda-graph-trace=node"
        )
    if n_unclosed:
        warnings.append(f"{n_unclosed} NVTX ranges were never closed: they end with the capture")
    return warnings


def _beyond(trace: Trace, capture_end: int | None) -> list[str]:
    """Return a warning about device work that ends after the capture did."""
    if not capture_end:
        return []
    n_late = sum(int((trace.table(name)["end_ns"] > capture_end).sum()) for name in DEVICE_TABLES)
    if not n_late:
        return []
    return [f"{n_late} kernels and copies end after the capture ended: their times are doubtful"]


def _graph_work_is_recorded(kernels: pd.DataFrame) -> bool:
    whole = (kernels["activity"] == "cuda_graph").any()
    return bool(whole or (kernels["graph_node"] > 0).any())


FORMAT: Final = TraceFormat(
    name="nsys",
    summary="Nsight Systems SQLite export, and recordings of traceprof",
    recognises=recognises,
    read=read,
)
