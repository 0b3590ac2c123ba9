"""Passes over data loaders, which of them train, and the epochs that these make."""

from __future__ import annotations

from typing import Final

import numpy as np
import pandas as pd

from traceprof.measures.facts import fact
from traceprof.measures.rows import Bools, Ints, bounds, in_order, rows_by
from traceprof.measures.steps.find import find_steps
from traceprof.model.timing import OWN_DOMAIN
from traceprof.model.trace import Trace

_PASS: Final = "data.pass"
_FETCH: Final = "data"
_NO_BATCH: Final = "data.end"
_TRAINS: Final = r"backward|optimizer(#\d+)?"
_EVALUATES: Final = "eval"
_COLUMNS: Final = ("process", "number", "start_ns", "end_ns", "fetches_count", "is_training")


@fact
def passes_of_loaders(trace: Trace) -> pd.DataFrame:
    """Return the passes over loaders, where they were numbered, in the order of their starts.

    Columns: process, number, start_ns (of the first fetch), end_ns (of the last fetch, or when no
    batch was left), fetches_count, is_training. A pass trains if backward passes follow most of its
    fetches; where something else is fetched in between, if it has a fetch in most steps.
    """
    marks, ranges = _own(trace.marks.to_frame()), _own(trace.ranges.to_frame())
    marks = marks[marks["name"] == _PASS]
    steps = find_steps(trace.whole).table.to_frame()
    names = ranges["name"].astype(str)
    fetches = ranges[(names == _FETCH) | (names == _NO_BATCH)]
    trained, evaluated = (ranges[names.str.fullmatch(pattern)] for pattern in (_TRAINS, _EVALUATES))
    found = [pd.DataFrame(columns=list(_COLUMNS))]
    tables = (fetches, trained, evaluated, steps)
    indices = [rows_by(table, "process") for table in tables]
    nothing = np.empty(0, np.int64)
    for process in rows_by(marks, "process"):
        own = fetches.iloc[indices[0].get(process, nothing)].sort_values("start_ns", kind="stable")
        starts = (
            np.sort(table["start_ns"].to_numpy(np.int64)[index.get(process, nothing)])
            for table, index in zip(tables[1:], indices[1:], strict=True)
        )
        passes = _passes(own, numbers_at(marks, own), *starts)
        found.append(passes.assign(process=process)[list(_COLUMNS)])
    table = pd.concat([one for one in found if len(one)] or found[:1], ignore_index=True)
    return in_order(table, "process", "start_ns")


def are_of_training(trace: Trace, batches: pd.DataFrame) -> Bools:
    """Return which marks of batches are not of a pass that evaluates."""
    passes = passes_of_loaders(trace)
    evaluating = passes[~passes["is_training"].astype(bool)]
    if evaluating.empty:
        return np.ones(len(batches), np.bool_)
    marks = _own(trace.whole.marks.to_frame())
    numbers = numbers_at(marks[marks["name"] == _PASS], batches)
    keys = pd.MultiIndex.from_arrays([batches["process"].to_numpy(np.int64), numbers])
    known = pd.MultiIndex.from_arrays(
        [evaluating["process"].astype(np.int64), evaluating["number"].astype(np.int64)]
    )
    return np.asarray(~keys.isin(known), np.bool_)


def numbers_at(marks: pd.DataFrame, rows: pd.DataFrame) -> Ints:
    """Return the number of the pass that was told last on the thread of each row, 0 for none."""
    order = np.argsort(rows["start_ns"].to_numpy(np.int64), kind="stable")
    by = ["process", "thread"]
    told = marks[["start_ns", *by, "payload"]].astype({"start_ns": np.int64})
    asked = rows[["start_ns", *by]].astype({"start_ns": np.int64}).iloc[order]
    joined = pd.merge_asof(asked, told.sort_values("start_ns", kind="stable"), "start_ns", by=by)
    numbers = np.empty(len(rows), np.int64)
    numbers[order] = joined["payload"].fillna(0).to_numpy(np.int64)
    return numbers


def _own(table: pd.DataFrame) -> pd.DataFrame:
    return table[table["domain"] == OWN_DOMAIN]


def _passes(
    fetches: pd.DataFrame, numbers: Ints, trained: Ints, evaluated: Ints, steps: Ints
) -> pd.DataFrame:
    """Return the passes of one process; the last three are starts, sorted."""
    starts, ends = bounds(fetches)
    is_end = (fetches["name"] == _NO_BATCH).to_numpy(np.bool_)
    until = np.append(starts[1:], np.iinfo(np.int64).max)
    trains = _count(trained, starts, until) > 0
    evaluates = ~trains & (_count(evaluated, starts, until) > 0)
    # A fetch that finds no batch holds the range that says so.
    is_batch = ~is_end & ~np.append(is_end[1:] & (starts[1:] < ends[:-1]), False)
    of_step = np.searchsorted(steps, starts, side="right")
    table = pd.DataFrame(
        {
            "number": numbers,
            "start_ns": starts,
            "end_ns": ends,
            "fetches_count": is_batch,
            "trains": trains,
            "decided": trains | evaluates,
            "of_step": np.where(is_batch, of_step, np.nan),
        }
    )
    groups = table.groupby("number", sort=False)
    found = groups.agg(
        {
            "start_ns": "min",
            "end_ns": "max",
            "fetches_count": "sum",
            "trains": "sum",
            "decided": "sum",
            "of_step": "nunique",
        }
    ).reset_index()
    n_steps = _count(steps, *bounds(found))
    in_most = (n_steps > 0) & (2 * found["of_step"].to_numpy() > n_steps)
    is_followed = (found["decided"] > 0) & (2 * found["trains"] >= found["decided"])
    return found[found["fetches_count"] > 0].assign(is_training=is_followed | in_most)


def _count(sorted_ns: Ints, from_ns: Ints, to_ns: Ints) -> Ints:
    """Return how many instants lie in each half-open span."""
    return np.searchsorted(sorted_ns, to_ns) - np.searchsorted(sorted_ns, from_ns)


_BEGINS: Final = "data.start"
_FETCHES: Final = "data"


@fact
def epochs_of_loaders(trace: Trace) -> pd.DataFrame:
    """Return process, start_ns and end_ns of each pass over a loader that trains.

    A pass lasts to the next one, the last to the end of the last step: what lies between two, such
    as a validation, is of the first. A loader that only validates has none. Of loaders side by side
    the passes with most batches count.
    """
    own = trace.ranges.to_frame()[trace.ranges.to_frame()["domain"] == OWN_DOMAIN]
    begun, fetched = (own[own["name"] == name] for name in (_BEGINS, _FETCHES))
    steps = find_steps(trace.whole).table.to_frame()
    passes = passes_of_loaders(trace)
    of_passes = rows_by(passes, "process")
    of_fetches, of_steps = rows_by(fetched, "process"), rows_by(steps, "process")
    found = []
    for process, rows in rows_by(begun, "process").items():
        if process not in of_steps or process not in of_fetches:
            continue
        starts = np.sort(begun["start_ns"].to_numpy(np.int64)[rows])
        table = steps.iloc[of_steps[process]]
        if process in of_passes:
            chosen = _longest(passes.iloc[of_passes[process]])
            place = np.searchsorted(starts, chosen, side="right") - 1
            chosen = np.where(place >= 0, starts[np.maximum(place, 0)], chosen)
        else:  # recorded before passes were numbered
            fetches = np.sort(fetched["start_ns"].to_numpy(np.int64)[of_fetches[process]])
            first = np.append(fetches, -1)[np.searchsorted(fetches, starts)]
            chosen = starts[np.isin(first, table["start_ns"].to_numpy(np.int64))]
        ends = np.append(chosen[1:], table["next_ns"].max())[: len(chosen)]
        found.append(pd.DataFrame({"process": process, "start_ns": chosen, "end_ns": ends}))
    columns = {name: np.empty(0, np.int64) for name in ("process", "start_ns", "end_ns")}
    return pd.concat([pd.DataFrame(columns), *found], ignore_index=True)


def _longest(passes: pd.DataFrame) -> Ints:
    """Return when those passes that train begin which lie in no longer one by half or more."""
    training = passes[passes["is_training"].astype(bool)]
    kept: list[tuple[int, int]] = []
    order = training.sort_values("fetches_count", ascending=False, kind="stable")
    for start, end in order[["start_ns", "end_ns"]].astype(np.int64).to_numpy().tolist():
        shared = sum(max(0, min(end, other[1]) - max(start, other[0])) for other in kept)
        if 2 * shared < max(end - start, 1):
            kept.append((start, end))
    return np.array(sorted(start for start, _ in kept), np.int64)
