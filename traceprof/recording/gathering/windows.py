"""The windows that torch's profiler left, as tables of a Trace."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Final

import numpy as np
import pandas as pd

from traceprof.formats.contract import ReadOptions
from traceprof.formats.kineto.events import KinetoEvents
from traceprof.formats.kineto.header import make_devices, make_threads
from traceprof.formats.kineto.rows import (
    ANNOTATIONS,
    API_CALLS,
    COPIES,
    KERNELS,
    ON_HOST,
    OPERATORS,
    OVERHEADS,
    SYNCS,
    Rows,
    all_rows,
    make_api_calls,
    make_copies,
    make_kernel_shapes,
    make_kernels,
    make_overheads,
    make_syncs,
)
from traceprof.model.tables import make_table, stack

__all__ = ["window_tables"]

_ASYNC_PREFIXES: Final = ("gloo:", "mpi:", "ucc:")
_OF_DEVICES: Final = ("kernels", "kernel_shapes", "copies", "syncs", "api_calls", "overheads")

Clock = Callable[[np.ndarray], np.ndarray]
Windows = Sequence[tuple[int, KinetoEvents]]


def window_tables(
    windows: Windows, to_trace_time: Clock
) -> tuple[dict[str, pd.DataFrame], set[str]]:
    """Return the tables of all windows, and the names of those that were recorded.

    Device tables count as recorded only where the profiler saw a device.
    """
    rows = [_rows(pid, events, to_trace_time) for pid, events in windows]
    tables = {
        "host_ops": _stacked("host_ops", (_host_ops(part) for part in rows)),
        "threads": _threads(windows),
    }
    devices = _devices(windows)
    if len(devices):
        parts = [_device_tables(part) for part in rows]
        tables |= {name: _stacked(name, (part[name] for part in parts)) for name in _OF_DEVICES}
        tables["devices"] = devices
    return tables, set(tables)


def _rows(pid: int, events: KinetoEvents, to_trace_time: Clock) -> Rows:
    rows = all_rows(events, -events.base_time_ns, ON_HOST)
    start_ns, end_ns = to_trace_time(rows.start_ns), to_trace_time(rows.end_ns)
    return replace(rows, start_ns=start_ns, end_ns=end_ns, host_process=pid)


def _stacked(name: str, parts: Iterator[pd.DataFrame]) -> pd.DataFrame:
    return stack(name, list(parts))


def _device_tables(rows: Rows) -> dict[str, pd.DataFrame]:
    return {
        "kernels": make_kernels(rows.of(*KERNELS), ReadOptions()),
        "kernel_shapes": make_kernel_shapes(rows.of(*KERNELS)),
        "copies": make_copies(rows.of(*COPIES)),
        "syncs": make_syncs(rows.of(*SYNCS)),
        "api_calls": make_api_calls(rows.of(*API_CALLS)),
        "overheads": make_overheads(rows.of(*OVERHEADS)),
    }


def _host_ops(rows: Rows) -> pd.DataFrame:
    """Return the operators and torch's annotations: the ranges of a recording are the hooks'."""
    chosen = rows.of(*OPERATORS, *ANNOTATIONS)
    is_async = chosen.named(lambda name: name.startswith(_ASYNC_PREFIXES))
    return make_table(
        "host_ops",
        {
            "start_ns": chosen.start_ns,
            "end_ns": chosen.end_ns,
            "process": chosen.process,
            "thread": chosen.thread,
            "name": chosen.name,
            "source": np.where(is_async, "async", np.asarray(chosen.category, object)),
            "correlation": chosen.number("External id"),
        },
    )


def _threads(windows: Windows) -> pd.DataFrame:
    named = stack("threads", [make_threads(events, np.array([pid])) for pid, events in windows])
    return named.drop_duplicates(["process", "thread"], keep="last", ignore_index=True)


def _devices(windows: Windows) -> pd.DataFrame:
    found = stack("devices", [make_devices(events.header) for _, events in windows])
    return found.drop_duplicates("device", ignore_index=True).sort_values(
        "device", ignore_index=True
    )
