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

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pandas as pd

from traceprof.facts.cache import fact, of_window
from traceprof.facts.gaps import CAUSES, find_gap_parts, find_gaps
from traceprof.facts.host.lanes import Doing, Lanes, lanes_within
from traceprof.facts.host.states import is_launch
from traceprof.model.intervals import Intervals, overlapping_pairs, union_lengths
from traceprof.model.tables import ABSENT
from traceprof.model.trace import Trace

__all__ = ["BY", "Charges", "find_charges", "time_by_name"]

_Int64Array = npt.NDArray[np.int64]

BY: Final = ("", "launching", "other")
"""Whose name is charged: of the thread that launches what ends the gap, or of another one."""

_LAUNCHING, _OTHER = BY.index("launching"), BY.index("other")

_OF_HOST: Final = ("data", "synchronising", "launch", "host", "edge", "unknown")
"""The causes for which it is told what the host did; in the others no thread holds a device up."""


@dataclass(frozen=True, slots=True, eq=False)
class Charges:
    """``times``: when each gap is charged to what; ``running``: all that ran in it meanwhile.

    Both have gap (its row in `find_gaps`), device, start_ns, end_ns, cause (of `CAUSES`), name and
    by (one of `BY`). ``times``, sorted by gap and start, fill every gap: name is "" where nothing
    was recorded, or no thread held the device up. ``running`` are the names, innermost, that any
    thread of the process had open and that do not merely wait: those of several threads overlap.
    """

    times: pd.DataFrame
    running: pd.DataFrame


@of_window
def find_charges(trace: Trace) -> Charges:
    """Return what the gaps of the devices in the window are charged to."""
    parts = _asked_parts(trace)
    lanes = lanes_within(trace, _times_of_processes(parts))
    pieces = _pieces(parts, lanes)
    chosen = _chosen(parts, pieces)
    return Charges(_times(trace, parts, chosen, lanes), _running(trace, parts, pieces, lanes))


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
    asked = np.isin(parts["cause"], [CAUSES.index(name) for name in _OF_HOST])
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
    lanes = ["process", "thread"]
    tables = (calls[is_launch(calls["name"])], trace.ranges, trace.host_ops, calls)
    found: dict[int, int] = {}
    for table in tables:
        sizes = table.groupby(lanes).size().reset_index(name="size")
        sizes = sizes.sort_values("size", ascending=False, kind="stable")
        for process, thread in sizes.drop_duplicates("process")[lanes].itertuples(index=False):
            found.setdefault(int(process), int(thread))
    return found


def _times_of_processes(parts: pd.DataFrame) -> dict[int, Intervals]:
    starts, ends = parts["start_ns"].to_numpy(np.int64), parts["end_ns"].to_numpy(np.int64)
    return {
        int(str(process)): Intervals.union_of(starts[rows], ends[rows])
        for process, rows in parts.groupby("process").indices.items()
    }


def _pieces(parts: pd.DataFrame, lanes: Lanes) -> pd.DataFrame:
    """Return what every thread was in during each part: part, start, end, name, lane, doing."""
    starts, ends, process, thread = (
        parts[name].to_numpy(np.int64) for name in ("start_ns", "end_ns", "process", "thread")
    )
    rows_of = parts.groupby("process").indices
    found = [np.empty((6, 0), np.int64)]
    for number, lane in enumerate(lanes.lanes):
        rows = rows_of[lane.process]
        part, piece = overlapping_pairs(starts[rows], ends[rows], lane.starts, lane.ends)
        part = rows[part]
        found.append(
            np.stack(
                (
                    part,
                    np.maximum(starts[part], lane.starts[piece]),
                    np.minimum(ends[part], lane.ends[piece]),
                    lane.name[piece],
                    np.full(len(part), number),
                    thread[part] == lane.thread,
                )
            )
        )
    names = ("part", "start_ns", "end_ns", "name", "lane", "is_own")
    pieces = pd.DataFrame(dict(zip(names, np.concatenate(found, axis=1), strict=True)))
    return pieces.assign(doing=lanes.doing[pieces["name"].to_numpy()])


def _chosen(parts: pd.DataFrame, pieces: pd.DataFrame) -> _Int64Array:
    """Return what is charged, as columns: part, start, end, name (-1: nothing), place in `BY`."""
    offset = parts["offset_ns"].to_numpy(np.int64)
    starts, ends = parts["start_ns"].to_numpy(np.int64), parts["end_ns"].to_numpy(np.int64)
    lengths = ends - starts
    part, begin, name, is_own = (
        pieces[column].to_numpy(np.int64) for column in ("part", "start_ns", "name", "is_own")
    )
    first = offset[part] + begin - starts[part]
    last = first + (pieces["end_ns"].to_numpy(np.int64) - begin)
    free = Intervals.single(0, int(lengths.sum()))
    found = []
    for layer in _layers(parts, pieces):
        rows = layer[np.argsort(first[layer])]
        row, of_free = overlapping_pairs(first[rows], last[rows], free.starts, free.ends)
        row = rows[row]
        x0, x1 = np.maximum(first[row], free.starts[of_free]), np.minimum(last[row], free.ends[of_free])
        found.append(np.stack((x0, x1, part[row], name[row], np.where(is_own[row], _LAUNCHING, _OTHER))))
        free = free - Intervals.union_of(first[rows], last[rows])
    row, of_free = overlapping_pairs(offset, offset + lengths, free.starts, free.ends)
    x0 = np.maximum(offset[row], free.starts[of_free])
    x1 = np.minimum(offset[row] + lengths[row], free.ends[of_free])
    found.append(np.stack((x0, x1, row, np.full(len(row), -1), np.zeros(len(row), np.int64))))
    x0, x1, part, name, by = np.concatenate(found, axis=1)
    to_time = starts[part] - offset[part]
    return np.stack((part, x0 + to_time, x1 + to_time, name, by))


def _layers(parts: pd.DataFrame, pieces: pd.DataFrame) -> Iterator[_Int64Array]:
    """Yield the rows of ``pieces`` that are charged first, then those behind them, and so on."""
    is_own, doing = pieces["is_own"].to_numpy(np.bool_), pieces["doing"].to_numpy()
    yield np.flatnonzero(is_own & (doing != Doing.WAITS))
    others = np.flatnonzero(~is_own & (doing == Doing.RUNS))
    rank = _ranks(parts, pieces.take(others))
    for place in range(int(rank.max(initial=-1)) + 1):
        yield others[rank == place]
    yield np.flatnonzero(is_own & (doing == Doing.WAITS))


def _ranks(parts: pd.DataFrame, pieces: pd.DataFrame) -> _Int64Array:
    """Return which thread of its gap each piece is of, by the time that they cover of it."""
    gap = parts["gap"].to_numpy(np.int64)[pieces["part"].to_numpy()]
    lane = pieces["lane"].to_numpy(np.int64)
    n_lanes = int(lane.max(initial=0)) + 1
    pairs, place = np.unique(gap * n_lanes + lane, return_inverse=True)
    covered = np.zeros(len(pairs), np.int64)
    np.add.at(covered, place, (pieces["end_ns"] - pieces["start_ns"]).to_numpy(np.int64))
    order = np.lexsort((-covered, pairs // n_lanes))
    owner = (pairs // n_lanes)[order]
    opens = np.flatnonzero(np.append(True, owner[1:] != owner[:-1])) if len(owner) else owner
    rank = np.empty(len(pairs), np.int64)
    rank[order] = np.arange(len(pairs)) - np.repeat(opens, np.diff(np.append(opens, len(pairs))))
    return rank[place]


def _times(trace: Trace, parts: pd.DataFrame, chosen: _Int64Array, lanes: Lanes) -> pd.DataFrame:
    """Return the charges of all gaps, those in which no thread holds a device up included."""
    part, starts, ends, name, by = chosen
    every = find_gap_parts(trace)
    rest = every[~np.isin(every["cause"], [CAUSES.index(own) for own in _OF_HOST])]
    none = np.zeros(len(rest), np.int64)
    mine = parts[["gap", "cause"]].to_numpy(np.int64)[part].T
    theirs = rest[["gap", "start_ns", "end_ns", "cause"]].to_numpy(np.int64).T
    columns = np.concatenate(
        (
            np.stack((mine[0], starts, ends, mine[1], name, by)),
            np.stack((*theirs, none - 1, none)),
        ),
        axis=1,
    )
    return _framed(trace, _joined(columns[:, np.lexsort((columns[1], columns[0]))]), lanes)


def _running(
    trace: Trace, parts: pd.DataFrame, pieces: pd.DataFrame, lanes: Lanes
) -> pd.DataFrame:
    runs = pieces[(pieces["doing"] == Doing.RUNS).to_numpy()]
    gap, cause = parts[["gap", "cause"]].to_numpy(np.int64)[runs["part"].to_numpy()].T
    starts, ends, name = (runs[own].to_numpy() for own in ("start_ns", "end_ns", "name"))
    by = np.where(runs["is_own"].to_numpy(np.bool_), _LAUNCHING, _OTHER)
    return _framed(trace, np.stack((gap, starts, ends, cause, name, by)), lanes)


def _framed(trace: Trace, columns: _Int64Array, lanes: Lanes) -> pd.DataFrame:
    gap, starts, ends, cause, name, by = columns
    return pd.DataFrame(
        {
            "gap": gap,
            "device": find_gaps(trace)["device"].to_numpy(np.int64)[gap],
            "start_ns": starts,
            "end_ns": ends,
            "cause": pd.Categorical.from_codes(cause, pd.Index(CAUSES)),
            "name": pd.Categorical.from_codes(name + 1, pd.Index(["", *lanes.names], dtype=object)),
            "by": pd.Categorical.from_codes(by, pd.Index(BY)),
        }
    )


def _joined(columns: _Int64Array) -> _Int64Array:
    """Return the columns with neighbours as one row that differ in nothing but their times."""
    same = np.array([0, 3, 4, 5])
    alike = (columns[same, 1:] == columns[same, :-1]).all(axis=0)
    opens = np.append(True, ~alike)[: columns.shape[1]]
    joined = columns[:, opens]
    closes = np.append(opens[1:], True)[: columns.shape[1]]
    joined[2] = columns[2, closes]
    return joined
