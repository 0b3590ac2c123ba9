"""SQLite files of nvprof and the Visual Profiler, versions 8 to 16 and later."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import numpy as np
import pandas as pd

from traceprof.formats.annotated_collectives import annotated_collectives
from traceprof.formats.base import Candidate, ReadOptions, TraceFormat
from traceprof.formats.nvprof.device import read_copies, read_kernels, read_syncs
from traceprof.formats.nvprof.file import PREFIX, NvprofFile, open_nvprof
from traceprof.formats.nvprof.host import read_api_calls, read_markers, read_overheads
from traceprof.formats.nvprof.target import (
    read_devices,
    read_environment,
    read_info,
    read_processes,
)
from traceprof.formats.sqlite.database import Database
from traceprof.model.trace import Trace, make_trace

__all__ = ["FORMAT"]

_ALWAYS_RECORDED: Final = frozenset({"kernels", "copies", "ranges", "marks"})


def recognises(candidate: Candidate) -> bool:
    """Return whether the file has the tables of nvprof."""
    return {"StringTable", "Version"} <= candidate.tables and any(
        table.startswith(PREFIX) for table in candidate.tables
    )


def read(path: Path, options: ReadOptions) -> Trace:
    """Return the trace in a file of nvprof; time 0 is its first record."""
    with Database(path) as database:
        file = open_nvprof(database, options)
        tables = {
            "kernels": read_kernels(file),
            "copies": read_copies(file),
            "api_calls": read_api_calls(file),
            "syncs": read_syncs(file),
            "overheads": read_overheads(file),
        }
        markers = read_markers(file, _last_ns(tables))
        tables |= {
            "ranges": markers.ranges,
            "marks": markers.marks,
            "devices": read_devices(file),
            "environment": read_environment(file),
        }
        tables["collectives"] = annotated_collectives(
            markers.ranges, tables["kernels"], tables["api_calls"]
        )
        tables["processes"] = read_processes(file, _used_processes(tables))
        info = read_info(file, FORMAT.name)
    trace = make_trace(info, tables, _recorded(tables))
    return trace.with_warnings(*_warnings(file, markers.n_unclosed))


def _last_ns(tables: dict[str, pd.DataFrame]) -> int:
    return max(int(frame["end_ns"].max()) if len(frame) else 0 for frame in tables.values())


def _used_processes(tables: dict[str, pd.DataFrame]) -> np.ndarray:
    owners = [frame["process"].to_numpy() for frame in tables.values() if "process" in frame]
    used = np.unique(np.concatenate(owners))
    return used[used >= 0]


def _recorded(tables: dict[str, pd.DataFrame]) -> set[str]:
    """Return what nvprof was asked for: device work and NVTX always, API calls unless not."""
    recorded = {name for name, frame in tables.items() if len(frame)} | _ALWAYS_RECORDED
    if tables["kernels"].empty and tables["copies"].empty:
        recorded.add("api_calls")
    return recorded


def _warnings(file: NvprofFile, n_unclosed: int) -> list[str]:
    warnings = []
    if file.n_lost:
        warnings.append(
            f"{file.n_lost} records were lost by the profiler (their times are 0) and are left "
            "out: record again with a larger nvprof --device-buffer-size"
        )
    if n_unclosed:
        warnings.append(f"{n_unclosed} NVTX ranges were never closed: they end with the capture")
    return warnings


FORMAT: Final = TraceFormat(
    name="nvprof",
    summary="SQLite file of nvprof or the Visual Profiler (.nvprof, .sql, .nvvp)",
    recognises=recognises,
    read=read,
)
