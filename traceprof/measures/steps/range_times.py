"""Measure which ranges take the time of a thread, how often, and how their durations change.

The page uses this table if no GPU activity was recorded.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from traceprof.measures.analyses import Analysis
from traceprof.measures.host.range_work import is_outermost_of
from traceprof.measures.host.ranges import find_parents, self_times
from traceprof.measures.rows import bounds, lengths_of
from traceprof.measures.steps.steadiness import find_change
from traceprof.model.grouping import groups_of, rows_by_value
from traceprof.model.ranks import Ranks
from traceprof.model.results import Result, ResultSpec
from traceprof.model.table import Names, Table
from traceprof.model.trace import Trace
from traceprof.names.ranges import common_categories

_MIN_SHARE_RATIO: Final = 0.01
"""Minimum share of the window for which changes are searched."""

RANGE_TIMES_SPEC: Final = ResultSpec.of("""
    table range_times: one row per thread, range name, and kind, by time without nested ranges
    key process: the process
    key thread [number]: the thread
    key name: range name, without numbers of steps and occurrences
    key domain: NVTX domain; "" for the default domain
    key kind: push_pop (nested on a thread) or start_end
    same count: number of ranges
    same self_ns: total duration without nested ranges of the same kind on the same thread
    same share_ratio: self_ns as a share of the window
    same total_ns: total duration; a range inside a range of the same name counts once
    same total_ratio: total_ns as a share of the window
    same mean_ns: mean duration
    same min_ns: shortest duration
    same max_ns: longest duration
    same change_at_ns: start of the first range after a lasting change of the duration; unknown for
        ranges that take less than 1% of the window
    same before_ns: median duration before the change
    same after_ns: median duration after the change
    """)


def measure_range_times(ranks: Ranks) -> Result:
    """Return the time of the ranges of each thread in the window."""
    tables = ranks.each(_times_of_rank, ranks.span.duration_ns, ranks.whole.span.start_ns)
    table = Table.stacked(tables).in_order("-self_ns", *RANGE_TIMES_SPEC.tables[0].keys)
    return Result("range-times", RANGE_TIMES_SPEC, {"range_times": table})


def _times_of_rank(trace: Trace, window_ns: int, origin_ns: int) -> Table:
    """Return the rows of one rank. The window is ``window_ns`` long."""
    ranges = trace.ranges
    texts, codes = common_categories(ranges["name"].texts)
    code = ranges["name"].by_text(codes)
    domain, kind = ranges["domain"], ranges["kind"]
    groups = groups_of(ranges["process"], ranges["thread"], code, domain.codes, kind.codes)
    parent, _ = find_parents(ranges, ("process", "thread", "kind"))
    lengths, self_ns = lengths_of(ranges), self_times(*bounds(ranges), parent)
    total_ns = groups.sums(lengths * is_outermost_of(groups.number, parent))
    first = groups.first_rows
    table = Table(
        {
            "process": ranges["process"][first],
            "thread": ranges["thread"][first],
            "name": Names(code[first], texts),
            "domain": domain[first],
            "kind": kind[first],
            "count": groups.counts,
            "self_ns": groups.sums(self_ns),
            "share_ratio": groups.sums(self_ns) / max(1, window_ns),
            "total_ns": total_ns,
            "total_ratio": total_ns / max(1, window_ns),
            "mean_ns": groups.means(lengths),
            "min_ns": groups.reduced(np.minimum, lengths),
            "max_ns": groups.reduced(np.maximum, lengths),
        }
    )
    changes = np.full((3, len(table)), np.nan)
    for place, rows in rows_by_value(groups.number).items():
        if total_ns[place] < _MIN_SHARE_RATIO * window_ns:
            continue
        series = lengths[rows].astype(np.float64)
        at = find_change(series)
        if at is not None:
            start_ns = ranges["start_ns"][rows[at]] - origin_ns
            changes[:, place] = start_ns, np.median(series[:at]), np.median(series[at:])
    names = ("change_at_ns", "before_ns", "after_ns")
    return RANGE_TIMES_SPEC.tables[0].of_rows(
        table.assign(**dict(zip(names, changes, strict=True)))
    )


RANGE_TIMES: Final = Analysis(
    "range-times", RANGE_TIMES_SPEC, needs=("ranges",), of_ranks=measure_range_times
)
