"""Convert captured data to the tables of a Trace: events, samples, and torch.profiler windows."""

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
_COPIED_COLUMNS: Final = ("start_ns", "end_ns", "process", "thread", "name")
_DOMAIN: Final = "traceprof"
_CALL_TEXTS: Final = ("dtype", "group", "backend")
_CALL_NUMBERS: Final = ("sequence", "group_rank", "peer", "peer_rank", "tag")
_RANGE_KINDS: Final = ("push_pop", "start_end")
_N_COLUMNS: Final = 6
_ALWAYS_RECORDED: Final = ("ranges", "marks", "collectives", "samples", "processes", "environment")
_METRIC_PREFIX: Final = "metric:"


def window_tables(windows: Windows, to_trace_time: Clock) -> tuple[dict[str, Table], set[str]]:
    """Return the tables of all torch.profiler windows, and the names of the recorded tables.

    The GPU tables count as recorded only if the profiler reported a device.
    """
    rows = [_rows(pid, events, to_trace_time) for pid, events in windows]
    thread_tables = [make_threads(events, np.array([pid])) for pid, events in windows]
    threads = stack("threads", thread_tables[::-1])  # the last name of a thread counts
    _, kept = numbered(threads["process"], threads["thread"])
    tables = {
        "host_ops": stack("host_ops", [_host_ops(part) for part in rows]),
        "threads": threads.take(kept),
    }
    devices = stack("devices", [make_devices(events.header) for _, events in windows])
    devices = devices.take(numbered(devices["device"])[1]).in_order("device")
    if len(devices):
        parts = [_device_tables(part) for part in rows]
        tables |= {name: stack(name, [part[name] for part in parts]) for name in parts[0]}
        tables["devices"] = devices
    return tables, set(tables)


def _rows(pid: int, events: KinetoEvents, to_trace_time: Clock) -> kineto.Rows:
    """Return the events of one window as rows on the clock of the trace.

    The process id in the file is that of the PID namespace of its process, not ``pid``.
    """
    rows = kineto.all_rows(events, -events.base_time_ns, kineto.ON_HOST)
    start_ns, end_ns = to_trace_time(rows.start_ns), to_trace_time(rows.end_ns)
    process = np.where(rows.process == rows.host_process, pid, rows.process)
    return replace(rows, start_ns=start_ns, end_ns=end_ns, process=process, host_process=pid)


def _device_tables(rows: kineto.Rows) -> dict[str, Table]:
    """Return the tables of GPU activity and CUDA API calls of one window."""
    return {
        "kernels": kineto.make_kernels(rows.of(*kineto.KERNELS), ReadOptions()),
        "kernel_shapes": kineto.make_kernel_shapes(rows.of(*kineto.KERNELS)),
        "copies": kineto.make_copies(rows.of(*kineto.COPIES)),
        "syncs": kineto.make_syncs(rows.of(*kineto.SYNCS)),
        "api_calls": kineto.make_api_calls(rows.of(*kineto.API_CALLS)),
        "overheads": kineto.make_overheads(rows.of(*kineto.OVERHEADS)),
    }


def _host_ops(rows: kineto.Rows) -> Table:
    """Return the operators and torch's annotations as rows of host_ops.

    The ranges of a recording come from the hooks, so annotations do not become ranges.
    """
    operators = rows.of(*kineto.OPERATORS, *kineto.ANNOTATIONS)
    is_async = operators.named(lambda name: name.startswith(_ASYNC_PREFIXES))
    columns = {
        **{name: getattr(operators, name) for name in _COPIED_COLUMNS},
        "source": np.where(is_async, "async", operators.category.plain()),
        "correlation": operators.number("External id"),
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
    """Return the Trace of the captured data of ``host``, without events (see `event_tables`).

    ``to_trace_time`` converts ns since 1970 to the clock of the trace. ``epoch_ns`` is the
    wall-clock time at time 0 of that clock. ``with_windows`` adds the windows of torch.profiler.
    Without windows the operators count as not recorded.
    """
    environment = {"name": list(facts), "value": list(facts.values())}
    tables: dict[str, Table] = {
        "samples": _samples(captured.samples, to_trace_time),
        "processes": _processes(captured, host),
        "environment": make_table("environment", environment),
    }
    recorded = set(_ALWAYS_RECORDED)
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
    captured: Captured, to_trace_time: Clock, mask_name: Callable[[str], str] = masked_name
) -> Iterator[EventTables]:
    """Yield the events of all processes as tables, in blocks that bound memory use.

    ``to_trace_time`` is the same as for `make_spool_trace`. ``mask_name`` masks the secrets in a
    name.
    """
    for part in captured.events:
        for block in part.blocks():
            tables = {
                "ranges": _ranges(block, to_trace_time, mask_name),
                "marks": make_table(
                    "marks", _common_columns(block, block.marks, to_trace_time, mask_name)
                ),
                "collectives": _collectives(block, to_trace_time),
                "samples": _samples(_metrics(block, mask_name), to_trace_time),
            }
            yield {name: table for name, table in tables.items() if len(table)}
    numbers, _ = cupti.number_devices(captured.activities)
    for activity in captured.activities:
        yield from cupti.activity_tables(activity, numbers, to_trace_time, mask_name)


def _columns(rows: Sequence[Any]) -> Sequence[Sequence[Any]]:
    """Transpose spool rows into columns; empty columns for no rows."""
    return list(zip(*rows, strict=True)) or [()] * _N_COLUMNS


def _times(rows: Sequence[Any], column: int) -> np.ndarray:
    """Return one column of times (ns) of spool rows."""
    return np.array([row[column] for row in rows], np.int64)


def _payloads(values: Sequence[Any]) -> np.ndarray:
    """Return payloads as float64, NaN where a payload is not a number."""
    numbers = np.array(values)
    if numbers.dtype.kind in "if":
        return numbers.astype(np.float64)
    return np.array(
        [float(value) if isinstance(value, int | float) else np.nan for value in values]
    )


def _names(names: Sequence[Any], mask_name: Callable[[str], str]) -> Names:
    """Return names as coded Names, each masked once."""
    codes_by_name: dict[Any, int] = {}
    codes = np.array(
        [codes_by_name.setdefault(name, len(codes_by_name)) for name in names], np.int64
    )
    return Names.coded(
        (mask_name(storable(str(name))) for name in codes_by_name), codes, is_sorted=True
    )


def _common_columns(
    block: EventBlock, rows: Sequence[Any], to_trace_time: Clock, mask_name: Callable[[str], str]
) -> dict[str, Any]:
    """Return the columns that the ranges table and the marks table share."""
    starts, _, names, payloads, threads, _ = _columns(rows)
    return {
        "start_ns": to_trace_time(np.array(starts, np.int64)),
        "process": np.full(len(starts), block.pid),
        "thread": threads,
        "domain": Names.repeated(_DOMAIN, len(starts)),
        "name": _names(names, mask_name),
        "payload": _payloads(payloads),
    }


def _ranges(block: EventBlock, to_trace_time: Clock, mask_name: Callable[[str], str]) -> Table:
    _, ends, _, _, _, kinds = _columns(block.ranges)
    is_start_end = (np.array(kinds, object) == "s").astype(np.int64)
    columns = _common_columns(block, block.ranges, to_trace_time, mask_name)
    columns["end_ns"] = to_trace_time(np.array(ends, np.int64))
    columns["kind"] = Names(is_start_end, _RANGE_KINDS)
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
        **{name: [fact.get(name, "") for fact in facts] for name in _CALL_TEXTS},
        **{name: [fact.get(name, ABSENT) for fact in facts] for name in _CALL_NUMBERS},
    }
    return make_table("collectives", columns)


def _metrics(block: EventBlock, mask_name: Callable[[str], str]) -> list[Sample]:
    """Return the metrics that the program reported with ``traceprof.metric``, as samples."""
    source = f"process:{block.pid}"
    rows = ((row[0], str(row[2]), row[3]) for row in block.marks)
    return [
        Sample(time_ns, source, mask_name(storable(name.removeprefix(_METRIC_PREFIX))), value)
        for time_ns, name, value in rows
        if name.startswith(_METRIC_PREFIX)
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
    """Return the table of processes with events; ABSENT where a rank or size is unknown."""
    records = {record.pid: record for record in captured.processes}
    listed = [records.get(pid, ProcessRecord(pid)) for pid in captured.pids()]
    columns: dict[str, Any] = {
        "process": [record.pid for record in listed],
        "name": [record.command for record in listed],
        "host": [host] * len(listed),
    }
    for name in ("rank", "local_rank", "world_size"):
        numbers = (getattr(record, name) for record in listed)
        columns[name] = [ABSENT if number is None else number for number in numbers]
    return make_table("processes", columns)
