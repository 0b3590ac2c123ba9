"""Read time series from an nsys export: GPU and network counters, device memory, page faults.

GPU counters are rows of ``GPU_METRICS`` (since 2023) or, before, events with all counters as JSON
(``GENERIC_EVENTS``).

A row of a network interface (``--nic-metrics``) is an interval with a *rate*, usually in bytes/ms;
the table of metric names has the unit. Rates of bytes become cumulative counters, like those of
traceprof's own samplers. Other metrics are kept unchanged.
"""

from __future__ import annotations

import math
import re
from array import array
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from traceprof.formats.nsys.schema import process_of
from traceprof.formats.shared.cupti import names_by_number
from traceprof.formats.sqlite.columns import ColumnType, known
from traceprof.formats.sqlite.conditions import Condition, between
from traceprof.formats.sqlite.database import Database
from traceprof.formats.sqlite.pages.totals import TableExtent
from traceprof.formats.sqlite.survey import RowSource
from traceprof.model.grouping import groups_of, rows_by_values
from traceprof.model.table import Column, Names, Table
from traceprof.model.tables import empty_table, make_table, stack
from traceprof.model.timing import TimeWindow

NETWORK: Final = "NET_NIC_METRIC"
_PORT: Final = "portId"
_SERIES: Final = ("globalId", _PORT, "metricsListId", "metricsIdx")
_BYTES: Final = re.compile(
    r"(?P<protocol>\w+): *bytes (?P<direction>sent|received)$", re.IGNORECASE
)
_NS_PER_RATE_UNIT: Final = {
    "bytes/ns": 1,
    "bytes/us": 1e3,
    "bytes/ms": 1e6,
    "bytes/s": 1e9,
    "bytes/sec": 1e9,
}
"""Unit of a rate, in lower case → its time in ns."""
_GPU: Final = "GPU_METRICS"
GENERIC: Final = "GENERIC_EVENTS"
"""The table of events that have a time and a JSON object."""
_GPU_SOURCE_NAME: Final = re.compile(r"gpu ?metrics", re.IGNORECASE)
_MEMORY: Final = "CUDA_GPU_MEMORY_USAGE_EVENTS"
_GPU_FAULTS: Final = "CUDA_UM_GPU_PAGE_FAULT_EVENTS"
_CPU_FAULTS: Final = "CUDA_UM_CPU_PAGE_FAULT_EVENTS"
_NEEDED: Final = {
    NETWORK: ("start", "end", "globalId", "metricsListId", "metricsIdx", "value"),
    _GPU: ("timestamp", "typeId", "metricId", "value"),
    _MEMORY: ("start", "globalPid", "deviceId", "bytes", "memKind", "memoryOperationType"),
    _GPU_FAULTS: ("start", "deviceId", "numberOfPageFaults"),
    _CPU_FAULTS: ("start", "globalPid"),
}
"""Table → the columns that reading it requires."""
_Metric: TypeAlias = tuple[str, str]
"""Name and unit of a metric."""
_GPU_INDEX: Final = 0xFF
_ON_DEVICE: Final = (2, 4, 5, 6)  # device, managed, device static, managed static
_FREED: Final = 1


def read_metrics(database: Database, window: TimeWindow | None = None) -> Table:
    """Return all time series in the export.

    With ``window``, rows outside it may be missing; cumulative counters are always read whole.
    """
    unwindowed = (read(database) for read in (network_metrics, _memory_usage, _page_faults))
    return stack(
        "samples",
        [_gpu_metrics(database, window), generic_metrics(database, window), *unwindowed],
    )


def metric_sources(database: Database) -> list[RowSource]:
    """Return the row sources of the samples.

    Network samples come from `network_metrics` and event samples from `generic_extent` instead.
    """
    on_device = f"memKind IN ({', '.join(map(str, _ON_DEVICE))})"
    known_sources = (
        RowSource(_GPU, "timestamp", end=""),
        RowSource(_MEMORY, end="", where=on_device),
        RowSource(_GPU_FAULTS, end=""),
        RowSource(_CPU_FAULTS, end=""),
    )
    return [
        source
        for source in known_sources
        if database.columns(source.table).issuperset(_NEEDED[source.table])
    ]


def _read(
    database: Database, table: str, optional: str = "", where: Condition | None = None
) -> Mapping[str, Column]:
    """Return the columns of a table; empty if it lacks required columns."""
    if not database.columns(table).issuperset(_NEEDED[table]):
        return {}
    optional_columns = (optional,) if optional else ()
    wanted = dict.fromkeys((*_NEEDED[table], *optional_columns), ColumnType.INTEGER)
    return database.read_columns(table, wanted, optional=optional_columns, where=where)


def _samples(starts: Column, sources: Names, metrics: Names, values: Column) -> Table:
    """Return the columns as a table of samples."""
    return make_table(
        "samples", {"start_ns": starts, "source": sources, "metric": metrics, "value": values}
    )


def _gpu_metrics(database: Database, window: TimeWindow | None) -> Table:
    """Return the GPU counters, in percent or the unit that the metric name states."""
    inside = None
    if window is not None:
        inside = between("timestamp", window.start_ns, window.end_ns - 1)
    raw = _read(database, _GPU, where=inside)
    if not raw:
        return empty_table("samples")
    titles = {}
    if {"typeId", "metricId", "metricName"} <= database.columns("TARGET_INFO_GPU_METRICS"):
        sql = "SELECT typeId, metricId, metricName FROM TARGET_INFO_GPU_METRICS"
        titles = {(kind, metric): str(name) for kind, metric, name in database.rows(sql)}
    groups = groups_of(raw["typeId"], raw["metricId"])
    sources = [f"gpu:{kind & _GPU_INDEX}" for kind, _ in groups.keys]
    metrics = [
        titles.get((kind, metric_id), f"metric {metric_id}") for kind, metric_id in groups.keys
    ]
    source, metric = (
        Names.coded(texts, groups.packed, is_sorted=True) for texts in (sources, metrics)
    )
    return _samples(raw["timestamp"], source, metric, raw["value"])


@dataclass(frozen=True, slots=True)
class _Events:
    """One type of generic events with GPU counters; each event has a value of each metric."""

    type_id: int
    metrics: tuple[str, ...]
    at: str
    """SQL of the time of an event, in session time."""

    def rows(self, columns: str, *conditions: str) -> str:
        """Return the SQL query that selects ``columns`` of the events that meet ``conditions``."""
        predicates = (
            f"typeId = {self.type_id}",
            f"{self.at} IS NOT NULL",
            *filter(None, conditions),
        )
        return f"SELECT {columns} FROM {GENERIC} WHERE {' AND '.join(predicates)}"


def _counter_events(database: Database) -> list[_Events]:
    """Return the types of generic events that are GPU counters."""
    columns_needed = {
        "GENERIC_EVENT_TYPES": {"typeId", "sourceId", "data"},
        "GENERIC_EVENT_SOURCES": {"sourceId", "data"},
        GENERIC: {"typeId", "timestamp", "data"},
    }
    if not all(needed <= database.columns(table) for table, needed in columns_needed.items()):
        return []
    rows = database.rows(
        "SELECT t.typeId, t.data, s.data FROM GENERIC_EVENT_TYPES t "
        "JOIN GENERIC_EVENT_SOURCES s USING (sourceId) ORDER BY t.typeId"
    )
    found, has_raw = [], "rawTimestamp" in database.columns(GENERIC)
    for type_id, description, source in rows:
        fields, name = _json(description).get("Fields"), str(_json(source).get("Name", ""))
        if isinstance(type_id, int) and isinstance(fields, list) and _GPU_SOURCE_NAME.match(name):
            names = (str(field.get("Name", "")) for field in fields if isinstance(field, dict))
            is_raw = has_raw and _json(source).get("TimeSource") == "SessionNs"
            at = "coalesce(timestamp, rawTimestamp)" if is_raw else "timestamp"
            found.append(_Events(type_id, tuple(dict.fromkeys(filter(None, names))), at))
    return found


_EVENTS_PER_BATCH: Final = 4096


def _objects(texts: Sequence[Any]) -> list[dict[str, Any]]:
    """Return the objects in JSON ``texts``.

    All texts are decoded at once; if that fails, one by one.
    """
    import msgspec  # noqa: PLC0415 (few files have such texts)

    try:
        found: list[Any] = msgspec.json.decode(f"[{','.join(texts)}]")
    except (msgspec.DecodeError, TypeError, RecursionError):
        found = []
    if len(found) == len(texts) and all(isinstance(item, dict) for item in found):
        return found
    return list(map(_json, texts))


def _json(text: object) -> dict[str, Any]:
    """Return the object in a JSON text; an empty object if there is none."""
    import msgspec  # noqa: PLC0415 (few files have such texts)

    try:
        value = msgspec.json.decode(str(text))
    except (msgspec.DecodeError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def generic_extent(database: Database) -> TableExtent:
    """Return the extent of the samples of `generic_metrics`, by SQL, without parsing JSON."""
    extent = TableExtent()
    for events in _counter_events(database):
        totals = f"count(*), min({events.at}), max({events.at})"
        ((n, first, last),) = database.rows(events.rows(totals))
        if n and events.metrics:
            extent |= TableExtent(n * len(events.metrics), 0, int(first), int(last))
    return extent


def generic_metrics(database: Database, window: TimeWindow | None = None) -> Table:
    """Return the GPU counters in generic events: one sample per event and metric.

    The value is NaN if the event lacks the metric.
    """
    parts = []
    for events in _counter_events(database):
        inside = f"{events.at} BETWEEN {window.start_ns} AND {window.end_ns}" if window else ""
        rows = database.some_rows(events.rows(f"{events.at}, data", inside))
        starts, values = array("q"), array("d")
        while batch := list(islice(rows, _EVENTS_PER_BATCH)):
            starts.extend(int(start) for start, _ in batch)
            for event in _objects([text for _, text in batch]):
                values.extend(_value(event.get(metric)) for metric in events.metrics)
        n_metrics = len(events.metrics)
        parts.append(
            _samples(
                np.repeat(np.array(starts, np.int64), n_metrics),
                Names.repeated(f"gpu:{events.type_id & _GPU_INDEX}", len(values)),
                Names.coded(events.metrics, np.tile(np.arange(n_metrics), len(starts))),
                np.array(values, np.float64),
            )
        )
    return stack("samples", parts)


def _value(text: object) -> float:
    """Return ``text`` as a number; NaN if it is not one."""
    try:
        return float(text)  # type: ignore[arg-type]  # the except clause handles the other types
    except (TypeError, ValueError, OverflowError):
        return math.nan


def _memory_usage(database: Database) -> Table:
    """Return the bytes of device memory that each process holds after each change."""
    raw = Table(_read(database, _MEMORY))
    if raw.empty:
        return empty_table("samples")
    raw = raw.take(np.isin(raw["memKind"], _ON_DEVICE)).in_order("start")
    change = np.where(raw["memoryOperationType"] == _FREED, -raw["bytes"], raw["bytes"])
    groups = groups_of(process_of(raw["globalPid"]), raw["deviceId"])
    sources = [f"process:{pid} gpu:{gpu}" for pid, gpu in groups.keys]
    held_bytes = np.empty(len(raw), np.float64)
    for rows in np.split(groups.order, groups.first[1:]):
        held_bytes[rows] = np.cumsum(change[rows])
    return _samples(
        raw["start"],
        Names.coded(sources, groups.packed, is_sorted=True),
        Names.repeated("cuda_allocated_bytes", len(raw)),
        held_bytes,
    )


def _page_faults(database: Database) -> Table:
    """Return the numbers of unified memory page faults per event."""
    parts = []
    if raw := _read(database, _GPU_FAULTS):
        gpus = names_by_number(raw["deviceId"], "gpu:{}".format)
        faults = Names.repeated("page_faults", len(gpus))
        parts.append(_samples(raw["start"], gpus, faults, raw["numberOfPageFaults"]))
    if raw := _read(database, _CPU_FAULTS):
        processes = names_by_number(process_of(raw["globalPid"]), "process:{}".format)
        faults = Names.repeated("page_faults", len(processes))
        parts.append(_samples(raw["start"], processes, faults, np.ones(len(processes))))
    return stack("samples", parts)


def network_metrics(database: Database) -> Table:
    """Return the counters of network interfaces as samples.

    Byte counters are named ``bytes_sent`` and ``bytes_received``, with the source "nic:mlx5_0 IB".
    They count from the first interval, and are NaN once between two intervals with a gap between
    them. Other metrics have their unit in the name and are at the start of their interval.
    """
    raw = Table(_read(database, NETWORK, _PORT))
    if raw.empty:
        return empty_table("samples")
    raw = raw.assign(**{_PORT: known(raw[_PORT])})
    names, metrics = _interfaces(database), _metrics(database)
    ports = Counter(owner for owner, _ in groups_of(raw["globalId"], raw[_PORT]).keys)
    parts = []
    for series, rows in rows_by_values(*(raw[name] for name in _SERIES)).items():
        owner, port, group, index = series
        source = f"nic:{names.get(owner, owner)}" + (f":{port}" if ports[owner] > 1 else "")
        metric = metrics.get((group, index), (f"metric {index}", ""))
        parts.append(_series(source, metric, raw.take(rows).in_order("start")))
    return stack("samples", parts)


def _series(source: str, metric: _Metric, rows: Table) -> Table:
    """Return the samples of one metric of one interface."""
    starts, ends, values = rows["start"], rows["end"], rows["value"].astype(np.float64)
    title, unit = metric
    counted, per_ns = _BYTES.match(title), _NS_PER_RATE_UNIT.get(unit.lower())
    if counted is None or per_ns is None:
        name = f"{title} ({unit})" if unit else title
    else:
        starts, values = _integrate_rates(starts, ends, values / per_ns)
        source = f"{source} {counted['protocol']}"
        name = f"bytes_{counted['direction'].lower()}"
    n_rows = len(starts)
    return _samples(starts, Names.repeated(source, n_rows), Names.repeated(name, n_rows), values)


def _integrate_rates(
    starts: npt.NDArray[np.int64],
    ends: npt.NDArray[np.int64],
    bytes_per_ns: npt.NDArray[np.float64],
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
    """Return times and values of a counter that grows at these rates; NaN where a gap begins."""
    total = np.rint(np.cumsum((ends - starts) * bytes_per_ns))
    before = np.concatenate(([0.0], total[:-1]))
    is_first = np.concatenate(([True], starts[1:] > ends[:-1]))
    gap_ends = np.flatnonzero(is_first & (np.arange(len(starts)) > 0))
    instants = np.concatenate((ends[gap_ends - 1], starts[is_first], ends))
    values = np.concatenate((np.full(len(gap_ends), np.nan), before[is_first], total))
    # Order at one instant: the total (0), then the NaN of a gap (1), then the first value after it.
    rank = np.repeat([1, 2, 0], [len(gap_ends), int(is_first.sum()), len(ends)])
    order = np.lexsort((rank, instants))
    return instants[order], values[order]


def _metrics(database: Database) -> Mapping[tuple[int, int], _Metric]:
    """Return (list, index) of a network metric → its name and unit."""
    present = database.columns("TARGET_INFO_NETWORK_METRICS")
    if not {"metricsListId", "metricsIdx", "name"} <= present:
        return {}
    unit = "coalesce(unit, '')" if "unit" in present else "''"
    rows = database.rows(
        f"SELECT metricsListId, metricsIdx, name, {unit} FROM TARGET_INFO_NETWORK_METRICS"
    )
    return {(group, index): (str(name), str(text)) for group, index, name, text in rows}


def _interfaces(database: Database) -> dict[int, str]:
    """Return the global id of a network interface → its name."""
    if not (
        {"nicId", "globalId"} <= database.columns("NIC_ID_MAP")
        and {"nicId", "name"} <= database.columns("TARGET_INFO_NIC_INFO")
    ):
        return {}
    rows = database.rows(
        "SELECT m.globalId, i.name FROM NIC_ID_MAP m JOIN TARGET_INFO_NIC_INFO i USING (nicId)"
    )
    return {owner: str(name) for owner, name in rows}
