"""What one start of one rank did, as its own file tells: steps, epochs, checkpoints, set-up."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pandas as pd

from traceprof.errors import TraceError
from traceprof.formats import ReadOptions, open_trace
from traceprof.model.run import Life
from traceprof.model.steps import OWN_DOMAIN

__all__ = ["EPOCH", "Started", "read_start"]

EPOCH: Final = re.compile(r"epoch(?:[\s_#:=.-]*(?P<number>\d+))?", re.IGNORECASE)
_TABLES: Final = frozenset({"ranges", "marks", "processes", "environment"})
_Times = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Started:
    """One start of one rank; times are ns since 1970, spans are rows of start and end.

    ``work`` are its steps, ``begin_ns`` is when it began to train, None where it never did.
    ``epochs`` has number, start_ns and end_ns; ``are_numbered`` tells that the program gave the
    numbers, so that they mean the same after a restart.
    """

    life: Life
    work: _Times
    begin_ns: int | None
    end_ns: int
    epochs: pd.DataFrame
    are_numbered: bool
    initialisation: _Times
    saves: _Times
    loads: _Times
    evaluations: _Times
    batches: pd.DataFrame

    @property
    def last_work_ns(self) -> int:
        """When its last step, evaluation or checkpoint ended; 0: there was none."""
        every = (self.work, self.saves, self.evaluations)
        return max((int(spans[:, 1].max()) for spans in every if len(spans)), default=0)


def read_start(life: Life) -> Started | None:
    """Return what one start of a rank did; None where its file is gone or tells no wall time."""
    try:
        trace = open_trace(life.path, ReadOptions(tables=_TABLES))
    except TraceError:
        return None
    zero = trace.info.utc_epoch_ns
    if zero is None:
        return None
    processes = trace.processes
    ranked = processes.loc[processes["rank"] == life.rank, "process"].tolist()
    ranges, marks = trace.ranges, trace.marks
    if ranked:
        ranges, marks = (one[one["process"].isin(ranked)] for one in (ranges, marks))
    of_ours = (ranges["domain"] == OWN_DOMAIN).to_numpy()

    def spans(*wanted: str) -> _Times:
        rows = ranges[of_ours & ranges["name"].isin(wanted).to_numpy()]
        found = np.stack([rows["start_ns"], rows["end_ns"]], axis=1).astype(np.int64) + zero
        # Profilers end what was open when a process died with their own end.
        found = np.minimum(found, life.end_ns) if life.end_ns > life.start_ns else found
        return np.asarray(found[np.argsort(found[:, 0], kind="stable")], np.int64)

    work = _work(spans("user_step"), spans("step"), spans("optimizer"))
    begins = spans("step", "user_step", "forward", "backward", "optimizer")
    end_ns = min(int(ranges["end_ns"].max()) + zero, life.end_ns) if len(ranges) else life.end_ns
    epochs, are_numbered = _epochs(ranges, marks, work, zero, end_ns)
    batches = _of_steps(marks[(marks["name"] == "batch").to_numpy()], work - zero)
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


def _work(named: _Times, found: _Times, optimizer: _Times) -> _Times:
    """Return the steps: those that the program names, else those that were found.

    A process that was killed leaves its last step open, but not the work of its optimizer.
    """
    if len(named):
        return named
    last = int(found[-1, 1]) if len(found) else 0
    rest = optimizer[optimizer[:, 0] >= last]
    if len(found) and len(rest):
        rest = np.array([[rest[0, 0], rest[-1, 1]]], np.int64)
    return np.concatenate([found, rest]) if len(rest) else found


def _of_steps(batches: pd.DataFrame, work: _Times) -> pd.DataFrame:
    """Return the batches that were fetched in a step; all where none was, as without a loader."""
    at = batches["start_ns"].to_numpy(np.int64)
    place = np.searchsorted(work[:, 0], at, side="right") - 1
    ends = work[np.maximum(place, 0), 1] if len(work) else np.zeros(len(at), np.int64)
    inside = (place >= 0) & (at < ends)
    return batches[inside] if inside.any() else batches


def _epochs(
    ranges: pd.DataFrame, marks: pd.DataFrame, work: _Times, zero: int, end_ns: int
) -> tuple[pd.DataFrame, bool]:
    """Return the epochs, from what tells them best: named ranges, samplers, loaders begun anew."""
    named = _named(ranges, zero)
    if len(named):
        return named, bool(named["is_numbered"].all())
    own = marks[((marks["name"] == "epoch") & (marks["domain"] == OWN_DOMAIN)).to_numpy()]
    told = own.sort_values("start_ns").drop_duplicates("payload", keep="first")
    if len(told):
        starts = told["start_ns"].to_numpy(np.int64) + zero
        return _until_next(starts, told["payload"].to_numpy(np.float64), work, end_ns), True
    again = ranges[(ranges["name"] == "data.start").to_numpy()]
    starts = np.sort(again["start_ns"].to_numpy(np.int64)) + zero
    return _until_next(starts, np.full(len(starts), np.nan), work, end_ns), False


def _named(ranges: pd.DataFrame, zero: int) -> pd.DataFrame:
    rows: list[dict[str, Any]] = []
    known = [name for name in map(str, ranges["name"].unique()) if EPOCH.fullmatch(name)]
    for row in ranges[ranges["name"].isin(known).to_numpy()].to_dict("records"):
        found = EPOCH.fullmatch(str(row["name"]))
        number = found["number"] if found else None
        payload = row["payload"] if row["domain"] == OWN_DOMAIN else np.nan
        value = float(number) if number else float(payload)
        rows.append(
            {
                "epoch": value if np.isfinite(value) else float(len(rows)),
                "start_ns": int(row["start_ns"]) + zero,
                "end_ns": int(row["end_ns"]) + zero,
                "is_numbered": bool(np.isfinite(value)),
            }
        )
    return pd.DataFrame(rows, columns=["epoch", "start_ns", "end_ns", "is_numbered"])


def _until_next(
    starts: _Times, numbers: npt.NDArray[np.float64], work: _Times, end_ns: int
) -> pd.DataFrame:
    """Return the epochs that begin at ``starts``, those in which something was trained."""
    ends = np.append(starts[1:], max(end_ns, int(starts[-1]))) if len(starts) else starts
    begun = np.searchsorted(work[:, 0], starts) if len(work) else np.zeros(len(starts), int)
    ended = np.searchsorted(work[:, 0], ends) if len(work) else begun
    trained = ended > begun
    found = pd.DataFrame(
        {"epoch": numbers[trained], "start_ns": starts[trained], "end_ns": ends[trained]}
    )
    if found["epoch"].isna().any():
        found["epoch"] = np.arange(len(found), dtype=float)
        # What lies between two that trained, such as a validation, is of the first.
        found["end_ns"] = np.append(found["start_ns"].to_numpy()[1:], ends[-1:])[: len(found)]
    return found
