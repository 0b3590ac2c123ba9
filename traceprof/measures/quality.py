"""Reports suspicious data in a recording or run, with the rows that show it.

An empty result means that no problem was found.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import PurePath
from typing import Final

import numpy as np

from traceprof.measures.analyses import Analysis
from traceprof.measures.host.launches import launches_of
from traceprof.measures.lost_work import lost_work
from traceprof.measures.rows import Ints, are_named, bounds, count_within, lengths_of, union_of
from traceprof.measures.steps.completeness import KINDS, lost_launches
from traceprof.measures.steps.find import find_steps
from traceprof.model.activity import Activity
from traceprof.model.grouping import rows_by_values
from traceprof.model.ranks import Ranks
from traceprof.model.results import Note, Result, ResultSpec
from traceprof.model.tables import ABSENT, TABLES
from traceprof.model.trace import DEVICE_TABLES, Trace

_NOTHING_FOUND: Final = Note("No problem was found in the trace.")
_MAX_SHOWN_ROWS: Final = 5
_MAX_SKEW_NS: Final = 1_000_000
_MIN_COLLECTIVES: Final = 3
_FLUSHES: Final = re.compile("flush|buffer", re.IGNORECASE)


SPEC: Final = ResultSpec.of("""
    table suspicions: one row per suspicious finding
    key check: name of the check
    key table: table with the suspicious rows; empty if the finding is about the whole trace
    key number [number]: number of the finding within its check and table, starting at 1
    same message: description
    total rows_count: number of suspicious rows
    same first_rows: first suspicious rows, in the first file that has any
    total duration_ns: total duration, or size of the deviation
    """)


@dataclass(frozen=True, slots=True, eq=False)
class _Suspicion:
    """Suspicious data in one file. ``message`` may use the placeholders n (row count) and rows."""

    check: str
    message: str
    table: str
    rows: Ints
    duration_ns: int | None = None


def measure_quality(ranks: Ranks) -> Result:
    """Return suspicious data in the files of a run and in their clocks."""
    reading = [_row("reading", Note.of("{warning}", warning=text)) for text in ranks.info.warnings]
    found = [row for check in _CHECKS for row in _rows_of_check(ranks, check)]
    rows = [*reading, *found, *_incomplete(ranks), *_clock_skew(ranks)]
    numbers = Counter[tuple[object, object]]()
    for row in rows:
        place = row["check"], row["table"]
        numbers[place] += 1
        row["number"] = numbers[place]
    tables = {"suspicions": SPEC.tables[0].of_rows(rows)}
    return Result("quality", SPEC, tables, notes=() if rows else (_NOTHING_FOUND,))


def _row(check: str, message: Note, duration_ns: int | None = None) -> dict[str, object]:
    """Return a row about the whole run."""
    return {
        "check": check,
        "message": message,
        "table": "",
        "rows_count": 0,
        "first_rows": "",
        "duration_ns": duration_ns,
    }


def _rows_of_check(
    ranks: Ranks, check: Callable[[Trace], Iterator[_Suspicion]]
) -> Iterator[dict[str, object]]:
    """Yield the findings of ``check``, one row for all files with the same message."""
    by_message: dict[tuple[str, str], list[tuple[Trace, _Suspicion]]] = {}
    for part, suspicions in zip(ranks, ranks.each(_checked, check), strict=True):
        for suspicion in suspicions:
            by_message.setdefault((suspicion.table, suspicion.message), []).append(
                (part, suspicion)
            )
    for (table, message), found in by_message.items():
        count = sum(len(suspicion.rows) for _, suspicion in found)
        part, first = found[0]
        durations = [
            suspicion.duration_ns for _, suspicion in found if suspicion.duration_ns is not None
        ]
        shown = list(map(str, first.rows[:_MAX_SHOWN_ROWS].tolist()))
        rows = " ".join(shown)
        yield {
            "check": first.check,
            "message": Note.of(message, n=count, rows=", ".join(shown)),
            "table": table,
            "rows_count": count,
            "first_rows": rows if len(ranks) == 1 else f"{_label(part)}: {rows}",
            "duration_ns": sum(durations) if durations else None,
        }


def _checked(trace: Trace, check: Callable[[Trace], Iterator[_Suspicion]]) -> list[_Suspicion]:
    return [suspicion for suspicion in check(trace) if len(suspicion.rows)]


def _label(part: Trace) -> str:
    """Return the label of a file of a run: its ranks, or its file name if it has no ranks."""
    ranks = part.processes["rank"]
    known = sorted(set(ranks[ranks != ABSENT].tolist()))
    if not known:
        return PurePath(part.info.path).name
    return f"rank {', '.join(map(str, known))}"


def _overlapping(trace: Trace) -> Iterator[_Suspicion]:
    """Find kernels that overlap on one stream. Only branches of a graph may overlap there."""
    rows = np.flatnonzero(trace.kernels["graph_node"] <= 0)
    kernels = trace.kernels.take(rows)
    late = [np.empty(0, np.int64)]
    starts, ends = bounds(kernels)
    lanes = rows_by_values(kernels["process"], kernels["device"], kernels["stream"])
    for places in lanes.values():
        reach = np.maximum.accumulate(ends[places])
        late.append(rows[places[1:][starts[places][1:] < reach[:-1]]])
    yield _Suspicion(
        "overlapping kernels",
        "{n:count} kernels begin before the previous kernel on their stream ends "
        "(expected with programmatic dependent launch)",
        "kernels",
        np.sort(np.concatenate(late)),
    )


def _without_launch(trace: Trace) -> Iterator[_Suspicion]:
    """Find kernels without a recorded launch."""
    if "api_calls" not in trace.recorded or trace.uncut is not None:
        return
    rows = np.flatnonzero(~launches_of(trace, "kernels").is_known)
    yield _Suspicion(
        "kernels without launch",
        "{n:count} kernels have no launch: it is missing, or before the recording began",
        "kernels",
        rows,
    )


def _without_work(trace: Trace) -> Iterator[_Suspicion]:
    """Find launches whose work is missing although the work of later launches was recorded."""
    launches = lost_launches(trace)
    # A window of steps contains only whole steps, so check the whole recording.
    span = trace.whole.span if trace.span.is_of_steps else trace.span
    for place, kind in enumerate(KINDS):
        rows = launches["row"][launches["kind"] == place]
        starts = trace.whole.api_calls["start_ns"][rows]
        rows = rows[(starts >= span.start_ns) & (starts <= span.end_ns)]
        what = {"kernel": "kernels", "graph": "kernels of CUDA graphs"}.get(kind, f"a {kind}")
        text = f"{{n:count}} calls launch {what} that the file does not contain"
        if kind not in ("kernel", "graph"):
            text = f"{{n:count}} calls start {what} that the file does not contain"
        yield _Suspicion("launches without work", text, "api_calls", rows)


def _incomplete(ranks: Ranks) -> Iterator[dict[str, object]]:
    """Yield rows on other signs of missing work: passes without launches, versions, power."""
    lost = lost_work(ranks)
    if lost is not None:
        others = (
            note
            for note in lost.what
            if not {"phase", "thin", "is_idle_unknown"}.isdisjoint(note.values)
        )
        yield from (_row("work missing", note) for note in (*others, *lost.causes))


def _odd_times(trace: Trace) -> Iterator[_Suspicion]:
    """Find rows with a negative start, and device work without a duration."""
    for name, table in TABLES.items():
        if table.has_times:
            rows = np.flatnonzero(trace.table(name)["start_ns"] < 0)
            yield _Suspicion(
                "negative times", f"{{n:count}} {name} have a negative start time", name, rows
            )
    for name in DEVICE_TABLES:
        rows = np.flatnonzero(lengths_of(trace.table(name)) <= 0)
        yield _Suspicion("no duration", f"{{n:count}} {name} have no duration", name, rows)


def _profiler_work(trace: Trace) -> Iterator[_Suspicion]:
    """Find profiler flushes between the first and last device work; later ones disturb nothing."""
    work = [bounds(trace.table(name)) for name in DEVICE_TABLES if len(trace.table(name))]
    if not work:
        return
    first_start = min(int(starts.min()) for starts, _ in work)
    last_end = max(int(ends.max()) for _, ends in work)
    overheads = trace.overheads
    is_flush = are_named(overheads["name"], _FLUSHES)
    rows = np.flatnonzero(
        is_flush & (overheads["start_ns"] < last_end) & (overheads["end_ns"] > first_start)
    )
    text = "the profiler flushed or requested buffers {n:count} times"
    yield _Suspicion(
        "profiler flush", text, "overheads", rows, union_of(overheads.take(rows)).total_ns
    )


def _idle_steps(trace: Trace) -> Iterator[_Suspicion]:
    """Find steps in which no kernel begins and no call launches a kernel."""
    if trace.kernels.empty:
        return
    launches = launches_of(trace, "kernels")
    launched = launches.start_ns[launches.is_known]
    work = np.sort(
        np.concatenate([trace.kernels["start_ns"], launched, lost_launches(trace)["start_ns"]]),
        kind="stable",
    )
    steps = find_steps(trace).table
    numbers = steps["step"][count_within(work, *bounds(steps)) == 0]
    yield _Suspicion(
        "steps without work", "{n:count} steps have no recorded GPU work: {rows}", "", numbers
    )


def _whole_graphs(trace: Trace) -> Iterator[_Suspicion]:
    """Find CUDA graphs that were recorded without their kernels."""
    rows = np.flatnonzero(trace.kernels["activity"] == Activity.CUDA_GRAPH.value)
    yield _Suspicion(
        "whole graphs",
        "{n:count} CUDA graphs were recorded as a whole, without their kernels; record with "
        f"{trace.info.recorded_by.how_to('graphs')}",
        "kernels",
        rows,
    )


def _without_bytes(trace: Trace) -> Iterator[_Suspicion]:
    """Find copies and collectives without a recorded size."""
    for name in ("copies", "collectives"):
        rows = np.flatnonzero(trace.table(name)["n_bytes"] == ABSENT)
        yield _Suspicion(
            "no size",
            f"{{n:count}} {name} have no recorded size, so they have no bandwidth",
            name,
            rows,
        )


_CHECKS: Final[tuple[Callable[[Trace], Iterator[_Suspicion]], ...]] = (
    *(_overlapping, _without_launch, _without_work, _odd_times, _profiler_work),
    *(_idle_steps, _whole_graphs, _without_bytes),
)


def _clock_skew(ranks: Ranks) -> Iterator[dict[str, object]]:
    """Yield rows on clocks that differ from the first rank's clock by more than `_MAX_SKEW_NS`.

    Collectives end at the same time on all ranks, so a constant difference of the ends is a clock
    offset. The compared clocks are those after alignment of the files; uncorrected files are
    aligned by their wall clocks.
    """
    ends = ranks.each(_collective_ends)
    counts = {len(times) for times in ends}
    if len(ends) < 2 or len(counts) > 1 or min(counts) < _MIN_COLLECTIVES:
        return
    first = _label(ranks.parts[0])
    for part, times in zip(ranks, ends, strict=True):
        skew = int(np.median(times - ends[0]))
        if abs(skew) > _MAX_SKEW_NS:
            side = "ahead of" if skew > 0 else "behind"
            text = f"the clock of {{one}} is {side} the clock of {{first}}"
            yield _row("clock skew", Note.of(text, one=_label(part), first=first), abs(skew))


def _collective_ends(trace: Trace) -> Ints:
    """Return the sorted ends of the communication kernels; empty if the rank has no wall clock."""
    if trace.info.utc_epoch_ns is None:
        return np.empty(0, np.int64)
    communicates = trace.kernels["activity"] == Activity.COMMUNICATION.value
    return np.sort(trace.kernels["end_ns"][communicates], kind="stable")


QUALITY = Analysis(
    "quality",
    SPEC,
    uses=tuple(name for name, table in TABLES.items() if not table.detail_of),
    whole=("api_calls",),
    of_steps=True,
    of_ranks=measure_quality,
)
