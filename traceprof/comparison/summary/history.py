"""What happened while a run went on, as the program itself told: metrics, epochs, events."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import pandas as pd

from traceprof.errors import TraceError
from traceprof.formats import ReadOptions, open_trace
from traceprof.measures.rows import Floats, Ints, in_order
from traceprof.measures.steps.between import CHECKPOINT, EVALUATION, between_steps
from traceprof.measures.steps.costs import one_off_costs
from traceprof.measures.steps.epochs import epochs_of_loaders
from traceprof.measures.steps.find import find_steps, steps_of_ranks
from traceprof.measures.steps.measured import measured_steps
from traceprof.measures.steps.parts import batches_of_steps
from traceprof.model.ranks import Attempt, Ranks
from traceprof.model.tables import ABSENT
from traceprof.model.timing import OWN_DOMAIN
from traceprof.model.trace import Trace
from traceprof.session.answer import ranks_of_processes

_METRIC: Final = "metric:"
_UPDATE: Final = "optimizer"
_EPOCH: Final = re.compile(r"epoch(?:[\s_#:=.-]*(?P<number>\d+))?", re.IGNORECASE)
_MOST_VALUES: Final = 2_000
_MOST_EVENTS: Final = 500


def history_of_run(ranks: Ranks) -> Mapping[str, pd.DataFrame]:
    """Return the tables metrics, epochs, events and lives of `SUMMARY`, those that are known.

    Times are ns after the start of the recording.
    """
    whole = ranks.whole
    epochs = _epochs(whole)
    tables = {
        "epochs": epochs,
        "metrics": _metrics(whole, epochs),
        "events": _events(whole),
        "lives": _lives(whole),
    }
    return {name: table for name, table in tables.items() if len(table)}


def _epochs(ranks: Ranks) -> pd.DataFrame:
    """Return the epochs, each from where its first rank begins to where its last one ends."""
    table = pd.concat(ranks.each(named_epochs), ignore_index=True)
    if table.empty:
        table = pd.concat([epochs_of_loaders(part).to_frame() for part in ranks], ignore_index=True)
        table = table[["process", "start_ns", "end_ns"]].assign(epoch=np.nan)
    if table.empty:
        return pd.DataFrame()
    table = table.sort_values(["process", "start_ns"], kind="stable")
    counted = table.groupby("process").cumcount().astype(float)
    groups = table.assign(epoch=table["epoch"].fillna(counted)).groupby("epoch")
    first, last = groups["start_ns"].min(), groups["end_ns"].max()
    times = {"at_ns": first - ranks.span.start_ns, "duration_ns": last - first}
    found = pd.DataFrame(times).reset_index()
    found = found.assign(life=0, ranks_count=groups["process"].nunique().to_numpy())
    return _with_steps(ranks, found)


def named_epochs(trace: Trace) -> pd.DataFrame:
    """Return process, epoch (NaN: not said), start_ns and end_ns of the ranges named so."""
    names = trace.ranges.to_frame()["name"].cat
    matches = [_EPOCH.fullmatch(str(name).strip()) for name in names.categories]
    kept = np.flatnonzero(np.array([m is not None for m in matches], bool)[names.codes])
    found = trace.ranges.to_frame().iloc[kept].reset_index(drop=True)
    numbers = [m["number"] for m in (matches[code] for code in names.codes.iloc[kept]) if m]
    said = pd.Series(numbers, dtype=object).astype(np.float64)
    own = found["payload"].where(found["domain"] == OWN_DOMAIN).astype(np.float64)
    return found[["process", "start_ns", "end_ns"]].assign(epoch=said.fillna(own))


def _with_steps(ranks: Ranks, epochs: pd.DataFrame) -> pd.DataFrame:
    """Return the epochs with how many steps and samples began in each."""
    if not len(steps_of_ranks(ranks)):
        return epochs
    steps = measured_steps(ranks).table.to_frame()
    starts = steps["host_at_ns"].to_numpy(np.int64)
    counts, samples = [], []
    for row in epochs.to_dict("records"):
        begin = int(row["at_ns"])
        inside = (starts >= begin) & (starts < begin + int(row["duration_ns"]))
        own = steps[inside]
        counts.append(int(own["step"].nunique()))
        samples.append(own["samples_count"].sum(min_count=1) if "samples_count" in own else np.nan)
    return epochs.assign(steps_count=counts, samples_count=samples)


def _metrics(ranks: Ranks, epochs: pd.DataFrame) -> pd.DataFrame:
    """Return what the program noted by `traceprof.metric`; of long runs every so many values."""
    zero, numbers = ranks.span.start_ns, ranks_of_processes(ranks)
    rows = pd.concat(ranks.each(_noted_metrics), ignore_index=True)
    table = pd.DataFrame(
        {
            "metric": [str(name).removeprefix(_METRIC) for name in rows["name"]],
            "life": 0,
            "process": rows["process"],
            "rank": [numbers.get(int(process), np.nan) for process in rows["process"]],
            "at_ns": rows["start_ns"].astype(np.int64) - zero,
            "value": rows["payload"],
        }
    )
    if table.empty:
        return table
    table = _thinned(table)
    at = table["at_ns"].to_numpy(np.int64)
    table["step"] = _steps_before(ranks, table["process"].to_numpy(np.int64), at)
    table["epoch"] = _epochs_before(epochs, at)
    table["scope"] = np.where(table["rank"].isna(), "run", "rank")
    return table.drop(columns="process")


def _noted_metrics(trace: Trace) -> pd.DataFrame:
    marks = trace.marks.to_frame()
    named = [str(name) for name in marks["name"].cat.categories]
    is_metric = np.array([name.startswith(_METRIC) for name in named] + [False], bool)
    kept = is_metric[marks["name"].cat.codes.to_numpy()] & (marks["domain"] == OWN_DOMAIN)
    return marks[kept].astype({"name": str, "domain": str})


def _thinned(table: pd.DataFrame) -> pd.DataFrame:
    """Return at most about `_MOST_VALUES` values of each metric and rank, the last among them."""
    groups = table.groupby(["metric", "process"])
    place, size = groups.cumcount(), groups["value"].transform("size")
    every = np.maximum(1, -(-size // _MOST_VALUES))
    return table[((size - 1 - place) % every == 0)].reset_index(drop=True)


def _steps_before(ranks: Ranks, processes: Ints, at: Any) -> Floats:
    """Return after how many steps of its process each instant is; NaN where no steps are known."""
    found = np.full(len(at), np.nan)
    steps, zero = steps_of_ranks(ranks).table.to_frame(), ranks.span.start_ns
    updates = _updates(ranks)
    for process, own in steps.groupby("process"):
        rows = processes == process
        taken = np.sort(_taken_ns(own, updates.get(int(str(process))))) - zero
        found[rows] = np.searchsorted(taken, at[rows], side="right")
    return found


def _updates(ranks: Ranks) -> dict[int, Ints]:
    """Return when each process had updated its parameters, where our recorder saw it."""
    return {process: ends for own in ranks.each(_updates_of) for process, ends in own.items()}


def _updates_of(trace: Trace) -> dict[int, Ints]:
    return {
        int(str(process)): np.sort(own["end_ns"].to_numpy(np.int64))
        for process, own in of_recorder(trace.ranges.to_frame(), _UPDATE).groupby("process")
    }


def _taken_ns(steps: pd.DataFrame, updates: Ints | None) -> Ints:
    """Return from when on each step counts as taken: its last update, where one is known.

    The next step begins where one ends: what is noted behind the last step of an epoch lies in the
    first one of the next. Without updates a step counts from its start, for what it notes of
    itself it notes before it ends.
    """
    starts = steps["start_ns"].to_numpy(np.int64)
    if updates is None:
        return np.asarray(starts, np.int64)
    place = np.searchsorted(updates, steps["end_ns"].to_numpy(np.int64), side="right") - 1
    last = updates[np.maximum(place, 0)]
    is_own = (place >= 0) & (last >= starts)
    return np.where(is_own, last, starts)


def _epochs_before(epochs: pd.DataFrame, at: Ints) -> Floats:
    """Return after how many epochs each instant is, with the part of one that is under way."""
    if epochs.empty:
        return np.full(len(at), np.nan)
    order = epochs.sort_values("at_ns")
    starts = order["at_ns"].to_numpy(np.int64)
    lengths = np.maximum(1, order["duration_ns"].to_numpy(np.int64))
    place = np.searchsorted(starts, at, side="right") - 1
    known = np.maximum(place, 0)
    part = np.clip((at - starts[known]) / lengths[known], 0, 1)
    return np.asarray(np.where(place < 0, 0.0, known + part), np.float64)


def _events(ranks: Ranks) -> pd.DataFrame:
    """Return start and end of the recording, evaluations, checkpoints, and what is paid once."""
    rows = [
        {"kind": "start", "at_ns": 0, "duration_ns": 0},
        *_between(ranks),
        {"kind": "end", "at_ns": ranks.span.duration_ns, "duration_ns": 0},
    ]
    table = in_order(pd.DataFrame(rows), "at_ns")
    if len(table) > _MOST_EVENTS:
        longest = table["duration_ns"].fillna(0).rank(method="first", ascending=False)
        is_edge = table["kind"].isin(["start", "end"])
        table = table[is_edge | (longest <= _MOST_EVENTS)].reset_index(drop=True)
    return table.assign(life=0, event=np.arange(len(table)))


def _between(ranks: Ranks) -> Iterator[dict[str, Any]]:
    """Yield evaluations and checkpoints between steps, then what else is paid once."""
    zero, numbers = ranks.span.start_ns, ranks_of_processes(ranks)
    tables = [between_steps(part).to_frame() for part in ranks]
    rows = [
        (row, row["cause"], row["end_ns"] - row["start_ns"])
        for table in tables
        for row in table[table["cause"].isin([EVALUATION, CHECKPOINT])].to_dict("records")
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


def _lives(ranks: Ranks) -> pd.DataFrame:
    """Return when each rank was recorded: within its own recording, which is all that is known."""
    zero = ranks.span.start_ns
    rows = []
    for part in ranks:
        for row in part.processes.take(part.processes["rank"] != ABSENT).rows():
            window = part.recordings.get(int(row["process"]), part.span)
            node, rank = str(row["host"]) or part.info.host, int(row["rank"])
            times = {"at_ns": window.start_ns - zero, "end_ns": window.end_ns - zero}
            rows.append({"life": 0, "rank": rank, "node": node, **times, "source": part.info.path})
    return pd.DataFrame(rows)


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
    epochs: pd.DataFrame
    are_numbered: bool
    initialisation: Ints
    saves: Ints
    loads: Ints
    evaluations: Ints
    batches: pd.DataFrame

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
    ranges = trace.ranges.to_frame()
    end_ns = _end_ns(life, ranges, zero)

    def spans(*wanted: str) -> Ints:
        return _spans(of_recorder(ranges, *wanted), zero, end_ns)

    steps = find_steps(trace).table.to_frame()
    work = _spans(steps, zero, end_ns)
    begins = spans("step", "user_step", "forward", "backward", "optimizer")
    epochs, are_numbered = _epochs_of_start(trace, work, zero, end_ns)
    # Where nothing was trained, of all that was loaded.
    batches = (
        batches_of_steps(trace).to_frame()
        if len(steps)
        else of_recorder(trace.marks.to_frame(), "batch")
    )
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
        batches=pd.DataFrame(
            {"at": batches["start_ns"].to_numpy(np.int64) + zero, "size": batches["payload"]}
        ),
    )


def _of_rank(trace: Trace, rank: int) -> Trace:
    """Return the trace with the events of one rank, all where no process says its rank."""
    processes = trace.processes.to_frame()
    own = processes.loc[processes["rank"] == rank, "process"].tolist()
    if not own:
        return trace
    ranges, marks = (
        one[one["process"].isin(own)] for one in (trace.ranges.to_frame(), trace.marks.to_frame())
    )
    return replace(trace, ranges=ranges, marks=marks)


def _end_ns(life: Attempt, ranges: pd.DataFrame, zero: int) -> int:
    """Return when it did something for the last time, as far as that is known.

    Profilers end what was open when a process died with their own end; what began shows how long
    it lived, and may be known better than its end.
    """
    if not len(ranges):
        return life.end_ns
    last_begun, last = (int(ranges[name].max()) + zero for name in ("start_ns", "end_ns"))
    return min(last, max(life.end_ns, last_begun)) if life.end_ns > life.start_ns else last


def _spans(table: pd.DataFrame, zero: int, end_ns: int) -> Ints:
    """Return start and end of each row in ns since 1970, in the order of their starts."""
    found = np.minimum(table[["start_ns", "end_ns"]].to_numpy(np.int64) + zero, end_ns)
    return np.asarray(found[np.argsort(found[:, 0], kind="stable")], np.int64)


def of_recorder(table: pd.DataFrame, *names: str) -> pd.DataFrame:
    """Return the ranges or marks of our recorder that have one of ``names``."""
    is_ours = (table["domain"] == OWN_DOMAIN) & table["name"].isin(names)
    return table[is_ours.to_numpy()]


def _epochs_of_start(trace: Trace, work: Ints, zero: int, end_ns: int) -> tuple[pd.DataFrame, bool]:
    """Return the epochs, from what tells them best: named ranges, samplers, passes over loaders."""
    named = named_epochs(trace)
    if len(named):
        numbers = named["epoch"].fillna(pd.Series(np.arange(len(named), dtype=float)))
        times = named[["start_ns", "end_ns"]] + zero
        return times.assign(epoch=numbers), bool(named["epoch"].notna().all())
    own = of_recorder(trace.marks.to_frame(), "epoch")
    told = own.sort_values("start_ns").drop_duplicates("payload", keep="first")
    if len(told):
        starts = told["start_ns"].to_numpy(np.int64) + zero
        return _until_next(starts, told["payload"].to_numpy(np.float64), work, end_ns), True
    passes = epochs_of_loaders(trace).to_frame()[["start_ns", "end_ns"]] + zero
    epoch = np.arange(len(passes), dtype=float)
    passes["end_ns"] = passes["end_ns"].clip(upper=end_ns)
    return passes.assign(epoch=epoch)[["epoch", "start_ns", "end_ns"]], False


def _until_next(starts: Ints, numbers: Floats, work: Ints, end_ns: int) -> pd.DataFrame:
    """Return the epochs that begin at ``starts``, those in which something was trained."""
    ends = np.append(starts[1:], max(end_ns, int(starts[-1]))) if len(starts) else starts
    begun = np.searchsorted(work[:, 0], starts) if len(work) else np.zeros(len(starts), int)
    ended = np.searchsorted(work[:, 0], ends) if len(work) else begun
    trained = ended > begun
    return pd.DataFrame(
        {"epoch": numbers[trained], "start_ns": starts[trained], "end_ns": ends[trained]}
    )
