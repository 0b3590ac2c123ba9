"""From what the hooks left in the work folder to one Trace."""

from __future__ import annotations

import socket
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd

from traceprof.formats.kineto.events import KinetoEvents, read_kineto_events
from traceprof.formats.sqlite.rows import storable
from traceprof.model.collective_names import collective_op
from traceprof.model.tables import ABSENT, make_table
from traceprof.model.trace import Trace, TraceInfo, make_trace
from traceprof.recording.lineage import Family, find_families, with_ranks_of_heads
from traceprof.recording.sampling import Sample
from traceprof.recording.spool_files import (
    Card,
    ProcessEvents,
    read_cards,
    read_children,
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
    """Everything in a work folder, in memory; ``families`` are the ranks and their helpers."""

    cards: Sequence[Card]
    events: Sequence[ProcessEvents]
    windows: Sequence[tuple[int, KinetoEvents]] = ()
    samples: Sequence[Sample] = ()
    families: Sequence[Family] = ()

    @property
    def is_empty(self) -> bool:
        """Whether no process left any event."""
        return not self.events and not self.windows

    def pids(self) -> list[int]:
        """Return the processes that left events."""
        return sorted({part.pid for part in self.events} | {pid for pid, _ in self.windows})

    def of(self, processes: Collection[int]) -> Captured:
        """Return the part of some processes, with the samples of the machine."""
        others = {f"process:{pid}" for family in self.families for pid in family.members}
        others -= {f"process:{pid}" for pid in processes}
        return Captured(
            cards=[card for card in self.cards if card.pid in processes],
            events=[part for part in self.events if part.pid in processes],
            windows=[window for window in self.windows if window[0] in processes],
            samples=[sample for sample in self.samples if sample.source not in others],
            families=[family for family in self.families if family.head in processes],
        )

    def software(self) -> dict[str, str]:
        """Return the versions that the recorded processes told, of the lowest rank first."""
        cards = sorted(self.cards, key=lambda card: -1_000_000 if card.rank is None else -card.rank)
        return {name: value for card in cards for name, value in card.software.items()}

    def first_ns(self) -> int:
        """Return the time of the first event, in ns since 1970."""
        rows = (row[0] for part in self.events for kind in _kinds(part) for row in kind)
        windows = (
            events.base_time_ns + int(events.start_ns.min())
            for _, events in self.windows
            if len(events)
        )
        samples = (sample.time_ns for sample in self.samples)
        return min([*rows, *windows, *samples], default=0)

    def without_samples_outside(self) -> Captured:
        """Return the same with samples only from the time that the events cover."""
        times = [row[place] for part in self.events for row in part.ranges for place in (0, 1)]
        first, last = min(times, default=0), max(times, default=0)
        inside = [sample for sample in self.samples if first <= sample.time_ns <= last]
        return replace(self, samples=inside)


def gather(folder: Path, profiled: Iterable[int] = ()) -> Captured:
    """Return what the processes of a run left in ``folder``.

    ``profiled`` are the processes of which a profiler left something.
    """
    events = list(read_events(folder))
    windows = [(pid, read_kineto_events(path)) for pid, path in window_files(folder)]
    n_events = dict.fromkeys([*profiled, *(pid for pid, _ in windows)], 0)
    n_events |= {part.pid: sum(map(len, _kinds(part))) for part in events}
    cards = read_cards(folder)
    families = find_families(cards, read_children(folder), n_events)
    return Captured(
        cards=with_ranks_of_heads(cards, families),
        events=events,
        windows=windows,
        families=families,
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
        "samples": _samples(captured, to_trace_time),
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
            "domain": [DOMAIN] * len(rows),
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


def _processes(captured: Captured) -> pd.DataFrame:
    cards = {card.pid: card for card in captured.cards}
    shown = [cards.get(pid, Card(pid)) for pid in captured.pids()]
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
