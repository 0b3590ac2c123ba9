"""From what the hooks left in the work folder to one Trace."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd

from traceprof.formats.kineto_events import KinetoEvents, read_kineto_events
from traceprof.model.tables import ABSENT, make_table
from traceprof.model.trace import Trace, TraceInfo, make_trace
from traceprof.recording.spool_files import (
    Card,
    ProcessEvents,
    read_cards,
    read_events,
    window_files,
)
from traceprof.recording.windows import window_tables

__all__ = ["Captured", "gather", "make_spool_trace"]

DOMAIN: Final = "traceprof"
_EXTRA: Final = ("ranges", "marks", "collectives", "samples", "processes", "environment")
_METRIC: Final = "metric:"


@dataclass(frozen=True, slots=True)
class Captured:
    """Everything in a work folder, in memory."""

    cards: Sequence[Card]
    events: Sequence[ProcessEvents]
    windows: Sequence[tuple[int, KinetoEvents]] = ()

    @property
    def is_empty(self) -> bool:
        """Whether no process left any event."""
        return not self.events and not self.windows

    def first_ns(self) -> int:
        """Return the time of the first event, in ns since 1970."""
        rows = (row[0] for part in self.events for kind in _kinds(part) for row in kind)
        windows = (
            events.base_time_ns + int(events.start_ns.min())
            for _, events in self.windows
            if len(events)
        )
        return min([*rows, *windows], default=0)


def gather(folder: Path) -> Captured:
    """Return what the processes of a run left in ``folder``."""
    return Captured(
        cards=read_cards(folder),
        events=list(read_events(folder)),
        windows=[(pid, read_kineto_events(path)) for pid, path in window_files(folder)],
    )


def make_spool_trace(
    captured: Captured,
    to_trace_time: Callable[[np.ndarray], np.ndarray],
    facts: Mapping[str, str],
    epoch_ns: int | None = None,
    *,
    with_windows: bool = False,
) -> Trace:
    """Return the Trace of what was captured.

    Args:
        captured: what the processes left.
        to_trace_time: turns ns since 1970 into the clock of the trace.
        facts: what is known of the machine and the software.
        epoch_ns: the wall clock at time 0 of the trace.
        with_windows: whether windows of the profiler were asked for.
    """
    tables: dict[str, pd.DataFrame] = {
        "ranges": _ranges(captured.events, to_trace_time),
        "marks": _marks(captured.events, to_trace_time),
        "collectives": _collectives(captured.events, to_trace_time),
        "samples": _metrics(captured.events, to_trace_time),
        "processes": _processes(captured),
        "environment": make_table(
            "environment", {"name": list(facts), "value": list(facts.values())}
        ),
    }
    recorded = set(_EXTRA)
    if with_windows:
        detail, detail_recorded = window_tables(captured.windows, to_trace_time)
        tables |= detail
        recorded |= detail_recorded
    info = TraceInfo(
        format="traceprof", profiler="traceprof", host=socket.gethostname(), utc_epoch_ns=epoch_ns
    )
    return make_trace(info, tables, recorded)


def _kinds(part: ProcessEvents) -> Iterable[list[Any]]:
    return part.ranges, part.marks, part.collectives


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
            "domain": [DOMAIN] * len(rows),
            "name": [str(row[2]) for row in rows],
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
            "domain": [DOMAIN] * len(rows),
            "name": [str(row[2]) for row in rows],
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
            "op": [str(row[2]) for row in rows],
            "n_bytes": [row[3] for row in rows],
            "dtype": [fact.get("dtype", "") for fact in facts],
            "group": [fact.get("group", "") for fact in facts],
            "group_size": [fact.get("size", ABSENT) for fact in facts],
            "backend": [fact.get("backend", "") for fact in facts],
            "sequence": [fact.get("sequence", ABSENT) for fact in facts],
        },
    )


def _metrics(
    events: Sequence[ProcessEvents], to_trace_time: Callable[[np.ndarray], np.ndarray]
) -> pd.DataFrame:
    """Return the metrics that the program itself gave, as samples of its process."""
    rows, pids = _of(events, "marks")
    chosen = [
        (row, pid) for row, pid in zip(rows, pids, strict=True) if str(row[2]).startswith(_METRIC)
    ]
    return make_table(
        "samples",
        {
            "start_ns": to_trace_time(_times([row for row, _ in chosen], 0)),
            "source": [f"process:{pid}" for _, pid in chosen],
            "metric": [str(row[2]).removeprefix(_METRIC) for row, _ in chosen],
            "value": _payloads([row for row, _ in chosen]),
        },
    )


def _processes(captured: Captured) -> pd.DataFrame:
    present = {part.pid for part in captured.events} | {pid for pid, _ in captured.windows}
    cards = {card.pid: card for card in captured.cards}
    shown = [cards.get(pid, Card(pid)) for pid in sorted(present)]
    return make_table(
        "processes",
        {
            "process": [card.pid for card in shown],
            "name": [card.command for card in shown],
            "rank": [ABSENT if card.rank is None else card.rank for card in shown],
            "local_rank": [
                ABSENT if card.local_rank is None else card.local_rank for card in shown
            ],
            "world_size": [
                ABSENT if card.world_size is None else card.world_size for card in shown
            ],
            "host": [socket.gethostname()] * len(shown),
        },
    )
