"""What a trace contains, in a few numbers."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any, Final

import pandas as pd

from traceprof.facts.steps.find import find_steps
from traceprof.model.tables import ABSENT, TABLES
from traceprof.model.trace import HOW_TO_RECORD, Trace, TraceInfo
from traceprof.model.window import TimeWindow

__all__ = ["Contents", "DeviceContents", "ProcessContents", "describe"]

SCHEMA: Final = "traceprof.info/1"
_COUNTED: Final = tuple(name for name, table in TABLES.items() if table.has_times)


@dataclass(frozen=True, slots=True)
class DeviceContents:
    """One accelerator, and how many kernels and copies of it are in the trace."""

    device: int
    name: str
    memory_bytes: int | None
    kernels: int
    copies: int


@dataclass(frozen=True, slots=True)
class ProcessContents:
    """One process, and how many API calls, ranges and host operators of it are in the trace."""

    process: int
    name: str
    rank: int | None
    host: str
    api_calls: int
    ranges: int
    host_ops: int


@dataclass(frozen=True, slots=True)
class Contents:
    """What a trace contains. ``rows`` counts the tables; None means not recorded."""

    info: TraceInfo
    span: TimeWindow
    started_utc: str | None
    devices: tuple[DeviceContents, ...]
    n_unused_devices: int
    processes: tuple[ProcessContents, ...]
    rows: dict[str, int | None]
    top_ranges: tuple[tuple[str, int], ...]
    n_steps: int
    step_source: str
    environment: dict[str, str]

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON, with what would record the tables that are missing."""
        missing = {name: HOW_TO_RECORD[name] for name, n in self.rows.items() if n is None}
        return {"schema": SCHEMA, **asdict(self), "not_recorded": missing}


def describe(trace: Trace) -> Contents:
    """Return what ``trace`` contains."""
    steps = find_steps(trace)
    used = trace.devices[trace.devices["used"] == 1]
    return Contents(
        info=trace.info,
        span=trace.span,
        started_utc=_started(trace),
        devices=_devices(trace, used),
        n_unused_devices=len(trace.devices) - len(used),
        processes=_processes(trace),
        rows={
            name: len(trace.table(name)) if name in trace.recorded else None for name in _COUNTED
        },
        top_ranges=tuple(
            (str(name), int(count))
            for name, count in trace.ranges["name"].value_counts().head(8).items()
            if count
        ),
        n_steps=len(steps),
        step_source=steps.source,
        environment=dict(zip(trace.environment["name"], trace.environment["value"], strict=True)),
    )


def _started(trace: Trace) -> str | None:
    epoch_ns = trace.info.utc_epoch_ns
    if epoch_ns is None:
        return None
    seconds = (epoch_ns + trace.span.start_ns) // 1_000_000_000
    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")


def _devices(trace: Trace, used: pd.DataFrame) -> tuple[DeviceContents, ...]:
    columns = (used["device"].tolist(), used["name"].tolist(), used["memory_bytes"].tolist())
    return tuple(
        DeviceContents(
            device,
            name,
            None if memory_bytes == ABSENT else memory_bytes,
            int((trace.kernels["device"] == device).sum()),
            int((trace.copies["device"] == device).sum()),
        )
        for device, name, memory_bytes in zip(*columns, strict=True)
    )


def _processes(trace: Trace) -> tuple[ProcessContents, ...]:
    counts = {
        name: trace.table(name)["process"].value_counts()
        for name in ("api_calls", "ranges", "host_ops")
    }
    columns = (trace.processes[name].tolist() for name in ("process", "name", "rank", "host"))
    found = [
        ProcessContents(
            process,
            name,
            None if rank == ABSENT else rank,
            host,
            *(int(counted.get(process, 0)) for counted in counts.values()),
        )
        for process, name, rank, host in zip(*columns, strict=True)
    ]
    return tuple(sorted(found, key=lambda p: -(p.api_calls + p.ranges + p.host_ops)))
