"""Measure NVTX and other host ranges, and host operators, by name. Find windows of ranges."""

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
    """Return the row of the span around each of the nested ``spans`` (-1: none), and its depth.

    ``lane`` names columns: spans nest only if their values in these columns are equal. Spans are
    sorted as all tables are.
    """
    parent, depth = np.full(len(spans), -1, np.int64), np.zeros(len(spans), np.int64)
    starts, ends = bounds(spans)
    for rows in rows_by_values(*(codes_of(spans[name]) for name in lane)).values():
        depth[rows] = nesting_depth(starts[rows], ends[rows])
        inside = parents_of(depth[rows])
        parent[rows] = np.append(rows, -1)[inside]
    return parent, depth


def self_times(starts: Ints, ends: Ints, parent: Ints) -> Ints:
    """Return the time in ns of each span that its direct children do not cover.

    If two spans overlap without nesting, the later one counts as inside the earlier one, with the
    overlapping part.
    """
    self_ns = ends - starts
    inside = np.flatnonzero(parent >= 0)
    outer = parent[inside]
    covered = np.maximum(np.minimum(ends[inside], ends[outer]) - starts[inside], 0)
    np.subtract.at(self_ns, outer, covered)
    return np.asarray(np.maximum(self_ns, 0), np.int64)


def self_time_ns(spans: Table, lane: Sequence[str] = _BY_THREAD) -> Ints:
    """Return the self time of each of ``spans`` in ns; arguments as in `find_parents`."""
    return self_times(*bounds(spans), find_parents(spans, lane)[0])


def _measure(spec: ResultSpec, spans: Table, lane: str) -> Result:
    """Return the durations and self times of ``spans``, which nest by thread and ``lane``."""
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
    """Return the ranges by name. A range that the window cuts counts with the part inside."""
    ranges = trace.ranges.assign(name=plain_names(trace.ranges["name"]))
    return _measure(RANGES_SPEC, ranges, "kind")


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
    return _measure(OPERATORS_SPEC, trace.host_ops, "source")


def _finish_operators(result: Result) -> Result:
    """Return the combined result of all ranks with shares and order."""
    finished = finish_durations(result)
    if finished.table.empty:
        # The embedded recorder records operators of a GPU program in one window only.
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
"""Syntax of a range window. A plain name that occurs in the trace is used verbatim."""


def find_ranges(ranks: Ranks, match: re.Match[str]) -> tuple[TimeWindow, str, tuple[Note, ...]]:
    """Return the window of the ranges that ``match`` names, its label, and notes.

    Raises:
        UsageError: if no range matches, or fewer ranges than the requested number.
    """
    ranks.require("ranges")
    text = match.group()
    range_text = text.removeprefix("range:")
    found = _collect_ranges(ranks, _ranges_named, range_text)
    first = 1
    if found.empty or match["plain"] is None:
        if match["regex"] is not None:
            user_pattern(match["regex"], "range:/pattern/")
        found = _collect_ranges(ranks, _ranges_matching, match.groupdict())
        first = int(match["nth"] or 1)
    if found.empty:
        known = sum(ranks.each(_names_of), Counter[str]())
        names = ", ".join(name for name, _ in known.most_common(5))
        raise UsageError(f"no range {range_text!r} in the trace; its ranges: {names or 'none'}")
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
    label = f"range:{rows['name'][0]}#{first}" + (f"..{last}" if last > first else "")
    return window, label, tuple(notes if len(found) > 1 else ())


def _names_of(trace: Trace) -> Counter[str]:
    """Return the number of ranges of each name."""
    return Counter(trace.ranges["name"].counts())


def _collect_ranges(ranks: Ranks, choose: Callable[..., Table], *args: Any) -> Table:
    """Return the chosen ranges of all ranks, sorted by start and, if equal, longest first."""
    return Table.stacked(ranks.each(choose, *args)).in_order("start_ns", "-end_ns")


def _range_columns(ranges: Table, rows: Bools) -> Table:
    """Return start, end, and plain name of some ranges; ``rows`` is a mask."""
    found = ranges.select("start_ns", "end_ns", "name").take(rows)
    return found.assign(name=found["name"].plain())


def _ranges_named(trace: Trace, name: str) -> Table:
    """Return the ranges with exactly this name."""
    return _range_columns(trace.ranges, trace.ranges["name"] == name)


def _ranges_matching(trace: Trace, match: Mapping[str, str | None]) -> Table:
    """Return the ranges that the groups of a match of `RANGE` describe."""
    names: Names = trace.ranges["name"]
    if match["regex"] is None:
        rows = names == (match["plain"] if match["quoted"] is None else match["quoted"] or "")
    else:
        pattern = user_pattern(match["regex"], "range:/pattern/")
        rows = names.by_text(pattern.found_in(names.texts.tolist()))
    if match["domain"] is not None:
        rows = rows & (trace.ranges["domain"] == match["domain"])
    return _range_columns(trace.ranges, rows)
