"""What is suspicious in a trace, with the rows that show it. An empty result is a good one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pandas as pd

from traceprof.analysis.base import Analysis
from traceprof.facts.steps.find import find_steps
from traceprof.model.activity import Activity
from traceprof.model.intervals import Intervals
from traceprof.model.run import Run
from traceprof.model.tables import ABSENT, TABLES
from traceprof.model.trace import DEVICE_TABLES, Trace
from traceprof.units import format_duration

__all__ = ["ANALYSIS", "Quality", "Suspicion", "measure_quality", "measure_run_quality"]

_SHOWN_ROWS: Final = 5
_SKEW_LIMIT_NS: Final = 1_000_000
_FEWEST_COLLECTIVES: Final = 3

Rows = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Suspicion:
    """One thing that is suspicious.

    ``rows`` are the numbers of the rows of ``table`` that show it; none where the whole trace
    is meant.
    """

    check: str
    message: str
    table: str
    rows: Rows


@dataclass(frozen=True, slots=True, eq=False)
class Quality:
    """Everything suspicious that was found."""

    suspicions: tuple[Suspicion, ...]
    notes: tuple[str, ...] = ()

    def to_frame(self) -> pd.DataFrame:
        """Return one row for each suspicion: check, message, table, rows_count, first_rows."""
        return pd.DataFrame(
            {
                "check": [one.check for one in self.suspicions],
                "message": [one.message for one in self.suspicions],
                "table": [one.table for one in self.suspicions],
                "rows_count": [len(one.rows) for one in self.suspicions],
                "first_rows": [
                    " ".join(map(str, one.rows[:_SHOWN_ROWS].tolist())) for one in self.suspicions
                ],
            }
        )


def measure_quality(trace: Trace) -> Quality:
    """Return what is suspicious in ``trace``."""
    found = [Suspicion("reading", text, "", _none()) for text in trace.info.warnings]
    for check in _CHECKS:
        found += check(trace)
    return Quality(tuple(found))


def measure_run_quality(run: Run) -> Quality:
    """Return what is suspicious in a run: what is missing, and clocks that disagree."""
    found = [Suspicion("run", text, "", _none()) for text in run.warnings]
    return Quality((*found, *_clock_skew(run)))


def _overlapping(trace: Trace) -> Iterator[Suspicion]:
    """Kernels of one stream run one after another, unless a graph runs its branches there."""
    kernels = trace.kernels
    kernels = kernels[(kernels["graph_node"] <= 0)]
    late: list[Rows] = []
    lanes = kernels.groupby(["process", "device", "stream"], sort=False).indices
    for places in lanes.values():
        starts = kernels["start_ns"].to_numpy()[places]
        reach = np.maximum.accumulate(kernels["end_ns"].to_numpy()[places])
        late.append(kernels.index.to_numpy()[places[1:][starts[1:] < reach[:-1]]])
    rows = np.sort(np.concatenate(late)) if late else _none()
    text = (
        "{} kernels begin before the one before on their stream ends "
        "(programmatic dependent launch does so on purpose)"
    )
    yield from _if_any("overlapping kernels", text, "kernels", rows)


def _without_launch(trace: Trace) -> Iterator[Suspicion]:
    if "api_calls" not in trace.recorded or trace.uncut is not None:
        return
    kernels = trace.kernels
    rows = np.flatnonzero(~kernels["correlation"].isin(trace.api_calls["correlation"]))
    yield from _if_any(
        "kernels without launch",
        "{} kernels were launched before the recording began, or their launch is missing",
        "kernels",
        rows,
    )


def _odd_times(trace: Trace) -> Iterator[Suspicion]:
    for name, table in TABLES.items():
        if table.has_times:
            rows = np.flatnonzero(trace.table(name)["start_ns"] < 0)
            yield from _if_any("negative times", f"{{}} {name} begin before time 0", name, rows)
    for name in DEVICE_TABLES:
        frame = trace.table(name)
        rows = np.flatnonzero(frame["end_ns"] <= frame["start_ns"])
        yield from _if_any("no duration", f"{{}} {name} take no time", name, rows)


def _profiler_work(trace: Trace) -> Iterator[Suspicion]:
    """Flushes between the first and the last device work; one after them disturbs nothing."""
    work = pd.concat([trace.table(name)[["start_ns", "end_ns"]] for name in DEVICE_TABLES])
    overheads = trace.overheads
    is_flush = overheads["name"].astype(str).str.contains("flush|buffer", case=False)
    amid = (overheads["start_ns"] < work["end_ns"].max()) & (
        overheads["end_ns"] > work["start_ns"].min()
    )
    rows = np.flatnonzero(is_flush & amid)
    flushes = overheads.iloc[rows]
    took = Intervals.union_of(flushes["start_ns"].to_numpy(), flushes["end_ns"].to_numpy())
    text = f"the profiler was busy with its buffers {{}} times, {format_duration(took.total_ns)}"
    yield from _if_any("profiler flush", f"{text} in all", "overheads", rows)


def _idle_steps(trace: Trace) -> Iterator[Suspicion]:
    """A step launches work: a kernel begins in it, or a call in it launches one."""
    if trace.kernels.empty:
        return
    launches = trace.api_calls[trace.api_calls["correlation"].isin(trace.kernels["correlation"])]
    work = np.sort(np.concatenate([trace.kernels["start_ns"], launches["start_ns"]]))
    steps = find_steps(trace).table
    first = np.searchsorted(work, steps["start_ns"].to_numpy(np.int64))
    last = np.searchsorted(work, steps["end_ns"].to_numpy(np.int64))
    numbers = steps["step"].to_numpy(np.int64)[first == last]
    names = ", ".join(map(str, numbers[:_SHOWN_ROWS].tolist()))
    text = f"{{}} steps launch no device work: {names}"
    yield from _if_any("steps without work", text, "", numbers)


def _whole_graphs(trace: Trace) -> Iterator[Suspicion]:
    rows = np.flatnonzero(trace.kernels["activity"] == Activity.CUDA_GRAPH.value)
    yield from _if_any(
        "whole graphs",
        "{} CUDA graphs were recorded whole: their kernels cannot be told apart; record with "
        "nsys --cuda-graph-trace=node",
        "kernels",
        rows,
    )


def _without_bytes(trace: Trace) -> Iterator[Suspicion]:
    for name in ("copies", "collectives"):
        rows = np.flatnonzero(trace.table(name)["n_bytes"] == ABSENT)
        text = f"{{}} {name} have no size: no bandwidth is known of them"
        yield from _if_any("no size", text, name, rows)


_CHECKS: Final[tuple[Callable[[Trace], Iterator[Suspicion]], ...]] = (
    _overlapping,
    _without_launch,
    _odd_times,
    _profiler_work,
    _idle_steps,
    _whole_graphs,
    _without_bytes,
)


def _clock_skew(run: Run) -> Iterator[Suspicion]:
    """Collectives end together: ends that differ always by the same time show clocks that do."""
    ends = [_collective_ends(member.trace) for member in run.members]
    counts = {len(times) for times in ends}
    if len(ends) < 2 or len(counts) > 1 or min(counts) < _FEWEST_COLLECTIVES:
        return
    for member, times in zip(run.members, ends, strict=True):
        skew = int(np.median(times - ends[0]))
        if abs(skew) > _SKEW_LIMIT_NS:
            sign = "ahead of" if skew > 0 else "behind"
            text = f"the clock of rank {member.rank} is {format_duration(abs(skew))} {sign} rank"
            yield Suspicion("clock skew", f"{text} {run.members[0].rank}'s", "", _none())


def _collective_ends(trace: Trace) -> Rows:
    """Return when the communication kernels ended, in ns since 1970; none without that clock."""
    if trace.info.utc_epoch_ns is None:
        return _none()
    kernels = trace.kernels[trace.kernels["activity"] == Activity.COMMUNICATION.value]
    ends: Rows = np.sort(kernels["end_ns"].to_numpy(np.int64)) + trace.info.utc_epoch_ns
    return ends


def _if_any(check: str, message: str, table: str, rows: Rows) -> Iterator[Suspicion]:
    if len(rows):
        yield Suspicion(check, message.format(len(rows)), table, rows)


def _none() -> Rows:
    return np.empty(0, np.int64)


ANALYSIS = Analysis(
    name="quality",
    needs=(),
    run=measure_quality,
)
