"""Extract what the program reported during a run: metrics, epochs, events."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from traceprof.errors import TraceError
from traceprof.formats import ReadOptions, open_trace
from traceprof.measures.compute.utilization import COUNTER, MOVED
from traceprof.measures.rows import Floats, Ints, bounds, ints, rows_by
from traceprof.measures.steps.between import CHECKPOINT, EVALUATION, between_steps
from traceprof.measures.steps.costs import one_off_costs
from traceprof.measures.steps.epochs import epochs_of_loaders, epochs_of_ranks, named_epochs
from traceprof.measures.steps.find import find_steps, steps_of_ranks
from traceprof.measures.steps.measured import measured_steps
from traceprof.measures.steps.parts import batches_of_steps
from traceprof.model.grouping import codes_of, grouped_by, numbered
from traceprof.model.ranks import Attempt, Ranks
from traceprof.model.table import Table, array_of, is_known, objects
from traceprof.model.tables import ABSENT
from traceprof.model.timing import TRACEPROF_DOMAIN
from traceprof.model.trace import Trace
from traceprof.session.answer import ranks_of_processes

_METRIC: Final = "metric:"
_COUNTERS: Final = (f"{_METRIC}{COUNTER}", f"{_METRIC}{MOVED}")
"""Prefix of FLOPs counted by torch, which are not a training metric."""
_MAX_VALUES: Final = 2_000
_MAX_EVENTS: Final = 500


def history_of_run(ranks: Ranks) -> Mapping[str, Table]:
    """Return the non-empty tables metrics, epochs, events and attempts of `SUMMARY`.

    Times are ns after the start of the recording.
    """
    whole = ranks.whole
    epochs = _with_steps(whole, epochs_of_ranks(whole))
    tables = {
        "epochs": epochs,
        "metrics": _metrics(whole, epochs),
        "events": _events(whole),
        "attempts": _lives(whole),
    }
    return {name: table for name, table in tables.items() if len(table)}


def _with_steps(ranks: Ranks, epochs: Table) -> Table:
    """Add the number of steps and samples that began in each epoch."""
    if epochs.empty:
        return epochs
    at_ns = epochs["start_ns"] - ranks.span.start_ns
    epochs = epochs.assign(
        at_ns=at_ns, duration_ns=epochs["end_ns"] - epochs["start_ns"], attempt=0
    )
    if not len(steps_of_ranks(ranks)):
        return epochs
    steps = measured_steps(ranks).table
    starts, batches = steps["host_at_ns"], steps.get("samples_count", np.full(len(steps), np.nan))
    counts, samples = [], []
    for row in epochs.rows():
        inside = (starts >= row["at_ns"]) & (starts < row["at_ns"] + row["duration_ns"])
        counts.append(len(set(steps["step"][inside].tolist())))
        known = batches[inside & ~np.isnan(batches)]
        samples.append(float(known.sum()) if len(known) else np.nan)
    return epochs.assign(steps_count=counts, samples_count=samples)


def _metrics(ranks: Ranks, epochs: Table) -> Table:
    """Return the values of `traceprof.metric`; long series are thinned out."""
    ranks_by_process = ranks_of_processes(ranks)
    rows = _thin_out(Table.stacked(ranks.each(_noted_metrics)))
    if rows.empty:
        return rows
    processes, at_ns = rows["process"], rows["start_ns"] - ranks.span.start_ns
    rank = array_of([ranks_by_process.get(process, np.nan) for process in processes.tolist()])
    return Table(
        {
            "metric": objects(name.removeprefix(_METRIC) for name in rows["name"]),
            "attempt": 0,
            "rank": rank,
            "at_ns": at_ns,
            "value": rows["payload"],
            "step": _steps_before(ranks, processes, at_ns),
            "epoch": _epochs_before(epochs, at_ns),
            "scope": np.where(is_known(rank), "rank", "run").astype(object),
        }
    )


def _noted_metrics(trace: Trace) -> Table:
    """Return the marks of `traceprof.metric` in one trace."""
    names = trace.marks["name"]
    matches = (
        name.startswith(_METRIC) and not name.startswith(_COUNTERS) for name in names.texts
    )
    is_metric = np.fromiter(matches, np.bool_, len(names.texts))
    return trace.marks.take(names.by_text(is_metric) & (trace.marks["domain"] == TRACEPROF_DOMAIN))


def _thin_out(table: Table) -> Table:
    """Keep about `_MAX_VALUES` values of each metric and rank, including the last one."""
    _, groups = grouped_by(table, "name", "process")
    size = groups.counts[groups.number]
    stride = np.maximum(1, -(-size // _MAX_VALUES))
    return table.take((size - 1 - groups.earlier) % stride == 0)


def _steps_before(ranks: Ranks, processes: Ints, at: Any) -> Floats:
    """Return the number of completed steps of the process at each time; NaN if unknown."""
    found = np.full(len(at), np.nan)
    steps, zero = steps_of_ranks(ranks).table, ranks.span.start_ns
    updates = _update_times(ranks)
    for process, step_rows in rows_by(steps, "process").items():
        rows = processes == process
        completed = np.sort(_completion_ns(steps.take(step_rows), updates.get(process))) - zero
        found[rows] = np.searchsorted(completed, at[rows], side="right")
    return found


def _update_times(ranks: Ranks) -> dict[int, Ints]:
    """Return the end times of parameter updates by process, if the recorder saw them."""
    return {
        process: ends
        for by_process in ranks.each(_updates_of)
        for process, ends in by_process.items()
    }


def _updates_of(trace: Trace) -> dict[int, Ints]:
    """Return the sorted end times of parameter updates in one trace, by process."""
    updates = of_recorder(trace.ranges, "optimizer")
    by_process = rows_by(updates, "process")
    return {process: np.sort(updates["end_ns"][rows]) for process, rows in by_process.items()}


def _completion_ns(steps: Table, updates: Ints | None) -> Ints:
    """Return when each step counts as completed: at its last parameter update, if known.

    A step begins at the end of the previous one. A metric noted after the last step of an epoch is
    therefore within the first step of the next epoch. Without updates, a step counts from its
    start, because a program notes the metrics of a step before the step ends.
    """
    starts, ends = bounds(steps)
    if updates is None:
        return starts
    place = np.searchsorted(updates, ends, side="right") - 1
    last = updates[np.maximum(place, 0)]
    return np.where((place >= 0) & (last >= starts), last, starts)


def _epochs_before(epochs: Table, at: Ints) -> Floats:
    """Return the number of epochs completed at each time, with a fraction for the current one."""
    if epochs.empty:
        return np.full(len(at), np.nan)
    starts, lengths = ints(epochs.in_order("at_ns"), "at_ns", "duration_ns")
    lengths = np.maximum(1, lengths)
    place = np.searchsorted(starts, at, side="right") - 1
    known = np.maximum(place, 0)
    part = np.clip((at - starts[known]) / lengths[known], 0, 1)
    return np.asarray(np.where(place < 0, 0.0, known + part), np.float64)


def _events(ranks: Ranks) -> Table:
    """Return start and end of the recording, evaluations, checkpoints, and one-time costs."""
    rows = [
        {"kind": "start", "at_ns": 0, "duration_ns": 0},
        *_between(ranks),
        {"kind": "end", "at_ns": ranks.span.duration_ns, "duration_ns": 0},
    ]
    table = Table.of_rows(rows).in_order("at_ns")
    if len(table) > _MAX_EVENTS:
        is_kept = np.isin(table["kind"], ("start", "end"))
        is_kept[table.order("-duration_ns")[:_MAX_EVENTS]] = True
        table = table.take(is_kept)
    return table.assign(attempt=0, event=np.arange(len(table)))


def _between(ranks: Ranks) -> Iterator[dict[str, Any]]:
    """Yield evaluations and checkpoints between steps, then other one-time costs."""
    zero, ranks_by_process = ranks.span.start_ns, ranks_of_processes(ranks)
    tables = [between_steps(part) for part in ranks]
    rows = [
        (row, row["cause"], row["end_ns"] - row["start_ns"])
        for table in tables
        for row in table.take(np.isin(table["cause"], (EVALUATION, CHECKPOINT))).rows()
    ]
    rows += [
        (row, row["kind"], row["total_ns"])
        for row in one_off_costs(ranks).rows()
        if row["kind"] not in (EVALUATION, CHECKPOINT)
    ]
    for row, kind, duration_ns in rows:
        times = {"at_ns": int(row["start_ns"]) - zero, "duration_ns": int(duration_ns)}
        yield {
            "kind": str(kind),
            **times,
            "rank": ranks_by_process.get(int(row["process"]), np.nan),
        }


def _lives(ranks: Ranks) -> Table:
    """Return the time span of each rank, which is its own recording: no more is known."""
    zero = ranks.span.start_ns
    rows = []
    for part in ranks:
        for row in part.processes.take(part.processes["rank"] != ABSENT).rows():
            window = part.recordings.get(int(row["process"]), part.span)
            rows.append(
                {
                    "attempt": 0,
                    "rank": int(row["rank"]),
                    "node": str(row["host"]) or part.info.host,
                    "at_ns": window.start_ns - zero,
                    "end_ns": window.end_ns - zero,
                    "source": part.info.path,
                }
            )
    return Table.of_rows(rows)


_TABLES: Final = frozenset({"ranges", "marks", "processes", "environment"})


@dataclass(frozen=True, slots=True, eq=False)
class Started:
    """One start of one rank; times are ns since 1970, spans are rows of start and end.

    ``work`` are the spans of its steps. ``begin_ns`` is the start of training, None if it never
    trained. ``epochs`` has epoch, start_ns and end_ns. ``are_numbered``: the program numbered the
    epochs, so the numbers keep their meaning after a restart.
    """

    attempt: Attempt
    work: Ints
    begin_ns: int | None
    end_ns: int
    epochs: Table
    are_numbered: bool
    initialization: Ints
    saves: Ints
    loads: Ints
    evaluations: Ints
    batches: Table

    @property
    def last_work_ns(self) -> int:
        """The end of its last step, evaluation or checkpoint; 0 if there was none."""
        all_spans = (self.work, self.saves, self.evaluations)
        return max((int(spans[:, 1].max()) for spans in all_spans if len(spans)), default=0)


def read_start(attempt: Attempt) -> Started | None:
    """Return one start of a rank; None if its file is unreadable or has no wall-clock time."""
    try:
        trace = open_trace(attempt.path, ReadOptions(tables=_TABLES))
    except TraceError:
        return None
    zero = trace.info.utc_epoch_ns
    if zero is None:
        return None
    trace = _of_rank(trace, attempt.rank)
    ranges = trace.ranges
    end_ns = _end_ns(attempt, ranges, zero)

    def spans(*names: str) -> Ints:
        return _spans(of_recorder(ranges, *names), zero, end_ns)

    begins = spans("step", "user_step", "forward", "backward", "optimizer")
    # Batches that are only evaluated are no work of training.
    steps = find_steps(trace).table.take(slice(None if len(begins) else 0))
    work = _spans(steps, zero, end_ns)
    epochs, are_numbered = _epochs_of_start(trace, work, zero, end_ns)
    # Without steps, all loaded batches count.
    batches = batches_of_steps(trace) if len(steps) else of_recorder(trace.marks, "batch")
    return Started(
        attempt=attempt,
        work=work,
        begin_ns=int(begins[0, 0]) if len(work) else None,
        end_ns=end_ns,
        epochs=epochs,
        are_numbered=are_numbered,
        initialization=spans("init_process_group"),
        saves=spans("checkpoint.save"),
        loads=spans("checkpoint.load"),
        evaluations=spans("eval"),
        batches=Table({"at": batches["start_ns"] + zero, "size": batches["payload"]}),
    )


def _of_rank(trace: Trace, rank: int) -> Trace:
    """Return the events of one rank; all events if no process has this rank."""
    processes = trace.processes["process"][trace.processes["rank"] == rank]
    if not len(processes):
        return trace
    ranges, marks = (
        table.take(np.isin(table["process"], processes)) for table in (trace.ranges, trace.marks)
    )
    return replace(trace, ranges=ranges, marks=marks)


def _end_ns(attempt: Attempt, ranges: Table, zero: int) -> int:
    """Return the time of the last known activity of a start.

    If a process dies, the profiler ends open ranges with its own end. The last start of a range
    shows how long the process lived, and may be more precise than its recorded end.
    """
    if not len(ranges):
        return attempt.end_ns
    last_begun, last = (int(ranges[name].max()) + zero for name in ("start_ns", "end_ns"))
    return min(last, max(attempt.end_ns, last_begun)) if attempt.end_ns > attempt.start_ns else last


def _spans(table: Table, zero: int, end_ns: int) -> Ints:
    """Return start and end of each row in ns since 1970, sorted by start."""
    found = np.minimum(np.column_stack(bounds(table)) + zero, end_ns)
    return np.asarray(found[np.argsort(found[:, 0], kind="stable")], np.int64)


def of_recorder(table: Table, *names: str) -> Table:
    """Return the ranges or marks of the traceprof recorder with one of ``names``."""
    return table.take((table["domain"] == TRACEPROF_DOMAIN) & table["name"].isin(names))


def _epochs_of_start(trace: Trace, work: Ints, zero: int, end_ns: int) -> tuple[Table, bool]:
    """Return the epochs and whether they are numbered, from the most reliable source.

    The sources are named ranges, samplers, and passes over data loaders, in this order.
    """
    named = named_epochs(trace)
    if len(named):
        has_no_number = np.isnan(named["epoch"])
        numbers = np.where(has_no_number, np.arange(len(named)), named["epoch"])
        starts, ends = (times + zero for times in bounds(named))
        epochs = Table({"epoch": numbers, "start_ns": starts, "end_ns": ends})
        return epochs, not has_no_number.any()
    marks = of_recorder(trace.marks, "epoch").in_order("start_ns")
    marks = marks.take(numbered(codes_of(marks["payload"]))[1])  # the first mark of each epoch
    if len(marks):
        return _until_next(marks["start_ns"] + zero, marks["payload"], work, end_ns), True
    starts, ends = (times + zero for times in bounds(epochs_of_loaders(trace)))
    numbers = np.arange(len(starts), dtype=np.float64)
    ends = np.minimum(ends, end_ns)
    return Table({"epoch": numbers, "start_ns": starts, "end_ns": ends}), False


def _until_next(starts: Ints, numbers: Floats, work: Ints, end_ns: int) -> Table:
    """Return the epochs that begin at ``starts`` and contain a step; each lasts until the next."""
    ends = np.append(starts[1:], max(end_ns, int(starts[-1]))) if len(starts) else starts
    begun = np.searchsorted(work[:, 0], starts) if len(work) else np.zeros(len(starts), int)
    ended = np.searchsorted(work[:, 0], ends) if len(work) else begun
    return Table({"epoch": numbers, "start_ns": starts, "end_ns": ends}).take(ended > begun)
