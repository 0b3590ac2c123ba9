"""What was captured as a Trace: events, samples, windows of torch's profiler as tables."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np

from traceprof.formats.contract import ReadOptions
from traceprof.formats.kineto import rows as kineto
from traceprof.formats.kineto.events import KinetoEvents
from traceprof.formats.kineto.header import make_devices, make_threads
from traceprof.model.grouping import numbered
from traceprof.model.table import Names, Table
from traceprof.model.tables import ABSENT, make_table, stack
from traceprof.model.trace import Trace, TraceInfo, make_trace
from traceprof.names.messages import collective_op
from traceprof.recording.captured import Captured
from traceprof.recording.cupti import records as cupti
from traceprof.recording.sampling.sampler import Sample
from traceprof.recording.spool import EventBlock, ProcessRecord
from traceprof.secrets import masked_name, storable

_ASYNC_PREFIXES: Final = ("gloo:", "mpi:", "ucc:")

Clock = Callable[[np.ndarray], np.ndarray]
Windows = Sequence[tuple[int, KinetoEvents]]
EventTables = Mapping[str, Table]
_ALIKE: Final = ("start_ns", "end_ns", "process", "thread", "name")
_DOMAIN: Final = "traceprof"
_TEXTS_OF_CALLS: Final = ("dtype", "group", "backend")
_NUMBERS_OF_CALLS: Final = ("sequence", "group_rank", "peer", "peer_rank", "tag")
_KINDS: Final = ("push_pop", "start_end")
_N_COLUMNS: Final = 6
_EXTRA: Final = ("ranges", "marks", "collectives", "samples", "processes", "environment")
_METRIC: Final = "metric:"


def window_tables(windows: Windows, to_trace_time: Clock) -> tuple[dict[str, Table], set[str]]:
    """Return the tables of all windows, and the names of those that were recorded.

    Device tables count as recorded only where the profiler saw a device.
    """
    rows = [_rows(pid, events, to_trace_time) for pid, events in windows]
    named = [make_threads(events, np.array([pid])) for pid, events in windows]
    threads = stack("threads", named[::-1])  # what was told last counts
    _, told = numbered(threads["process"], threads["thread"])
    tables = {
        "host_ops": stack("host_ops", [_host_ops(part) for part in rows]),
        "threads": threads.take(told),
    }
    devices = stack("devices", [make_devices(events.header) for _, events in windows])
    devices = devices.take(numbered(devices["device"])[1]).in_order("device")
    if len(devices):
        parts = [_device_tables(part) for part in rows]
        tables |= {name: stack(name, [part[name] for part in parts]) for name in parts[0]}
        tables["devices"] = devices
    return tables, set(tables)


def _rows(pid: int, events: KinetoEvents, to_trace_time: Clock) -> kineto.Rows:
    rows = kineto.all_rows(events, -events.base_time_ns, kineto.ON_HOST)
    start_ns, end_ns = to_trace_time(rows.start_ns), to_trace_time(rows.end_ns)
    return replace(rows, start_ns=start_ns, end_ns=end_ns, host_process=pid)


def _device_tables(rows: kineto.Rows) -> dict[str, Table]:
    return {
        "kernels": kineto.make_kernels(rows.of(*kineto.KERNELS), ReadOptions()),
        "kernel_shapes": kineto.make_kernel_shapes(rows.of(*kineto.KERNELS)),
        "copies": kineto.make_copies(rows.of(*kineto.COPIES)),
        "syncs": kineto.make_syncs(rows.of(*kineto.SYNCS)),
        "api_calls": kineto.make_api_calls(rows.of(*kineto.API_CALLS)),
        "overheads": kineto.make_overheads(rows.of(*kineto.OVERHEADS)),
    }


def _host_ops(rows: kineto.Rows) -> Table:
    """Return the operators and torch's annotations: the ranges of a recording are the hooks'."""
    chosen = rows.of(*kineto.OPERATORS, *kineto.ANNOTATIONS)
    is_async = chosen.named(lambda name: name.startswith(_ASYNC_PREFIXES))
    columns = {
        **{name: getattr(chosen, name) for name in _ALIKE},
        "source": np.where(is_async, "async", chosen.category.plain()),
        "correlation": chosen.number("External id"),
    }
    return make_table("host_ops", columns)


def make_spool_trace(
    captured: Captured,
    to_trace_time: Clock,
    facts: Mapping[str, str],
    epoch_ns: int | None,
    host: str,
    *,
    with_windows: bool = False,
) -> Trace:
    """Return the Trace of what was captured on ``host``, without events: see `event_tables`.

    ``to_trace_time`` turns ns since 1970 into the clock of the trace, at whose time 0 the wall
    clock was ``epoch_ns``. Windows of the profiler go in ``with_windows``, where there are any:
    operators of which none was looked at were not recorded.
    """
    environment = {"name": list(facts), "value": list(facts.values())}
    tables: dict[str, Table] = {
        "samples": _samples(captured.samples, to_trace_time),
        "processes": _processes(captured, host),
        "environment": make_table("environment", environment),
    }
    recorded = set(_EXTRA)
    if with_windows and captured.windows:
        detail, detail_recorded = window_tables(captured.windows, to_trace_time)
        tables |= detail
        recorded |= detail_recorded
    if captured.activities:
        _, devices = cupti.number_devices(captured.activities)
        tables["devices"] = make_table("devices", cupti.device_columns(devices))
        recorded |= cupti.recorded_of(captured.activities)
    info = TraceInfo(format="traceprof", profiler="traceprof", host=host, utc_epoch_ns=epoch_ns)
    return make_trace(info, tables, recorded)


def event_tables(
    captured: Captured, to_trace_time: Clock, shown: Callable[[str], str] = masked_name
) -> Iterator[EventTables]:
    """Yield the events of all processes as tables, so many at a time that memory stays bounded.

    ``to_trace_time`` is as in `make_spool_trace`, and ``shown`` gives a name as it may be shown.
    """
    for part in captured.events:
        for block in part.blocks():
            made = {
                "ranges": _ranges(block, to_trace_time, shown),
                "marks": make_table("marks", _named(block, block.marks, to_trace_time, shown)),
                "collectives": _collectives(block, to_trace_time),
                "samples": _samples(_metrics(block, shown), to_trace_time),
            }
            yield {name: table for name, table in made.items() if len(table)}
    numbers, _ = cupti.number_devices(captured.activities)
    for activity in captured.activities:
        yield from cupti.activity_tables(activity, numbers, to_trace_time, shown)


def _columns(rows: Sequence[Any]) -> Sequence[Sequence[Any]]:
    return list(zip(*rows, strict=True)) or [()] * _N_COLUMNS


def _times(rows: Sequence[Any], place: int) -> np.ndarray:
    return np.array([row[place] for row in rows], np.int64)


def _payloads(values: Sequence[Any]) -> np.ndarray:
    numbers = np.array(values)
    if numbers.dtype.kind in "if":
        return numbers.astype(np.float64)
    return np.array([float(one) if isinstance(one, int | float) else np.nan for one in values])


def _names(names: Sequence[Any], shown: Callable[[str], str]) -> Names:
    number: dict[Any, int] = {}
    codes = np.array([number.setdefault(name, len(number)) for name in names], np.int64)
    return Names.coded((shown(storable(str(name))) for name in number), codes, is_sorted=True)


def _named(
    block: EventBlock, rows: Sequence[Any], to_trace_time: Clock, shown: Callable[[str], str]
) -> dict[str, Any]:
    """Return the columns that ranges and marks have alike."""
    starts, _, names, payloads, threads, _ = _columns(rows)
    return {
        "start_ns": to_trace_time(np.array(starts, np.int64)),
        "process": np.full(len(starts), block.pid),
        "thread": threads,
        "domain": Names.repeated(_DOMAIN, len(starts)),
        "name": _names(names, shown),
        "payload": _payloads(payloads),
    }


def _ranges(block: EventBlock, to_trace_time: Clock, shown: Callable[[str], str]) -> Table:
    _, ends, _, _, _, kinds = _columns(block.ranges)
    are_started = (np.array(kinds, object) == "s").astype(np.int64)
    columns = _named(block, block.ranges, to_trace_time, shown)
    columns["end_ns"] = to_trace_time(np.array(ends, np.int64))
    columns["kind"] = Names(are_started, _KINDS)
    return make_table("ranges", columns)


def _collectives(block: EventBlock, to_trace_time: Clock) -> Table:
    rows = block.collectives
    facts = [row[6] for row in rows]
    columns = {
        "start_ns": to_trace_time(_times(rows, 0)),
        "end_ns": to_trace_time(_times(rows, 1)),
        "process": [block.pid] * len(rows),
        "thread": [row[4] for row in rows],
        "op": [collective_op(str(row[2])) or str(row[2]) for row in rows],
        "n_bytes": [row[3] for row in rows],
        "group_size": [fact.get("size", ABSENT) for fact in facts],
        **{name: [fact.get(name, "") for fact in facts] for name in _TEXTS_OF_CALLS},
        **{name: [fact.get(name, ABSENT) for fact in facts] for name in _NUMBERS_OF_CALLS},
    }
    return make_table("collectives", columns)


def _metrics(block: EventBlock, shown: Callable[[str], str]) -> list[Sample]:
    """Return the metrics that the program itself gave."""
    source = f"process:{block.pid}"
    rows = ((row[0], str(row[2]), row[3]) for row in block.marks)
    return [
        Sample(time_ns, source, shown(storable(name.removeprefix(_METRIC))), value)
        for time_ns, name, value in rows
        if name.startswith(_METRIC)
    ]


def _samples(samples: Sequence[Sample], to_trace_time: Clock) -> Table:
    columns = {
        "start_ns": to_trace_time(_times(samples, 0)),
        "source": [sample.source for sample in samples],
        "metric": [sample.metric for sample in samples],
        "value": [float(sample.value) for sample in samples],
    }
    return make_table("samples", columns)


def _processes(captured: Captured, host: str) -> Table:
    records = {record.pid: record for record in captured.processes}
    shown = [records.get(pid, ProcessRecord(pid)) for pid in captured.pids()]
    columns: dict[str, Any] = {
        "process": [record.pid for record in shown],
        "name": [record.command for record in shown],
        "host": [host] * len(shown),
    }
    for name in ("rank", "local_rank", "world_size"):
        numbers = (getattr(record, name) for record in shown)
        columns[name] = [ABSENT if number is None else number for number in numbers]
    return make_table("processes", columns)
