"""Time series in an nsys export: counters of GPUs and networks, device memory, page faults.

A row of a network interface (``--nic-metrics``) is an interval with a *rate* in it, mostly in
bytes/ms; the unit stands beside the name of the metric. Bytes become counters that add up, as our
own samplers take them; the rest is kept as it is.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd

from traceprof.formats.nsys.schema import process_of
from traceprof.formats.sqlite.columns import ColumnType, categorical, distinct_pairs, known
from traceprof.formats.sqlite.conditions import Between
from traceprof.formats.sqlite.database import Database
from traceprof.formats.sqlite.survey import RowSource, TableExtent
from traceprof.model.tables import ABSENT, empty_table, make_table, stack
from traceprof.model.timing import TimeWindow

_COLUMNS: Final = ("start", "end", "globalId", "metricsListId", "metricsIdx", "value")
_PORT: Final = "portId"
_SERIES: Final = ("globalId", _PORT, "metricsListId", "metricsIdx")
_BYTES: Final = re.compile(
    r"(?P<protocol>\w+): *bytes (?P<direction>sent|received)$", re.IGNORECASE
)
_PER: Final = {"bytes/ns": 1, "bytes/us": 1e3, "bytes/ms": 1e6, "bytes/s": 1e9, "bytes/sec": 1e9}
"""How many ns the time is that a rate counts by."""


class _Metric(NamedTuple):
    name: str
    unit: str


def read_network_metrics(database: Database) -> pd.DataFrame:
    """Return the counters of interfaces as samples.

    Bytes are ``bytes_sent`` and ``bytes_received`` of the source "nic:mlx5_0 IB", counted from
    the first interval; where nothing was recorded between two intervals the counter is NaN once.
    Other metrics bear their unit, and stand at the start of their interval.
    """
    if not set(_COLUMNS) <= database.columns("NET_NIC_METRIC"):
        return empty_table("samples")
    wanted = dict.fromkeys((*_COLUMNS, _PORT), ColumnType.INTEGER)
    raw = pd.DataFrame(database.read_columns("NET_NIC_METRIC", wanted, optional=(_PORT,)))
    raw[_PORT] = known(raw[_PORT].to_numpy())
    names, metrics = _interfaces(database), _metrics(database)
    several_ports = raw.groupby("globalId")[_PORT].transform("nunique") > 1
    parts = []
    for _, rows in raw.assign(several=several_ports).groupby(list(_SERIES)):
        owner, port, group, index = (int(rows[name].iloc[0]) for name in _SERIES)
        source = f"nic:{names.get(owner, owner)}"
        if rows["several"].iloc[0]:
            source += f":{port}"
        metric = metrics.get((group, index), _Metric(f"metric {index}", ""))
        parts.append(_series(source, metric, rows.sort_values("start", kind="stable")))
    return stack("samples", parts)


def _series(source: str, metric: _Metric, rows: pd.DataFrame) -> pd.DataFrame:
    starts, ends = (rows[name].to_numpy(np.int64) for name in ("start", "end"))
    values = rows["value"].to_numpy(np.float64)
    counted, per_ns = _counted(metric)
    if counted is None or per_ns is None:
        name = f"{metric.name} ({metric.unit})" if metric.unit else metric.name
        return _samples(source, name, starts, values)
    instants, counter = _add_up(starts, ends, values / per_ns)
    source = f"{source} {counted['protocol']}"
    return _samples(source, f"bytes_{counted['direction'].lower()}", instants, counter)


def _counted(metric: _Metric) -> tuple[re.Match[str] | None, float | None]:
    """Return what a metric counts bytes of, and the ns of its rate; None where it does not."""
    return _BYTES.match(metric.name), _PER.get(metric.unit.lower())


def network_extent(database: Database) -> TableExtent:
    """Return the extent of the samples that `read_network_metrics` gives, by one scan."""
    present = database.columns("NET_NIC_METRIC")
    if not set(_COLUMNS) <= present:
        return TableExtent()
    series = "globalId, metricsListId, metricsIdx"
    series += f", coalesce({_PORT}, {ABSENT})" if _PORT in present else ""
    (rows,) = database.rows_of_each(
        [
            "SELECT metricsListId, metricsIdx, count(*), total(start > before), min(start), "
            "max(start), min([end]), max([end]) FROM (SELECT *, lag([end]) OVER "
            f"(PARTITION BY {series} ORDER BY start, rowid) AS before "
            f"FROM {database.stored_name('NET_NIC_METRIC')}) GROUP BY {series}"
        ]
    )
    metrics, whole = _metrics(database), TableExtent()
    for group, index, n_rows, n_gaps, first, last, first_end, last_end in rows:
        if None in _counted(metrics.get((group, index), _Metric("", ""))):
            whole |= TableExtent(n_rows, 0, first, last)
        else:  # the first instant, and two more for each gap
            n_samples = n_rows + 1 + 2 * int(n_gaps)
            whole |= TableExtent(n_samples, 0, min(first, first_end), max(last, last_end))
    return whole


def _add_up(
    starts: npt.NDArray[np.int64],
    ends: npt.NDArray[np.int64],
    bytes_per_ns: npt.NDArray[np.float64],
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
    """Return a counter that grows at these rates; NaN at the start of what was not recorded."""
    total = np.rint(np.cumsum((ends - starts) * bytes_per_ns))
    before = np.concatenate(([0.0], total[:-1]))
    is_first = np.concatenate(([True], starts[1:] > ends[:-1]))
    follows_gap = is_first & (np.arange(len(starts)) > 0)
    lost = np.flatnonzero(follows_gap)
    instants = np.concatenate((ends[lost - 1], starts[is_first], ends))
    values = np.concatenate((np.full(len(lost), np.nan), before[is_first], total))
    # At one instant: what was counted, then that the recording stops there.
    rank = np.repeat([1, 2, 0], [len(lost), int(is_first.sum()), len(ends)])
    order = np.lexsort((rank, instants))
    return instants[order], values[order]


def _samples(
    source: str, metric: str, instants: npt.NDArray[np.int64], values: npt.NDArray[np.float64]
) -> pd.DataFrame:
    n = len(instants)
    return make_table(
        "samples",
        {"start_ns": instants, "source": [source] * n, "metric": [metric] * n, "value": values},
    )


def _metrics(database: Database) -> Mapping[tuple[int, int], _Metric]:
    present = database.columns("TARGET_INFO_NETWORK_METRICS")
    if not {"metricsListId", "metricsIdx", "name"} <= present:
        return {}
    unit = "coalesce(unit, '')" if "unit" in present else "''"
    rows = database.rows(
        f"SELECT metricsListId, metricsIdx, name, {unit} FROM TARGET_INFO_NETWORK_METRICS"
    )
    return {(group, index): _Metric(str(name), str(text)) for group, index, name, text in rows}


def _interfaces(database: Database) -> dict[int, str]:
    if not {"nicId", "globalId"} <= database.columns("NIC_ID_MAP"):
        return {}
    if not {"nicId", "name"} <= database.columns("TARGET_INFO_NIC_INFO"):
        return {}
    rows = database.rows(
        "SELECT m.globalId, i.name FROM NIC_ID_MAP m JOIN TARGET_INFO_NIC_INFO i USING (nicId)"
    )
    return {owner: str(name) for owner, name in rows}


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


def metric_sources(database: Database) -> list[RowSource]:
    """Return where the samples come from, but for those of networks: `network_extent`."""
    on_device = f"memKind IN ({', '.join(map(str, _ON_DEVICE))})"
    known = (
        (RowSource("GPU_METRICS", "timestamp", end=""), _COUNTERS),
        (RowSource(_MEMORY, end="", where=on_device), _USAGE),
        (RowSource(_GPU_FAULTS, end=""), _GPU_FAULT),
        (RowSource(_CPU_FAULTS, end=""), _CPU_FAULT),
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
