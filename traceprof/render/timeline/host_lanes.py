"""The lanes of the host: one group per thread; ranges nested by depth, operators, API calls."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Final

import numpy as np
import pandas as pd

from traceprof.model.tables import ABSENT
from traceprof.model.trace import Trace
from traceprof.names.ranges import PHASES, phases_of_ranges
from traceprof.render.palette import category_index
from traceprof.render.timeline.channels import Row
from traceprof.render.timeline.events import Events, NameTable, make_rows, split_by
from traceprof.values import dataclass

__all__ = ["ThreadLanes", "thread_lanes"]


@dataclass(frozen=True, slots=True)
class _Lane:
    """How one table becomes a lane: from the table, its name column, to a category and a kind."""

    table: str
    name: str
    label: str
    kind: str
    category: str


_LANES: Final = (
    _Lane("ranges", "name", "Ranges", "range", "range"),
    _Lane("marks", "name", "Marks", "mark", "mark"),
    _Lane("collectives", "op", "Collectives", "collective", "communication"),
    _Lane("host_ops", "name", "Operators", "host_op", "host_op"),
    _Lane("api_calls", "name", "CUDA API", "api", "api"),
    _Lane("syncs", "kind", "Waits", "sync", "sync"),
    _Lane("overheads", "name", "Profiler overhead", "overhead", "overhead"),
)


@dataclass(frozen=True, slots=True)
class ThreadLanes:
    """The rows of one thread (ABSENT: not known which); ``weight`` orders threads."""

    process: int
    thread: int
    rows: tuple[Row, ...]
    weight: tuple[int, int, int]


def thread_lanes(trace: Trace, origin_ns: int, names: NameTable) -> list[ThreadLanes]:
    """Return the lanes of every thread that left rows, the most telling threads first."""
    rows: dict[tuple[int, int], list[Row]] = defaultdict(list)
    for lane in _LANES:
        frame = trace.table(lane.table)
        for key, label, part in _parts(lane, frame):
            rows[key].extend(make_rows(label, lane.kind, _events(lane, part, origin_ns, names)))
    threads = [
        ThreadLanes(process, thread, tuple(found), _weight(found))
        for (process, thread), found in rows.items()
    ]
    return sorted(threads, key=lambda t: (t.process, *(-w for w in t.weight), t.thread))


def _parts(lane: _Lane, frame: pd.DataFrame) -> Iterator[tuple[tuple[int, int], str, pd.DataFrame]]:
    """Yield what is drawn as one lane: (process, thread), its label and its rows."""
    threads = _column(frame, "thread")
    extra, labels = _split_within(lane, frame)
    for (process, thread, code), places in split_by(_column(frame, "process"), threads, extra):
        yield (process, thread), labels[code], frame.iloc[places]


def _split_within(lane: _Lane, frame: pd.DataFrame) -> tuple[np.ndarray, Mapping[int, str]]:
    """Return what further divides a thread's rows of one table: the kind or the source."""
    if lane.table == "ranges":
        # A start/end range need not nest in the others: it would shift their depth.
        loose = (frame["kind"] == "start_end").to_numpy().astype(np.int64)
        return loose, {0: lane.label, 1: "Start/end ranges"}
    if lane.table == "host_ops":
        sources = frame["source"].cat
        labels = {i: _source_label(str(name)) for i, name in enumerate(sources.categories)}
        return sources.codes.to_numpy().astype(np.int64), {**labels, ABSENT: lane.label}
    return np.zeros(len(frame), np.int64), {0: lane.label}


def _source_label(source: str) -> str:
    return {"cpu_op": "Operators", "osrt": "System calls", "": "Operators"}.get(source, source)


def _column(frame: pd.DataFrame, name: str) -> np.ndarray:
    if name in frame:
        return np.asarray(frame[name].to_numpy(), np.int64)
    return np.full(len(frame), ABSENT)


def _events(lane: _Lane, frame: pd.DataFrame, origin_ns: int, names: NameTable) -> Events:
    starts = frame["start_ns"].to_numpy() - origin_ns
    ends = frame["end_ns"].to_numpy() - origin_ns if "end_ns" in frame else starts
    return Events(
        starts=starts,
        ends=ends,
        categories=_categories(lane, frame),
        names=names.ids(frame[lane.name].array),
        n_bytes=_column(frame, "n_bytes"),
        correlations=_column(frame, "correlation"),
    )


def _categories(lane: _Lane, frame: pd.DataFrame) -> np.ndarray:
    """Return the category of each row: ranges named after a phase of training have their own."""
    plain = category_index(lane.category)
    if lane.table != "ranges":
        return np.full(len(frame), plain)
    by_phase = [*(category_index(f"range_{phase}") for phase in PHASES), plain]
    return np.array(by_phase, np.int64)[phases_of_ranges(frame)]


def _weight(rows: list[Row]) -> tuple[int, int, int]:
    """Return what makes a thread worth a look: its API calls, its ranges, everything else."""
    count: dict[str, int] = defaultdict(int)
    for row in rows:
        count[row.kind] += sum(len(channel) for channel in row.channels)
    return count["api"], count["range"] + count["collective"], sum(count.values())
