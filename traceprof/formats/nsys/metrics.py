"""Time series in an nsys export: counters of GPUs and networks, device memory, page faults."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
import pandas as pd

from traceprof.formats.nsys.codes import process_of
from traceprof.formats.nsys.network import read_network_metrics
from traceprof.formats.sqlite.database import ColumnType, Database, categorical
from traceprof.model.frames import stack
from traceprof.model.tables import empty_table, make_table

__all__ = ["read_metrics"]

_INTEGER: Final = ColumnType.INTEGER
_GPU_INDEX: Final = 0xFF
_ON_DEVICE: Final = (2, 4, 5, 6)  # device, managed, device static, managed static
_FREED: Final = 1


def read_metrics(database: Database) -> pd.DataFrame:
    """Return all time series that the export has."""
    return stack("samples", [read(database) for read in _READERS])


def _gpu_metrics(database: Database) -> pd.DataFrame:
    """Return the GPU counters: per cent, or whatever the name of the metric says."""
    columns = ("timestamp", "typeId", "metricId", "value")
    if not set(columns) <= database.columns("GPU_METRICS"):
        return empty_table("samples")
    raw = database.read_columns("GPU_METRICS", dict.fromkeys(columns, _INTEGER))
    kinds, metrics = np.asarray(raw["typeId"]), np.asarray(raw["metricId"])
    names = {}
    if {"typeId", "metricId", "metricName"} <= database.columns("TARGET_INFO_GPU_METRICS"):
        sql = "SELECT typeId, metricId, metricName FROM TARGET_INFO_GPU_METRICS"
        names = {(kind, metric): str(name) for kind, metric, name in database.rows(sql)}
    keys, place = _distinct(kinds, metrics)
    return make_table(
        "samples",
        {
            "start_ns": raw["timestamp"],
            "source": categorical(place, [f"gpu:{kind & _GPU_INDEX}" for kind, _ in keys]),
            "metric": categorical(place, [names.get(key, f"metric {key[1]}") for key in keys]),
            "value": np.asarray(raw["value"], np.float64),
        },
    )


def _memory_usage(database: Database) -> pd.DataFrame:
    """Return the bytes of device memory that each process holds, after each change."""
    columns = ("start", "globalPid", "deviceId", "bytes", "memKind", "memoryOperationType")
    table = "CUDA_GPU_MEMORY_USAGE_EVENTS"
    if not set(columns) <= database.columns(table):
        return empty_table("samples")
    raw = pd.DataFrame(database.read_columns(table, dict.fromkeys(columns, _INTEGER)))
    raw = raw[raw["memKind"].isin(_ON_DEVICE)].sort_values("start", kind="stable")
    change = np.where(raw["memoryOperationType"] == _FREED, -raw["bytes"], raw["bytes"])
    processes = process_of(raw["globalPid"].to_numpy())
    keys, place = _distinct(processes, raw["deviceId"].to_numpy())
    held = pd.Series(change).groupby(place).cumsum()
    return make_table(
        "samples",
        {
            "start_ns": raw["start"].to_numpy(),
            "source": categorical(place, [f"process:{pid} gpu:{gpu}" for pid, gpu in keys]),
            "metric": categorical(np.zeros(len(raw), np.int64), ["cuda_allocated_bytes"]),
            "value": held.to_numpy(np.float64),
        },
    )


def _page_faults(database: Database) -> pd.DataFrame:
    """Return the page faults of unified memory: how many at a time."""
    parts = []
    table = "CUDA_UM_GPU_PAGE_FAULT_EVENTS"
    columns: tuple[str, ...] = ("start", "deviceId", "numberOfPageFaults")
    if set(columns) <= database.columns(table):
        raw = database.read_columns(table, dict.fromkeys(columns, _INTEGER))
        value = np.asarray(raw["numberOfPageFaults"], np.float64)
        parts.append(_faults(raw["start"], raw["deviceId"], "gpu", value))
    table = "CUDA_UM_CPU_PAGE_FAULT_EVENTS"
    columns = ("start", "globalPid")
    if set(columns) <= database.columns(table):
        raw = database.read_columns(table, dict.fromkeys(columns, _INTEGER))
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


def _distinct(
    first: np.ndarray, second: np.ndarray
) -> tuple[Sequence[tuple[int, int]], np.ndarray]:
    """Return the distinct pairs, and which of them each row is."""
    keys, place = np.unique(np.stack([first, second], axis=1), axis=0, return_inverse=True)
    pairs = [(int(one), int(other)) for one, other in keys]
    return pairs or [(0, 0)], place.ravel()


_READERS: Final[tuple[Callable[[Database], pd.DataFrame], ...]] = (
    _gpu_metrics,
    read_network_metrics,
    _memory_usage,
    _page_faults,
)
