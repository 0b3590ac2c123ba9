"""What the host did in the gaps of the devices, charged by overlap.

At each moment a gap is charged to one name at most, that of the thread which holds the device up:

1. what the thread that launches the next work was in, unless it merely waited;
2. else what another thread of the process ran, of several the one that had most recorded in this
   gap: it compiles, say, while the launching thread waits for it or has nothing recorded;
3. else the wait of the launching thread;
4. else to "": nothing was recorded there.

So the charges of a gap add up to it, and no name is charged more than it was open.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pandas as pd

from traceprof.facts.cache import fact, of_window
from traceprof.facts.gaps import CAUSES, find_gap_parts, find_gaps
from traceprof.facts.host.lanes import Doing, Lanes, lanes_within
from traceprof.facts.host.states import is_launch
from traceprof.facts.idle.holders import (
    BY,
    LAUNCHING,
    OTHER,
    Chosen,
    chosen_pieces,
    pieces_of_parts,
)
from traceprof.model.grouping import compact, rows_by_value, rows_by_values
from traceprof.model.intervals import Intervals, union_lengths
from traceprof.model.tables import ABSENT
from traceprof.model.trace import Trace
from traceprof.values import dataclass

__all__ = ["BY", "NOTHING", "OF_HOST", "Charges", "charged_by_host", "find_charges", "time_by_name"]

_Int64Array = npt.NDArray[np.int64]
_Columns: TypeAlias = tuple[npt.NDArray[Any], ...]
"""gap, start_ns, end_ns, cause, name, operator, by"""

NOTHING: Final = "(nothing recorded)"
"""Stands in tables and sentences for the time in which the host recorded nothing."""

OF_HOST: Final = ("data", "synchronising", "launch", "host", "edge", "unknown")
"""The causes for which it is told what the host did; in the others no thread holds a device up."""


@dataclass(frozen=True, slots=True, eq=False)
class Charges:
    """``times``: when each gap is charged to what; ``running``: all that ran in it meanwhile.

    Both have gap (its row in `find_gaps`), device, start_ns, end_ns, cause (of `CAUSES`), name (the
    innermost), operator (the outermost around it, the name where none is) and by (one of `BY`).
    ``times``, sorted by gap and start, fill every gap: name is "" where nothing was recorded, or no
    thread held the device up. ``running`` are the names, innermost, that any thread of the process
    had open and that do not merely wait: those of several threads overlap.
    """

    times: pd.DataFrame
    running: pd.DataFrame


@of_window
def find_charges(trace: Trace) -> Charges:
    """Return what the gaps of the devices in the window are charged to."""
    parts = _asked_parts(trace)
    lanes = lanes_within(trace, _times_of_processes(parts))
    pieces = pieces_of_parts(parts, lanes)
    chosen = chosen_pieces(parts, pieces)
    return Charges(_times(trace, parts, chosen, lanes), _running(trace, parts, pieces, lanes))


@of_window
def charged_by_host(trace: Trace) -> pd.DataFrame:
    """Return those of `Charges.times` that are the host's, and `NOTHING` for a name without one.

    With ``ns``, the length of each.
    """
    times = find_charges(trace).times
    times = times[times["cause"].isin(OF_HOST)].reset_index(drop=True)
    named = {own: times[own].cat.rename_categories({"": NOTHING}) for own in ("name", "operator")}
    return times.assign(**named, ns=times["end_ns"] - times["start_ns"])


def time_by_name(rows: pd.DataFrame) -> dict[str, int]:
    """Return how long each name was open in ``rows`` of `Charges`, the most first.

    What several threads have open at once counts once for each device.
    """
    names = rows["name"].cat.categories
    device, numbers = pd.factorize(rows["device"].to_numpy(np.int64))
    n_names = max(1, len(names))
    keys = device * n_names + rows["name"].cat.codes.to_numpy(np.int64)
    covered = union_lengths(keys, rows["start_ns"], rows["end_ns"], len(numbers) * n_names)
    totals = covered.reshape(-1, n_names).sum(axis=0)
    order = np.argsort(-totals, kind="stable")
    return {str(names[i]): int(totals[i]) for i in order if totals[i]}


def _asked_parts(trace: Trace) -> pd.DataFrame:
    """Return the parts of gaps that are the host's, with the process and thread that ends each.

    ``offset_ns`` is where each lies on an axis on which they all stand one behind the other:
    there the gaps of several devices do not overlap.
    """
    gaps, parts = find_gaps(trace), find_gap_parts(trace)
    asked = np.isin(parts["cause"], [CAUSES.index(name) for name in OF_HOST])
    parts = parts[asked].reset_index(drop=True)
    gap = parts["gap"].to_numpy()
    process, thread = (gaps[name].to_numpy(np.int64)[gap] for name in ("holder", "thread"))
    lengths = (parts["end_ns"] - parts["start_ns"]).to_numpy(np.int64)
    main = pd.Series(process).map(_main_threads(trace)).fillna(ABSENT).to_numpy(np.int64)
    return parts.assign(
        process=process,
        thread=np.where(thread == ABSENT, main, thread),
        offset_ns=np.cumsum(lengths) - lengths,
    )


@fact
def _main_threads(trace: Trace) -> Mapping[int, int]:
    """Return the thread of each process that launches the most, else that names the most."""
    calls = trace.api_calls
    launches = calls[["process", "thread"]][is_launch(calls["name"])]
    found: dict[int, int] = {}
    for table in (launches, trace.ranges, trace.host_ops, calls):
        lanes = rows_by_values(table["process"], table["thread"])
        for process, thread in sorted(lanes, key=lambda lane: -len(lanes[lane])):
            found.setdefault(process, thread)
    return found


def _times_of_processes(parts: pd.DataFrame) -> dict[int, Intervals]:
    starts, ends = parts["start_ns"].to_numpy(np.int64), parts["end_ns"].to_numpy(np.int64)
    return {
        process: Intervals.union_of(starts[rows], ends[rows])
        for process, rows in rows_by_value(parts["process"]).items()
    }


def _times(trace: Trace, parts: pd.DataFrame, chosen: Chosen, lanes: Lanes) -> pd.DataFrame:
    """Return the charges of all gaps, those in which no thread holds a device up included."""
    every = find_gap_parts(trace)
    rest = every[~np.isin(every["cause"], [CAUSES.index(own) for own in OF_HOST])]
    theirs = (rest[own].to_numpy() for own in ("gap", "start_ns", "end_ns", "cause"))
    none = np.full(len(rest), -1, np.int8)
    columns = zip(_of_parts(parts, chosen), (*theirs, none, none, none + 1), strict=True)
    whole = tuple(map(np.concatenate, columns))
    order = np.lexsort((whole[1], whole[0]))
    return _framed(trace, _joined(tuple(column[order] for column in whole)), lanes)


def _running(trace: Trace, parts: pd.DataFrame, pieces: pd.DataFrame, lanes: Lanes) -> pd.DataFrame:
    runs = pieces[(pieces["doing"] == Doing.RUNS).to_numpy()]
    columns = ("part", "start_ns", "end_ns", "name", "operator")
    by = np.where(runs["is_own"].to_numpy(), np.int8(LAUNCHING), np.int8(OTHER))
    part, starts, ends, name, operator = (runs[own].to_numpy() for own in columns)
    chosen = Chosen(part, starts, ends, name, operator, by)
    return _framed(trace, _of_parts(parts, chosen), lanes)


def _of_parts(parts: pd.DataFrame, chosen: Chosen) -> _Columns:
    """Return the same with the gap and the cause of each part."""
    part, starts, ends, name, operator, by = chosen
    gap, cause = (parts[own].to_numpy()[part] for own in ("gap", "cause"))
    return gap, starts, ends, cause, name, operator, by


def _framed(trace: Trace, columns: _Columns, lanes: Lanes) -> pd.DataFrame:
    gap, starts, ends, cause, name, operator, by = columns
    names = pd.Index(["", *lanes.names], dtype=object)
    small = np.min_scalar_type(-len(names) - 1)
    return pd.DataFrame(
        {
            "gap": compact(gap),
            "device": find_gaps(trace)["device"].to_numpy()[gap],
            "start_ns": starts,
            "end_ns": ends,
            "cause": pd.Categorical.from_codes(cause, pd.Index(CAUSES)),
            "name": pd.Categorical.from_codes(name.astype(small) + small.type(1), names),
            "operator": pd.Categorical.from_codes(operator.astype(small) + small.type(1), names),
            "by": pd.Categorical.from_codes(by, pd.Index(BY)),
        },
        copy=False,
    )


def _joined(columns: _Columns) -> _Columns:
    """Return the columns with neighbours as one row that differ in nothing but their times."""
    gap, starts, ends, *others = columns
    opens = np.ones(len(gap), np.bool_)
    opens[1:] = gap[1:] != gap[:-1]
    for own in others:
        opens[1:] |= own[1:] != own[:-1]
    first = np.flatnonzero(opens)
    last = np.append(first[1:], len(gap))[: len(first)] - 1
    return gap[first], starts[first], ends[last], *(own[first] for own in others)
