"""Time series in an nsys export: counters of GPUs and networks, device memory, page faults."""

from __future__ import annotations

from typing import Final

import numpy as np
import pandas as pd

from traceprof.formats.nsys.codes import process_of
from traceprof.formats.nsys.network import read_network_metrics
from traceprof.formats.sqlite.conditions import Between
from traceprof.formats.sqlite.database import ColumnType, Database, categorical, distinct_pairs
from traceprof.formats.sqlite.scan import Source
from traceprof.model.tables import empty_table, make_table, stack
from traceprof.model.timing import TimeWindow

__all__ = ["metric_sources", "read_metrics"]

_INTEGER: Final = ColumnType.INTEGER
_GPU_INDEX: Final = 0xFF
_ON_DEVICE: Final = (2, 4, 5, 6)  # device, managed, device static, managed static
_FREED: Final = 1
_COUNTERS: Final = ("timestamp", "typeId", "metricId", "value")
_MEMORY: Final = "CUDA_GPU_MEMORY_USAGE_EVENTS"
_USAGE: Final = ("start", "globalPid", "deviceId", "bytes", "memKind", "memoryOperationType")
_GPU_FAULTS: Final = "CUDA_UM_GPU_PAGE_FAULT_EVENTS"
_GPU_FAULT: Final = ("start", "deviceId", "numberOfPageFaults")
_CPU_FAULTS: Final = "CUDA_UM_CPU_PAGE_FAULT_EVENTS"
_CPU_FAULT: Final = ("start", "globalPid")


def read_metrics(database: Database, window: TimeWindow | None = None) -> pd.DataFrame:
    """Return all time series that the export has.

    With ``window`` rows outside it may be missing; counters that add up are read whole.
    """
    counters = [read(database) for read in (read_network_metrics, _memory_usage, _page_faults)]
    return stack("samples", [_gpu_metrics(database, window), *counters])


def metric_sources(database: Database) -> list[Source]:
    """Return where the samples come from, but for those of networks: `network_extent`."""
    on_device = f"memKind IN ({', '.join(map(str, _ON_DEVICE))})"
    known = (
        (Source("GPU_METRICS", "timestamp", end=""), _COUNTERS),
        (Source(_MEMORY, end="", where=on_device), _USAGE),
        (Source(_GPU_FAULTS, end=""), _GPU_FAULT),
        (Source(_CPU_FAULTS, end=""), _CPU_FAULT),
    )
    return [source for source, needed in known if set(needed) <= database.columns(source.table)]


def _gpu_metrics(database: Database, window: TimeWindow | None) -> pd.DataFrame:
    """Return the GPU counters: per cent, or whatever the name of the metric says."""
    if not set(_COUNTERS) <= database.columns("GPU_METRICS"):
        return empty_table("samples")
    inside = None
    if window is not None:
        inside = Between("timestamp", window.start_ns, window.end_ns - 1)
    wanted = dict.fromkeys(_COUNTERS, _INTEGER)
    raw = database.read_columns("GPU_METRICS", wanted, where=inside)
    kinds, metrics = np.asarray(raw["typeId"]), np.asarray(raw["metricId"])
    names = {}
    if {"typeId", "metricId", "metricName"} <= database.columns("TARGET_INFO_GPU_METRICS"):
        sql = "SELECT typeId, metricId, metricName FROM TARGET_INFO_GPU_METRICS"
        names = {(kind, metric): str(name) for kind, metric, name in database.rows(sql)}
    keys, place = distinct_pairs(kinds, metrics)
    return make_table(
        "samples",
        {
            "start_ns": raw["timestamp"],
            "source": categorical(place, [f"gpu:{kind & _GPU_INDEX}" for kind, _ in keys] or [""]),
            "metric": categorical(
                place, [names.get(key, f"metric {key[1]}") for key in keys] or [""]
            ),
            "value": np.asarray(raw["value"], np.float64),
        },
    )


def _memory_usage(database: Database) -> pd.DataFrame:
    """Return the bytes of device memory that each process holds, after each change."""
    if not set(_USAGE) <= database.columns(_MEMORY):
        return empty_table("samples")
    raw = pd.DataFrame(database.read_columns(_MEMORY, dict.fromkeys(_USAGE, _INTEGER)))
    raw = raw[raw["memKind"].isin(_ON_DEVICE)].sort_values("start", kind="stable")
    change = np.where(raw["memoryOperationType"] == _FREED, -raw["bytes"], raw["bytes"])
    processes = process_of(raw["globalPid"].to_numpy())
    keys, place = distinct_pairs(processes, raw["deviceId"].to_numpy())
    held = pd.Series(change).groupby(place).cumsum()
    return make_table(
        "samples",
        {
            "start_ns": raw["start"].to_numpy(),
            "source": categorical(place, [f"process:{pid} gpu:{gpu}" for pid, gpu in keys] or [""]),
            "metric": categorical(np.zeros(len(raw), np.int64), ["cuda_allocated_bytes"]),
            "value": held.to_numpy(np.float64),
        },
    )


def _page_faults(database: Database) -> pd.DataFrame:
    """Return the page faults of unified memory: how many at a time."""
    parts = []
    if set(_GPU_FAULT) <= database.columns(_GPU_FAULTS):
        raw = database.read_columns(_GPU_FAULTS, dict.fromkeys(_GPU_FAULT, _INTEGER))
        value = np.asarray(raw["numberOfPageFaults"], np.float64)
        parts.append(_faults(raw["start"], raw["deviceId"], "gpu", value))
    if set(_CPU_FAULT) <= database.columns(_CPU_FAULTS):
        raw = database.read_columns(_CPU_FAULTS, dict.fromkeys(_CPU_FAULT, _INTEGER))
        owners = process_of(raw["globalPid"])
        parts.append(_faults(raw["start"], owners, "process", np.ones(len(owners))))
    return stack("samples", parts)


def _faults(starts: object, owners: object, kind: str, value: np.ndarray) -> pd.DataFrame:
    distinct, place = np.unique(np.asarray(owners, np.int64), return_inverse=True)
    return make_table(
        "samples",
        {
            "start_ns": starts,
            "source": categorical(place.ravel(), [f"{kind}:{one}" for one in distinct] or [""]),
            "metric": categorical(np.zeros(len(value), np.int64), ["page_faults"]),
            "value": value,
        },
    )
