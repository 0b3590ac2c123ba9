"""What one start of one rank did, as its own file tells: steps, epochs, checkpoints, set-up."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import pandas as pd

from traceprof.comparison.summary.history import named_epochs
from traceprof.errors import TraceError
from traceprof.formats import ReadOptions, open_trace
from traceprof.measures.rows import Floats, Ints
from traceprof.measures.steps.epochs import epochs_of_loaders
from traceprof.measures.steps.find import find_steps
from traceprof.measures.steps.parts import batches_of_steps
from traceprof.model.ranks import Attempt
from traceprof.model.timing import OWN_DOMAIN
from traceprof.model.trace import Trace

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
    ranges = trace.ranges
    end_ns = _end_ns(life, ranges, zero)

    def spans(*wanted: str) -> Ints:
        is_wanted = (ranges["domain"] == OWN_DOMAIN) & ranges["name"].isin(wanted)
        return _spans(ranges[is_wanted.to_numpy()], zero, end_ns)

    steps = find_steps(trace).table
    work = _spans(steps, zero, end_ns)
    begins = spans("step", "user_step", "forward", "backward", "optimizer")
    epochs, are_numbered = _epochs(trace, work, zero, end_ns)
    batches = batches_of_steps(trace) if len(steps) else _batches(trace)
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
    processes = trace.processes
    own = processes.loc[processes["rank"] == rank, "process"].tolist()
    if not own:
        return trace
    ranges, marks = (one[one["process"].isin(own)] for one in (trace.ranges, trace.marks))
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


def _batches(trace: Trace) -> pd.DataFrame:
    """Return the marks of all batches, for where nothing was trained."""
    marks = trace.marks
    return marks[((marks["name"] == "batch") & (marks["domain"] == OWN_DOMAIN)).to_numpy()]


def _epochs(trace: Trace, work: Ints, zero: int, end_ns: int) -> tuple[pd.DataFrame, bool]:
    """Return the epochs, from what tells them best: named ranges, samplers, passes over loaders."""
    named = named_epochs(trace)
    if len(named):
        numbers = named["epoch"].fillna(pd.Series(np.arange(len(named), dtype=float)))
        times = named[["start_ns", "end_ns"]] + zero
        return times.assign(epoch=numbers), bool(named["epoch"].notna().all())
    marks = trace.marks
    own = marks[((marks["name"] == "epoch") & (marks["domain"] == OWN_DOMAIN)).to_numpy()]
    told = own.sort_values("start_ns").drop_duplicates("payload", keep="first")
    if len(told):
        starts = told["start_ns"].to_numpy(np.int64) + zero
        return _until_next(starts, told["payload"].to_numpy(np.float64), work, end_ns), True
    passes = epochs_of_loaders(trace)[["start_ns", "end_ns"]] + zero
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
