"""NVTX and other host ranges, and host operators: by name, with self times; windows of them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from traceprof.errors import UsageError
from traceprof.measures.analyses import Analysis
from traceprof.measures.durations import DURATIONS, finish_durations, summarize
from traceprof.measures.rows import Ints, bounds, sums_at
from traceprof.model.grouping import codes_of, rows_by_values
from traceprof.model.intervals import nesting_depth
from traceprof.model.nesting import parents_of
from traceprof.model.ranks import Ranks
from traceprof.model.results import Note, Result, ResultSpec
from traceprof.model.table import Bools, Names, Table
from traceprof.model.timing import TimeWindow
from traceprof.model.trace import Trace
from traceprof.names.ranges import plain_names
from traceprof.names.user_patterns import user_pattern

_BY_THREAD: Final = ("process", "thread")


def find_parents(spans: Table, lane: Sequence[str] = _BY_THREAD) -> tuple[Ints, Ints]:
    """Return, for each of the nested ``spans``, the row around it (-1: none) and its depth.

    ``lane`` names the columns within whose values rows nest; they are sorted as tables are.
    """
    parent, depth = np.full(len(spans), -1, np.int64), np.zeros(len(spans), np.int64)
    starts, ends = bounds(spans)
    for rows in rows_by_values(*(codes_of(spans[name]) for name in lane)).values():
        depth[rows] = nesting_depth(starts[rows], ends[rows])
        inside = parents_of(depth[rows])
        parent[rows] = np.append(rows, -1)[inside]
    return parent, depth


def self_times(starts: Ints, ends: Ints, parent: Ints) -> Ints:
    """Return what of each span none right inside it covers.

    Where two overlap without nesting, the later one counts with its part inside the earlier.
    """
    own = ends - starts
    inside = np.flatnonzero(parent >= 0)
    outer = parent[inside]
    covered = np.maximum(np.minimum(ends[inside], ends[outer]) - starts[inside], 0)
    np.subtract.at(own, outer, covered)
    return np.asarray(np.maximum(own, 0), np.int64)


def self_time_ns(spans: Table, lane: Sequence[str] = _BY_THREAD) -> Ints:
    """Return the self time of each of ``spans``; arguments are those of `find_parents`."""
    return self_times(*bounds(spans), find_parents(spans, lane)[0])


def _measured(spec: ResultSpec, spans: Table, lane: str) -> Result:
    """Return the durations and self times of ``spans``, which nest by ``lane``, too."""
    name = spec.tables[0].name
    table, samples = summarize(spans, spec.tables[0].keys)
    self_ns = sums_at(samples.rows, self_time_ns(spans, (*_BY_THREAD, lane)), len(table))
    return Result(name, spec, {name: table.assign(self_ns=self_ns)}, samples={name: samples})


RANGES_SPEC: Final = ResultSpec.of(
    """
    table ranges: one row per range name, domain, and kind, by total CPU time; time in nested or
        parallel ranges counts for each of them
    key name: range name, without the numbers that PyTorch's emit_nvtx adds
    key domain: NVTX domain; "" for the default domain
    key kind: push_pop (nested on a thread) or start_end
    """,
    *DURATIONS[:2],
    "total self_ns: total_ns without nested ranges of the same kind on the same thread",
    *DURATIONS[2:],
)


def measure_ranges(trace: Trace) -> Result:
    """Return the ranges by name; one that the window cuts counts with its part inside."""
    ranges = trace.ranges.assign(name=plain_names(trace.ranges["name"]))
    return _measured(RANGES_SPEC, ranges, "kind")


RANGES = Analysis(
    "ranges", RANGES_SPEC, needs=("ranges",), of_rank=measure_ranges, finish=finish_durations
)


OPERATORS_SPEC: Final = ResultSpec.of(
    """
    table operators: one row per operator, by self time
    key name: name of the operator or call
    key source: source of the record: cpu_op (PyTorch operators), osrt (OS runtime calls), …
    total count: number of calls
    total self_ns: time in the operator, without the operators that it calls
    derived self_ratio: self_ns as a share of the sum over all rows
    """,
    *(column for column in DURATIONS if column.name not in ("count", "share_ratio")),
)


def measure_operators(trace: Trace) -> Result:
    """Return the host operators by name."""
    return _measured(OPERATORS_SPEC, trace.host_ops, "source")


def _finish_operators(result: Result) -> Result:
    finished = finish_durations(result)
    if finished.table.empty:  # the embedded recorder sees those of a GPU program in one window
        text = "The window contains no operators. Choose another window, for example --window all."
        return finished.with_notes(Note(text))
    self_ns = finished.table["self_ns"]
    table = finished.table.assign(self_ratio=self_ns / (int(self_ns.sum()) or float("nan")))
    return finished.with_table(table.in_order("-self_ns", *OPERATORS_SPEC.tables[0].keys))


OPERATORS = Analysis(
    "operators",
    OPERATORS_SPEC,
    needs=("host_ops",),
    of_rank=measure_operators,
    finish=_finish_operators,
)


RANGE: Final = re.compile(
    r'range:(?:"(?P<quoted>[^"]*)"|/(?P<regex>(?:[^/\\]|\\.)*)/|(?P<plain>.*?))'
    r"(?:@(?P<domain>[^@#]*))?(?:#(?P<nth>\d+)(?:\.\.(?P<last>\d+))?)?"
)
"""What a range window looks like; a plain name that occurs in the trace is taken as it is."""


def find_ranges(ranks: Ranks, match: re.Match[str]) -> tuple[TimeWindow, str, tuple[Note, ...]]:
    """Return the window of the ranges that ``match`` names, its label, and remarks.

    Raises:
        UsageError: no such range, or not as many.
    """
    ranks.require("ranges")
    text = match.group()
    whole = text.removeprefix("range:")
    found = _all(ranks, _called, whole)
    first = 1
    if found.empty or match["plain"] is None:
        if match["regex"] is not None:
            user_pattern(match["regex"], "range:/pattern/")
        found = _all(ranks, _matching, match.groupdict())
        first = int(match["nth"] or 1)
    if found.empty:
        known = sum(ranks.each(_names_of), Counter[str]())
        names = ", ".join(name for name, _ in known.most_common(5))
        raise UsageError(f"no range {whole!r} in the trace; its ranges: {names or 'none'}")
    last = int(match["last"] or first)
    if not 1 <= first <= last <= len(found):
        raise UsageError(f"{text!r}: the range occurs {len(found)} times; use #1 to #{len(found)}")
    rows = found.take(slice(first - 1, last))
    window = TimeWindow(int(rows["start_ns"].min()), int(rows["end_ns"].max()))
    notes = [
        Note.of(
            "Range {first} of {n:count} with this name. Append #N to choose another one.",
            first=first,
            n=len(found),
        )
    ]
    label = str(rows["name"][0])
    label = f"range:{label}#{first}" + (f"..{last}" if last > first else "")
    return window, label, tuple(notes if len(found) > 1 else ())


def _names_of(trace: Trace) -> Counter[str]:
    """Return how often each name occurs."""
    return Counter(trace.ranges["name"].counts())


def _all(ranks: Ranks, choose: Callable[..., Table], *args: Any) -> Table:
    """Return the chosen ranges of all ranks in the order of their start, the longer first."""
    return Table.stacked(ranks.each(choose, *args)).in_order("start_ns", "-end_ns")


def _chosen(ranges: Table, rows: Bools) -> Table:
    found = ranges.select("start_ns", "end_ns", "name").take(rows)
    return found.assign(name=found["name"].plain())


def _called(trace: Trace, name: str) -> Table:
    return _chosen(trace.ranges, trace.ranges["name"] == name)


def _matching(trace: Trace, match: Mapping[str, str | None]) -> Table:
    names: Names = trace.ranges["name"]
    if match["regex"] is None:
        rows = names == (match["plain"] if match["quoted"] is None else match["quoted"] or "")
    else:
        pattern = user_pattern(match["regex"], "range:/pattern/")
        rows = names.by_text(pattern.found_in(names.texts.tolist()))
    if match["domain"] is not None:
        rows = rows & (trace.ranges["domain"] == match["domain"])
    return _chosen(trace.ranges, rows)
