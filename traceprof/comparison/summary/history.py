"""What happened while a run went on, as the program itself told: metrics, epochs, events."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from traceprof.errors import TraceError
from traceprof.formats import ReadOptions, open_trace
from traceprof.measures.compute.utilisation import COUNTER
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
from traceprof.model.timing import OWN_DOMAIN
from traceprof.model.trace import Trace
from traceprof.session.answer import ranks_of_processes

_METRIC: Final = "metric:"
_FLOP_COUNTER: Final = f"{_METRIC}{COUNTER}"
"""FLOPs that torch counted are no metric of the training."""
_UPDATE: Final = "optimizer"
_MAX_VALUES: Final = 2_000
_MAX_EVENTS: Final = 500


def history_of_run(ranks: Ranks) -> Mapping[str, Table]:
    """Return the tables metrics, epochs, events and lives of `SUMMARY`, those that are known.

    Times are ns after the start of the recording.
    """
    whole = ranks.whole
    epochs = _with_steps(whole, epochs_of_ranks(whole))
    tables = {
        "epochs": epochs,
        "metrics": _metrics(whole, epochs),
        "events": _events(whole),
        "lives": _lives(whole),
    }
    return {name: table for name, table in tables.items() if len(table)}


def _with_steps(ranks: Ranks, epochs: Table) -> Table:
    """Return the epochs with how many steps and samples began in each."""
    if epochs.empty:
        return epochs
    at_ns = epochs["start_ns"] - ranks.span.start_ns
    epochs = epochs.assign(at_ns=at_ns, duration_ns=epochs["end_ns"] - epochs["start_ns"], life=0)
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
    """Return what the program noted by `traceprof.metric`; of long runs every so many values."""
    numbers = ranks_of_processes(ranks)
    rows = _thin_out(Table.stacked(ranks.each(_noted_metrics)))
    if rows.empty:
        return rows
    processes, at = rows["process"], rows["start_ns"] - ranks.span.start_ns
    rank = array_of([numbers.get(process, np.nan) for process in processes.tolist()])
    return Table(
        {
            "metric": objects(name.removeprefix(_METRIC) for name in rows["name"]),
            "life": 0,
            "rank": rank,
            "at_ns": at,
            "value": rows["payload"],
            "step": _steps_before(ranks, processes, at),
            "epoch": _epochs_before(epochs, at),
            "scope": np.where(is_known(rank), "rank", "run").astype(object),
        }
    )


def _noted_metrics(trace: Trace) -> Table:
    names = trace.marks["name"]
    matches = (
        name.startswith(_METRIC) and not name.startswith(_FLOP_COUNTER) for name in names.texts
    )
    is_metric = np.fromiter(matches, np.bool_, len(names.texts))
    return trace.marks.take(names.by_text(is_metric) & (trace.marks["domain"] == OWN_DOMAIN))


def _thin_out(table: Table) -> Table:
    """Return at most about `_MOST_VALUES` values of each metric and rank, the last among them."""
    _, groups = grouped_by(table, "name", "process")
    size = groups.counts[groups.number]
    stride = np.maximum(1, -(-size // _MAX_VALUES))
    return table.take((size - 1 - groups.earlier) % stride == 0)


def _steps_before(ranks: Ranks, processes: Ints, at: Any) -> Floats:
    """Return after how many steps of its process each instant is; NaN where no steps are known."""
    found = np.full(len(at), np.nan)
    steps, zero = steps_of_ranks(ranks).table, ranks.span.start_ns
    updates = _update_times(ranks)
    for process, step_rows in rows_by(steps, "process").items():
        rows = processes == process
        completed = np.sort(_completion_ns(steps.take(step_rows), updates.get(process))) - zero
        found[rows] = np.searchsorted(completed, at[rows], side="right")
    return found


def _update_times(ranks: Ranks) -> dict[int, Ints]:
    """Return when each process had updated its parameters, where our recorder saw it."""
    return {
        process: ends
        for by_process in ranks.each(_updates_of)
        for process, ends in by_process.items()
    }


def _updates_of(trace: Trace) -> dict[int, Ints]:
    updates = of_recorder(trace.ranges, _UPDATE)
    by_process = rows_by(updates, "process")
    return {process: np.sort(updates["end_ns"][rows]) for process, rows in by_process.items()}


def _completion_ns(steps: Table, updates: Ints | None) -> Ints:
    """Return from when on each step counts as taken: its last update, where one is known.

    The next step begins where one ends: what is noted behind the last step of an epoch lies in the
    first one of the next. Without updates a step counts from its start, for what it notes of
    itself it notes before it ends.
    """
    starts, ends = bounds(steps)
    if updates is None:
        return starts
    place = np.searchsorted(updates, ends, side="right") - 1
    last = updates[np.maximum(place, 0)]
    is_inside = (place >= 0) & (last >= starts)
    return np.where(is_inside, last, starts)


def _epochs_before(epochs: Table, at: Ints) -> Floats:
    """Return after how many epochs each instant is, with the part of one that is under way."""
    if epochs.empty:
        return np.full(len(at), np.nan)
    starts, lengths = ints(epochs.in_order("at_ns"), "at_ns", "duration_ns")
    lengths = np.maximum(1, lengths)
    place = np.searchsorted(starts, at, side="right") - 1
    known = np.maximum(place, 0)
    part = np.clip((at - starts[known]) / lengths[known], 0, 1)
    return np.asarray(np.where(place < 0, 0.0, known + part), np.float64)


def _events(ranks: Ranks) -> Table:
    """Return start and end of the recording, evaluations, checkpoints, and what is paid once."""
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
    return table.assign(life=0, event=np.arange(len(table)))


def _between(ranks: Ranks) -> Iterator[dict[str, Any]]:
    """Yield evaluations and checkpoints between steps, then what else is paid once."""
    zero, numbers = ranks.span.start_ns, ranks_of_processes(ranks)
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
    for row, kind, length in rows:
        times = {"at_ns": int(row["start_ns"]) - zero, "duration_ns": int(length)}
        rank = numbers.get(int(row["process"]), np.nan)
        yield {"kind": str(kind), **times, "rank": rank}


def _lives(ranks: Ranks) -> Table:
    """Return when each rank was recorded: within its own recording, which is all that is known."""
    zero = ranks.span.start_ns
    rows = []
    for part in ranks:
        for row in part.processes.take(part.processes["rank"] != ABSENT).rows():
            window = part.recordings.get(int(row["process"]), part.span)
            node, rank = str(row["host"]) or part.info.host, int(row["rank"])
            times = {"at_ns": window.start_ns - zero, "end_ns": window.end_ns - zero}
            rows.append({"life": 0, "rank": rank, "node": node, **times, "source": part.info.path})
    return Table.of_rows(rows)


_TABLES: Final = frozenset({"ranges", "marks", "processes", "environment"})


@dataclass(frozen=True, slots=True, eq=False)
class Started:
    """One start of one rank; times are ns since 1970, spans are rows of start and end.

    ``work`` are its steps, ``begin_ns`` is when it began to train, None where it never did.
    ``epochs`` has number, start_ns and end_ns; ``are_numbered`` tells that the program gave the
    numbers, so that they mean the same after a restart.
    """

    life: Attempt
    work: Ints
    begin_ns: int | None
    end_ns: int
    epochs: Table
    are_numbered: bool
    initialisation: Ints
    saves: Ints
    loads: Ints
    evaluations: Ints
    batches: Table

    @property
    def last_work_ns(self) -> int:
        """When its last step, evaluation or checkpoint ended; 0: there was none."""
        every = (self.work, self.saves, self.evaluations)
        return max((int(spans[:, 1].max()) for spans in every if len(spans)), default=0)


def read_start(life: Attempt) -> Started | None:
    """Return what one start of a rank did; None where its file is gone or tells no wall time."""
    try:
        trace = open_trace(life.path, ReadOptions(tables=_TABLES))
    except TraceError:
        return None
    zero = trace.info.utc_epoch_ns
    if zero is None:
        return None
    trace = _of_rank(trace, life.rank)
    ranges = trace.ranges
    end_ns = _end_ns(life, ranges, zero)

    def spans(*wanted: str) -> Ints:
        return _spans(of_recorder(ranges, *wanted), zero, end_ns)

    steps = find_steps(trace).table
    work = _spans(steps, zero, end_ns)
    begins = spans("step", "user_step", "forward", "backward", "optimizer")
    epochs, are_numbered = _epochs_of_start(trace, work, zero, end_ns)
    # Where nothing was trained, of all that was loaded.
    batches = batches_of_steps(trace) if len(steps) else of_recorder(trace.marks, "batch")
    return Started(
        life=life,
        work=work,
        begin_ns=int(begins[0, 0]) if len(work) else None,
        end_ns=end_ns,
        epochs=epochs,
        are_numbered=are_numbered,
        initialisation=spans("init_process_group"),
        saves=spans("checkpoint.save"),
        loads=spans("checkpoint.load"),
        evaluations=spans("eval"),
        batches=Table({"at": batches["start_ns"] + zero, "size": batches["payload"]}),
    )


def _of_rank(trace: Trace, rank: int) -> Trace:
    """Return the trace with the events of one rank, all where no process says its rank."""
    processes = trace.processes["process"][trace.processes["rank"] == rank]
    if not len(processes):
        return trace
    ranges, marks = (
        table.take(np.isin(table["process"], processes)) for table in (trace.ranges, trace.marks)
    )
    return replace(trace, ranges=ranges, marks=marks)


def _end_ns(life: Attempt, ranges: Table, zero: int) -> int:
    """Return when it did something for the last time, as far as that is known.

    Profilers end what was open when a process died with their own end; what began shows how long
    it lived, and may be known better than its end.
    """
    if not len(ranges):
        return life.end_ns
    last_begun, last = (int(ranges[name].max()) + zero for name in ("start_ns", "end_ns"))
    return min(last, max(life.end_ns, last_begun)) if life.end_ns > life.start_ns else last


def _spans(table: Table, zero: int, end_ns: int) -> Ints:
    """Return start and end of each row in ns since 1970, in the order of their starts."""
    found = np.minimum(np.column_stack(bounds(table)) + zero, end_ns)
    return np.asarray(found[np.argsort(found[:, 0], kind="stable")], np.int64)


def of_recorder(table: Table, *names: str) -> Table:
    """Return the ranges or marks of our recorder that have one of ``names``."""
    return table.take((table["domain"] == OWN_DOMAIN) & table["name"].isin(names))


def _epochs_of_start(trace: Trace, work: Ints, zero: int, end_ns: int) -> tuple[Table, bool]:
    """Return the epochs, from what tells them best: named ranges, samplers, passes over loaders."""
    named = named_epochs(trace)
    if len(named):
        numbered_epochs = named["epoch"]
        numbers = np.where(np.isnan(numbered_epochs), np.arange(len(named)), numbered_epochs)
        starts, ends = (times + zero for times in bounds(named))
        epochs = Table({"epoch": numbers, "start_ns": starts, "end_ns": ends})
        return epochs, not np.isnan(numbered_epochs).any()
    times = of_recorder(trace.marks, "epoch").in_order("start_ns")
    first_marks = times.take(numbered(codes_of(times["payload"]))[1])
    if len(first_marks):
        return _until_next(
            first_marks["start_ns"] + zero, first_marks["payload"], work, end_ns
        ), True
    starts, ends = (times + zero for times in bounds(epochs_of_loaders(trace)))
    numbers = np.arange(len(starts), dtype=np.float64)
    ends = np.minimum(ends, end_ns)
    return Table({"epoch": numbers, "start_ns": starts, "end_ns": ends}), False


def _until_next(starts: Ints, numbers: Floats, work: Ints, end_ns: int) -> Table:
    """Return the epochs that begin at ``starts``, those in which something was trained."""
    ends = np.append(starts[1:], max(end_ns, int(starts[-1]))) if len(starts) else starts
    begun = np.searchsorted(work[:, 0], starts) if len(work) else np.zeros(len(starts), int)
    ended = np.searchsorted(work[:, 0], ends) if len(work) else begun
    trained = ended > begun
    return Table({"epoch": numbers, "start_ns": starts, "end_ns": ends}).take(trained)
