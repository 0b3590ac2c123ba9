"""Finds passes over data loaders, decides which of them train, and derives epochs from them."""

from __future__ import annotations

import re
from typing import Final

import numpy as np

from traceprof.measures.facts import fact
from traceprof.measures.rows import Bools, Ints, are_named, bounds, count_within, rows_by
from traceprof.measures.steps.find import find_steps
from traceprof.measures.steps.from_passes import FORWARD_PASSES
from traceprof.model.grouping import find_matching_rows, grouped_by, groups_of, rows_by_values
from traceprof.model.ranks import Ranks
from traceprof.model.table import Table
from traceprof.model.timing import TRACEPROF_DOMAIN
from traceprof.model.trace import Trace

_PASS: Final = "data.pass"
_FETCH: Final = "data"
_NO_BATCH: Final = "data.end"
_TRAINS: Final = re.compile(r"^(backward|optimizer(#\d+)?)$")
_EVALUATES: Final = re.compile("^eval$")


@fact
def passes_of_loaders(trace: Trace) -> Table:
    """Return the numbered passes over loaders, sorted by start.

    Columns: process, number, start_ns (of the first fetch), end_ns (of the last fetch, or when no
    batch was left), fetches_count, is_training. A pass trains if backward passes follow most of its
    fetches. If another loader is used in between, it trains if it has a fetch in most steps.
    """
    marks, ranges = _of_traceprof(trace.marks), _of_traceprof(trace.ranges)
    marks = marks.take(marks["name"] == _PASS)
    fetches = ranges.take(ranges["name"].isin((_FETCH, _NO_BATCH)))
    trained, evaluated = (
        ranges.take(are_named(ranges["name"], pattern)) for pattern in (_TRAINS, _EVALUATES)
    )
    tables = (fetches, trained, evaluated, find_steps(trace.whole).table)
    indices = [rows_by(table, "process") for table in tables]
    no_rows = np.empty(0, np.int64)
    found = [_passes(fetches.head(0), *[no_rows] * 4).assign(process=no_rows)]
    for process in rows_by(marks, "process"):
        process_fetches = fetches.take(indices[0].get(process, no_rows))
        starts = (
            np.sort(table["start_ns"][index.get(process, no_rows)])
            for table, index in zip(tables[1:], indices[1:], strict=True)
        )
        found.append(
            _passes(process_fetches, numbers_at(marks, process_fetches), *starts).assign(
                process=process
            )
        )
    return Table.stacked(found).in_order("process", "start_ns")


def are_of_training(trace: Trace, batches: Table) -> Bools:
    """Return which batch marks do not belong to an evaluation pass."""
    passes = passes_of_loaders(trace)
    evaluating = passes.take(~passes["is_training"])
    if evaluating.empty:
        return np.ones(len(batches), np.bool_)
    marks = _of_traceprof(trace.whole.marks)
    numbers = numbers_at(marks.take(marks["name"] == _PASS), batches)
    batch_passes = Table({"process": batches["process"], "number": numbers})
    return find_matching_rows(batch_passes, evaluating, "process", "number") < 0


def numbers_at(marks: Table, rows: Table) -> Ints:
    """Return the number of the last pass marked on the thread of each row before it; 0 for none."""
    numbers = np.zeros(len(rows), np.int64)
    marks_of_threads = rows_by_values(marks["process"], marks["thread"])
    for lane, thread_rows in rows_by_values(rows["process"], rows["thread"]).items():
        marked = marks_of_threads.get(lane, np.empty(0, np.int64))
        place = (
            np.searchsorted(marks["start_ns"][marked], rows["start_ns"][thread_rows], side="right")
            - 1
        )
        numbers[thread_rows] = np.append(np.nan_to_num(marks["payload"][marked]), 0)[place]
    return numbers


def _of_traceprof(table: Table) -> Table:
    """Return the rows that traceprof recorded."""
    return table.take(table["domain"] == TRACEPROF_DOMAIN)


def _passes(fetches: Table, numbers: Ints, trained: Ints, evaluated: Ints, steps: Ints) -> Table:
    """Return the passes of one process. The last three arguments are sorted starts."""
    starts, ends = bounds(fetches)
    is_end = fetches["name"] == _NO_BATCH
    until = np.append(starts[1:], np.iinfo(np.int64).max)[: len(starts)]
    trains = count_within(trained, starts, until) > 0
    evaluates = ~trains & (count_within(evaluated, starts, until) > 0)
    # A fetch that finds no batch contains the range `_NO_BATCH`.
    is_batch = ~is_end & ~np.append(is_end[1:] & (starts[1:] < ends[:-1]), False)[: len(starts)]
    of_step = np.searchsorted(steps, starts, side="right")
    groups = groups_of(numbers)
    n_trained, n_decided, n_fetches = (
        groups.reduced(np.add, flags.astype(np.int64))
        for flags in (trains, trains | evaluates, is_batch)
    )
    table = Table(
        {
            "number": numbers[groups.first_rows],
            "start_ns": groups.reduced(np.minimum, starts),
            "end_ns": groups.reduced(np.maximum, ends),
            "fetches_count": n_fetches,
        }
    )
    fetched = rows_by_values(groups.packed[is_batch], of_step[is_batch])
    n_fetched = np.bincount(
        np.array([group for group, _ in fetched], np.int64), minlength=len(table)
    )
    n_steps = count_within(steps, *bounds(table))
    in_most = (n_steps > 0) & (2 * n_fetched > n_steps)
    is_followed = (n_decided > 0) & (2 * n_trained >= n_decided)
    return table.assign(is_training=is_followed | in_most).take(n_fetches > 0)


_BEGINS: Final = "data.start"


@fact
def epochs_of_loaders(trace: Trace) -> Table:
    """Return process, start_ns, and end_ns of each training pass over a loader.

    A pass lasts until the next one; the last pass lasts until the end of the last step. A
    validation between two passes therefore belongs to the first. A loader that only validates has
    no epochs. Of loaders used at the same time, the passes with the most batches count.
    """
    ranges = _of_traceprof(trace.ranges)
    loader_starts, fetch_ranges = (
        ranges.take(ranges["name"] == name) for name in (_BEGINS, _FETCH)
    )
    all_steps, passes = find_steps(trace.whole), passes_of_loaders(trace)
    # Batches of a program that does not train are no steps of training.
    trains = all_steps.source != FORWARD_PASSES
    steps = all_steps.table.take(slice(None if trains else 0))
    of_passes = rows_by(passes, "process")
    of_fetches, of_steps = rows_by(fetch_ranges, "process"), rows_by(steps, "process")
    found = [Table(dict.fromkeys(("process", "start_ns", "end_ns"), np.empty(0, np.int64)))]
    for process, rows in rows_by(loader_starts, "process").items():
        if process not in of_steps or process not in of_fetches:
            continue
        starts, table = np.sort(loader_starts["start_ns"][rows]), steps.take(of_steps[process])
        if process in of_passes:
            chosen = _longest(passes.take(of_passes[process]))
            place = np.searchsorted(starts, chosen, side="right") - 1
            chosen = np.where(place >= 0, starts[np.maximum(place, 0)], chosen)
        else:  # recorded by a version that did not number passes
            fetches = np.sort(fetch_ranges["start_ns"][of_fetches[process]])
            first = np.append(fetches, -1)[np.searchsorted(fetches, starts)]
            chosen = starts[np.isin(first, table["start_ns"])]
        ends = np.append(chosen[1:], table["next_ns"].max())[: len(chosen)]
        found.append(Table({"process": process, "start_ns": chosen, "end_ns": ends}))
    return Table.stacked(found)


def _longest(passes: Table) -> Ints:
    """Return the sorted starts of the longest training passes.

    A pass is dropped if longer passes cover half of it or more.
    """
    training = passes.take(passes["is_training"]).in_order("-fetches_count")
    kept: list[tuple[int, int]] = []
    for start, end in zip(*(column.tolist() for column in bounds(training)), strict=True):
        shared = sum(max(0, min(end, other[1]) - max(start, other[0])) for other in kept)
        if 2 * shared < max(end - start, 1):
            kept.append((start, end))
    return np.array(sorted(start for start, _ in kept), np.int64)


_EPOCH: Final = re.compile(r"epoch(?:[\s_#:=.-]*(?P<number>\d+))?", re.IGNORECASE)


def epochs_of_ranks(ranks: Ranks) -> Table:
    """Return the epochs of a run, from the start of the first rank to the end of the last rank.

    Columns: epoch, start_ns, end_ns, ranks_count, and is_whole (the epoch is known to have ended;
    the end of the recording may cut the last pass over a loader).
    """
    table = Table.stacked(ranks.each(named_epochs))
    is_named = len(table) > 0
    if not is_named:
        table = Table.stacked([epochs_of_loaders(part) for part in ranks])
        table = table.assign(epoch=np.nan)
    if table.empty:
        return table
    table = table.in_order("process", "start_ns")
    counted, epoch = grouped_by(table, "process")[1].earlier, table["epoch"]
    table = table.assign(epoch=np.where(np.isnan(epoch), counted, epoch))
    found, groups = grouped_by(table, "epoch")
    first, last = (
        groups.reduced(reduce, times)
        for reduce, times in zip((np.minimum, np.maximum), bounds(table), strict=True)
    )
    ranks_count = grouped_by(grouped_by(table, "epoch", "process")[0], "epoch")[1].counts
    return found.assign(
        start_ns=first,
        end_ns=last,
        ranks_count=ranks_count,
        is_whole=is_named | (first < first.max()),
    )


def named_epochs(trace: Trace) -> Table:
    """Return process, epoch (NaN if unknown), start_ns, and end_ns of ranges named "epoch"."""
    names = trace.ranges["name"]
    matches = [_EPOCH.fullmatch(name.strip()) for name in names.texts]
    kept = names.by_text(np.array([match is not None for match in matches], np.bool_))
    found = trace.ranges.take(kept)
    numbers = [float(match["number"] or np.nan) if match else np.nan for match in matches]
    named = found["name"].by_text(np.array(numbers, np.float64))
    payloads = np.where(found["domain"] == TRACEPROF_DOMAIN, found["payload"], np.nan)
    return found.select("process", "start_ns", "end_ns").assign(
        epoch=np.where(np.isnan(named), payloads, named)
    )
