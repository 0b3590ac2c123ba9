"""The Trace of what was captured: ranges, marks, collectives, samples and the rest as tables."""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np
import pandas as pd

from traceprof.model.collective_names import collective_op
from traceprof.model.tables import ABSENT, make_table
from traceprof.model.text import storable
from traceprof.model.trace import Trace, TraceInfo, make_trace
from traceprof.recording.gathering.captured import Captured
from traceprof.recording.gathering.windows import window_tables
from traceprof.recording.sampling.sampler import Sample
from traceprof.recording.spool import ProcessEvents, ProcessRecord

__all__ = ["make_spool_trace"]

_DOMAIN: Final = "traceprof"
_EXTRA: Final = ("ranges", "marks", "collectives", "samples", "processes", "environment")
_METRIC: Final = "metric:"


def make_spool_trace(
    captured: Captured,
    to_trace_time: Callable[[np.ndarray], np.ndarray],
    facts: Mapping[str, str],
    epoch_ns: int | None = None,
    host: str = "",
    *,
    with_windows: bool = False,
) -> Trace:
    """Return the Trace of what was captured.

    Args:
        captured: what the processes left.
        to_trace_time: turns ns since 1970 into the clock of the trace.
        facts: what is known of the machine and the software.
        epoch_ns: the wall clock at time 0 of the trace.
        host: where it was captured; by default here.
        with_windows: whether windows of the profiler were asked for.
    """
    host = host or socket.gethostname()
    tables: dict[str, pd.DataFrame] = {
        "ranges": _ranges(captured.events, to_trace_time),
        "marks": _marks(captured.events, to_trace_time),
        "collectives": _collectives(captured.events, to_trace_time),
        "samples": _samples(captured, to_trace_time),
        "processes": _processes(captured, host),
        "environment": make_table(
            "environment", {"name": list(facts), "value": list(facts.values())}
        ),
    }
    recorded = set(_EXTRA)
    if with_windows:
        detail, detail_recorded = window_tables(captured.windows, to_trace_time)
        tables |= detail
        recorded |= detail_recorded
    info = TraceInfo(format="traceprof", profiler="traceprof", host=host, utc_epoch_ns=epoch_ns)
    return make_trace(info, tables, recorded)


def _times(rows: Sequence[Any], place: int) -> np.ndarray:
    return np.array([row[place] for row in rows], np.int64)


def _of(events: Sequence[ProcessEvents], kind: str) -> tuple[list[Any], list[int]]:
    rows: list[Any] = []
    pids: list[int] = []
    for part in events:
        rows += getattr(part, kind)
        pids += [part.pid] * len(getattr(part, kind))
    return rows, pids


def _payloads(rows: Sequence[Any]) -> list[float]:
    return [float(row[3]) if isinstance(row[3], int | float) else np.nan for row in rows]


def _ranges(
    events: Sequence[ProcessEvents], to_trace_time: Callable[[np.ndarray], np.ndarray]
) -> pd.DataFrame:
    rows, pids = _of(events, "ranges")
    return make_table(
        "ranges",
        {
            "start_ns": to_trace_time(_times(rows, 0)),
            "end_ns": to_trace_time(_times(rows, 1)),
            "process": pids,
            "thread": [row[4] for row in rows],
            "domain": [_DOMAIN] * len(rows),
            "name": [storable(str(row[2])) for row in rows],
            "payload": _payloads(rows),
            "kind": ["start_end" if row[5] == "s" else "push_pop" for row in rows],
        },
    )


def _marks(
    events: Sequence[ProcessEvents], to_trace_time: Callable[[np.ndarray], np.ndarray]
) -> pd.DataFrame:
    rows, pids = _of(events, "marks")
    return make_table(
        "marks",
        {
            "start_ns": to_trace_time(_times(rows, 0)),
            "process": pids,
            "thread": [row[4] for row in rows],
            "domain": [_DOMAIN] * len(rows),
            "name": [storable(str(row[2])) for row in rows],
            "payload": _payloads(rows),
        },
    )


def _collectives(
    events: Sequence[ProcessEvents], to_trace_time: Callable[[np.ndarray], np.ndarray]
) -> pd.DataFrame:
    rows, pids = _of(events, "collectives")
    facts = [row[6] for row in rows]
    return make_table(
        "collectives",
        {
            "start_ns": to_trace_time(_times(rows, 0)),
            "end_ns": to_trace_time(_times(rows, 1)),
            "process": pids,
            "thread": [row[4] for row in rows],
            "op": [collective_op(str(row[2])) or str(row[2]) for row in rows],
            "n_bytes": [row[3] for row in rows],
            "dtype": [fact.get("dtype", "") for fact in facts],
            "group": [fact.get("group", "") for fact in facts],
            "group_size": [fact.get("size", ABSENT) for fact in facts],
            "backend": [fact.get("backend", "") for fact in facts],
            **{
                name: [fact.get(name, ABSENT) for fact in facts]
                for name in ("sequence", "group_rank", "peer", "peer_rank", "tag")
            },
        },
    )


def _samples(captured: Captured, to_trace_time: Callable[[np.ndarray], np.ndarray]) -> pd.DataFrame:
    """Return the counters of the machine and the metrics that the program itself gave."""
    rows, pids = _of(captured.events, "marks")
    metrics = [
        Sample(row[0], f"process:{pid}", storable(row[2].removeprefix(_METRIC)), row[3])
        for row, pid in zip(rows, pids, strict=True)
        if str(row[2]).startswith(_METRIC)
    ]
    samples = [*captured.samples, *metrics]
    return make_table(
        "samples",
        {
            "start_ns": to_trace_time(_times(samples, 0)),
            "source": [sample.source for sample in samples],
            "metric": [sample.metric for sample in samples],
            "value": [float(sample.value) for sample in samples],
        },
    )


def _processes(captured: Captured, host: str) -> pd.DataFrame:
    records = {record.pid: record for record in captured.processes}
    shown = [records.get(pid, ProcessRecord(pid)) for pid in captured.pids()]
    return make_table(
        "processes",
        {
            "process": [record.pid for record in shown],
            "name": [record.command for record in shown],
            "rank": [ABSENT if record.rank is None else record.rank for record in shown],
            "local_rank": [
                ABSENT if record.local_rank is None else record.local_rank for record in shown
            ],
            "world_size": [
                ABSENT if record.world_size is None else record.world_size for record in shown
            ],
            "host": [host] * len(shown),
        },
    )
