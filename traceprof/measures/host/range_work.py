"""Measure device work by host range: the kernels and copies launched inside each NVTX range.

Work belongs to every range that is open on its launching thread at the launch, as in the reports
nvtxgpuproj and nvtxkernsum of ``nsys stats``. Differences from these reports: work of a range
inside another range of the same name counts once; names have no numbers and operator IDs; copies
and memsets count like kernels; ranges that do not nest (start/end) are ignored.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np

from traceprof.measures.analyses import Analysis
from traceprof.measures.facts import fact, of_rows
from traceprof.measures.host.launches import launches_of, range_of_launches
from traceprof.measures.host.ranges import find_parents, self_time_ns
from traceprof.measures.rows import (
    Bools,
    Ints,
    bounds,
    grouped,
    ints,
    lengths_of,
    moved_to_disk,
    sums_at,
)
from traceprof.model.grouping import groups_of, rows_by_value
from traceprof.model.intervals import check_pairs, union_lengths
from traceprof.model.nesting import (
    find_nearest_ancestors,
    has_ancestor_with_same_code,
    levels_of,
    sum_of_chains,
)
from traceprof.model.results import Note, Result, ResultSpec, key
from traceprof.model.table import Table
from traceprof.model.trace import DEVICE_TABLES, Trace
from traceprof.names.ranges import unnumbered_names

_MAX_ROUNDS: Final = 64
"""Maximum number of steps to outer spans before a slower search with logarithmic cost is used.
Spans rarely nest deeper.
"""


@dataclass(frozen=True, slots=True, eq=False)
class RangeWork:
    """The kernels and copies launched inside each of some nested host spans.

    ``total_ns`` and ``work_count`` include nested spans, ``self_ns`` does not. Times are summed
    over streams and devices. ``first_ns`` and ``last_ns`` are the projection of the span onto the
    devices: the first start and the last end of its work (0, 0 if ``work_count`` is 0).
    """

    self_ns: Ints
    total_ns: Ints
    work_count: Ints
    first_ns: Ints
    last_ns: Ints


def is_outermost_of(codes: Ints, parent: Ints) -> Bools:
    """Return which spans have no span of the same code around them. Recursion counts once."""
    outermost = np.ones(len(codes), np.bool_)
    rows, ancestors = np.arange(len(codes)), parent
    for _ in range(_MAX_ROUNDS):
        inside = ancestors >= 0
        rows, ancestors = rows[inside], ancestors[inside]
        if not len(rows):
            break
        outermost[rows[codes[ancestors] == codes[rows]]] = False
        ancestors = parent[ancestors]
    return outermost if not len(rows) else ~has_ancestor_with_same_code(codes, parent)


def add_to_parents(values: Ints, parent: Ints, depth: Ints) -> Ints:
    """Return the value of each span plus the values of all spans inside it."""
    total = values.copy()
    for rows in _nested_deepest_first(parent, depth):
        np.add.at(total, parent[rows], total[rows])
    return total


def _nested_deepest_first(parent: Ints, depth: Ints) -> Iterator[Ints]:
    """Yield the rows of spans inside other spans, by level, the deepest level first."""
    inside = np.flatnonzero(parent >= 0)
    return (inside[rows] for rows in reversed(levels_of(depth[inside])))


def sum_work(trace: Trace, owners: Mapping[str, Ints], parent: Ints, depth: Ints) -> RangeWork:
    """Return the work of nested spans.

    ``owners`` has, for each device table, the innermost span that launched each row; -1: none.
    """
    n_spans = len(parent)
    self_ns, count = np.zeros(n_spans, np.int64), np.zeros(n_spans, np.int64)
    first = np.full(len(parent), np.iinfo(np.int64).max)
    last = np.full(len(parent), np.iinfo(np.int64).min)
    for name, owner in owners.items():
        work = trace.table(name)
        owned, (starts, ends) = owner >= 0, bounds(work)
        self_ns += sums_at(owner, ends - starts, n_spans)
        count += sums_at(owner, 1, n_spans)
        np.minimum.at(first, owner[owned], starts[owned])
        np.maximum.at(last, owner[owned], ends[owned])
    for rows in _nested_deepest_first(parent, depth):
        np.minimum.at(first, parent[rows], first[rows])
        np.maximum.at(last, parent[rows], last[rows])
    total_count = add_to_parents(count, parent, depth)
    worked = total_count > 0
    return RangeWork(
        self_ns=self_ns,
        total_ns=add_to_parents(self_ns, parent, depth),
        work_count=total_count,
        first_ns=np.where(worked, first, 0),
        last_ns=np.where(worked, last, 0),
    )


@dataclass(frozen=True, slots=True, eq=False)
class NestedRanges:
    """The ranges of the whole trace that nest on their thread.

    ``rows`` are their rows in ``ranges``. ``parent`` is the place in ``rows`` of the range around
    each (-1 for the outermost). ``parent`` and ``depth`` are results of `find_parents`.
    """

    rows: Ints
    parent: Ints
    depth: Ints


@fact
def nested_ranges(trace: Trace) -> NestedRanges:
    """Return the nested ranges of the whole trace, and how they nest."""
    rows = np.flatnonzero(trace.ranges["kind"] == "push_pop")
    spans = trace.ranges.select("process", "thread", "start_ns", "end_ns").take(rows)
    return NestedRanges(rows, *find_parents(spans))


@of_rows
def ranges_of_work(trace: Trace, table: str) -> Ints:
    """Return the place in `nested_ranges` of the innermost range that launched each row; -1: none.

    Only ranges of the launching thread count. Work launched by autograd's threads belongs to ranges
    of these threads.
    """
    place = np.full(len(trace.ranges) + 1, -1, np.int64)
    rows = nested_ranges(trace).rows
    place[rows] = np.arange(len(rows))
    return place[range_of_launches(trace, launches_of(trace, table))]


@dataclass(frozen=True, slots=True, eq=False)
class SpanKinds:
    """Nested spans by kind. Of nested spans of the same kind, only the outermost counts.

    ``codes`` are the kinds (for example, a number for each name), from 0 to ``n_kinds`` - 1.
    ``counts`` is whether each span counts. ``nearest`` is the innermost counting span among each
    span and the spans around it. ``outer`` is the nearest counting span around each span (-1:
    none). ``chain`` is the number of counting spans among each span and the spans around it.
    """

    codes: Ints
    n_kinds: int
    counts: Bools
    nearest: Ints
    outer: Ints
    chain: Ints

    @classmethod
    def of(cls, codes: Ints, n_kinds: int, parent: Ints) -> SpanKinds:
        """Return the kinds of spans; ``parent`` is the span around each, -1 for the outermost."""
        counts = is_outermost_of(codes, parent)
        outer = find_nearest_ancestors(parent, counts)
        nearest = np.where(counts, np.arange(len(codes)), outer)
        return cls(codes, n_kinds, counts, nearest, outer, sum_of_chains(counts, parent))

    def summed(self, totals: Ints) -> Ints:
        """Return the sum of ``totals`` by kind; ``totals`` include all nested spans."""
        return sums_at(self.codes[self.counts], totals[self.counts], self.n_kinds)

    def inside(self, owner: Ints) -> Iterator[tuple[Ints, Ints]]:
        """Yield the rows of work launched inside each kind, as pairs of kinds and rows.

        ``owner`` is the innermost span that launched each row of work; -1: none. Each pair occurs
        once. Pairs come in portions, first for the innermost counting spans, then for the spans
        around them. Rows are in ascending order within a portion.
        """
        row = np.flatnonzero(owner >= 0)
        check_pairs(int(self.chain[owner[row]].sum()), len(row) + len(self.codes))
        span = self.nearest[owner[row]]
        while len(row):
            yield self.codes[span], row
            span = self.outer[span]
            row, span = row[span >= 0], span[span >= 0]


_Owners: TypeAlias = Mapping[str, Ints]
_MAX_ROWS_AT_ONCE: Final = 200_000
"""Approximate number of overlapping kernels and copies for which unions are computed at a time."""

_NAME: Final = key("name", "range name, without operator IDs and standalone numbers")
_DOMAIN: Final = key("domain", 'NVTX domain; "" for the default domain')
RANGE_WORK_SPEC: Final = ResultSpec.of(
    """
    table range_work: one row per range name and domain, by GPU time; work in nested ranges
        counts for each of them
    """,
    _NAME,
    _DOMAIN,
    """
    total count: number of ranges
    total host_ns: total duration of the ranges on the CPU
    total self_ns: host_ns without nested ranges
    total device_ns: total duration of the kernels and copies launched in the ranges, each counted
        once
    derived device_ratio: device_ns as a share of all kernels and copies
    total union_ns: time in which a GPU ran any of these kernels and copies, summed over GPUs
    total device_self_ns: device_ns without work launched in nested ranges
    total projected_ns: time from the first start to the last end of a range's GPU work, summed over
        the ranges
    total work_count: number of kernels and copies, each counted once
    table range_kernels: one row per range and kernel launched in the range, by GPU time
    """,
    _NAME,
    _DOMAIN,
    """
    key kernel: kernel name
    total count: number of launches in the range
    total total_ns: total duration of the kernels
    scalars:
    total work_ns: total duration of all kernels and copies
    total outside_ns: total duration of the kernels and copies launched outside any range
    total outside_count: number of kernels and copies launched outside any range
    total unlinked_count: number of kernels and copies without a recorded launch
    """,
)
_KEYS: Final = ["name", "domain"]


def measure_range_work(trace: Trace) -> Result:
    """Return the device work of ranges by name. Only the part inside the window counts.

    Work counts for the ranges that launched it, even if these ranges are before the window.
    """
    nested = nested_ranges(trace)
    kinds, codes = _kinds(trace, nested)
    spans = SpanKinds.of(codes, len(kinds), nested.parent)
    owners = {name: ranges_of_work(trace, name) for name in DEVICE_TABLES}
    table = kinds.assign(
        **_sum_host(trace, len(kinds), codes, nested), **_sum_device(trace, spans, owners, nested)
    )
    table = table.take((table["count"] > 0) | (table["work_count"] > 0))
    kernels = _sum_kernels(trace, spans, owners["kernels"], kinds)
    return Result(
        "range-work",
        RANGE_WORK_SPEC,
        {"range_work": table, "range_kernels": kernels},
        _sum_outside(trace, owners),
    )


def _kinds(trace: Trace, nested: NestedRanges) -> tuple[Table, Ints]:
    """Return the distinct names and domains of ranges, and the row of each range in that table."""
    ranges = trace.whole.ranges.select("name", "domain").take(nested.rows)
    keys = {"name": unnumbered_names(ranges["name"]), "domain": ranges["domain"]}
    groups, kinds = grouped(keys)
    return Table(kinds), groups.number


def _sum_host(trace: Trace, n_kinds: int, codes: Ints, nested: NestedRanges) -> dict[str, Ints]:
    """Return the number, duration, and self time of the ranges in the window, by kind."""
    kind_of = np.full(len(trace.whole.ranges), -1, np.int64)
    kind_of[nested.rows] = codes
    kind = kind_of[trace.rows_in_whole("ranges")]
    nested_rows = np.flatnonzero(kind >= 0)
    ranges = trace.ranges.select("start_ns", "end_ns", "process", "thread").take(nested_rows)
    kind = kind[nested_rows]
    measures: dict[str, Ints | int] = {
        "count": 1,
        "host_ns": lengths_of(ranges),
        "self_ns": self_time_ns(ranges),
    }
    return {name: sums_at(kind, values, n_kinds) for name, values in measures.items()}


def _sum_device(
    trace: Trace, spans: SpanKinds, owners: _Owners, nested: NestedRanges
) -> dict[str, Ints]:
    """Return the columns of device work, by kind."""
    work = sum_work(trace, owners, nested.parent, nested.depth)
    return {
        "device_self_ns": sums_at(spans.codes, work.self_ns, spans.n_kinds),
        "projected_ns": sums_at(spans.codes, work.last_ns - work.first_ns, spans.n_kinds),
        "union_ns": _union_ns(trace, spans, work, owners),
        "work_count": spans.summed(work.work_count),
        "device_ns": spans.summed(work.total_ns),
    }


def _union_ns(trace: Trace, spans: SpanKinds, work: RangeWork, owners: _Owners) -> Ints:
    """Return the time in which a device ran work of each kind, summed over devices.

    Work that overlaps no other work on its device adds its duration. Unions are computed only for
    overlapping work.
    """
    parts = [ints(trace.table(of), "device", "start_ns", "end_ns") for of in owners]
    device, starts, ends = (
        moved_to_disk(np.concatenate(column)) for column in zip(*parts, strict=True)
    )
    owner = moved_to_disk(np.concatenate(list(owners.values())))
    order = np.argsort(starts, kind="stable")
    order = moved_to_disk(order[owner[order] >= 0])
    found = spans.summed(work.total_ns)
    for rows in rows_by_value(device[order]).values():
        for shared in _overlapping(order[rows], starts, ends):
            inside = [(kind, shared[row]) for kind, row in spans.inside(owner[shared])]
            kind, row = (np.concatenate(values) for values in zip(*inside, strict=True))
            np.subtract.at(found, kind, ends[row] - starts[row])
            found += union_lengths(kind, starts[row], ends[row], spans.n_kinds)
    return found


def _overlapping(rows: Ints, starts: Ints, ends: Ints) -> Iterator[Ints]:
    """Yield groups of ``rows`` (sorted by start) that overlap other rows.

    Rows that overlap are in the same group. Groups have about `_MAX_ROWS_AT_ONCE` rows.
    """
    furthest = np.maximum.accumulate(ends[rows])
    begins = np.append(True, starts[rows[1:]] >= furthest[:-1])
    first = np.flatnonzero(begins)
    counts = np.diff(np.append(first, len(rows)))
    is_shared = np.repeat(counts > 1, counts)
    first = np.flatnonzero(begins[is_shared])
    shared = rows[is_shared]
    if len(shared):
        cuts = np.searchsorted(first, np.arange(_MAX_ROWS_AT_ONCE, len(shared), _MAX_ROWS_AT_ONCE))
        yield from np.split(shared, np.unique(first[cuts[cuts < len(first)]]))


def _sum_kernels(trace: Trace, spans: SpanKinds, owner: Ints, kinds: Table) -> Table:
    """Return the number and duration of the kernels launched in ranges, by kind and kernel name."""
    lengths, names = lengths_of(trace.kernels), trace.kernels["name"]
    nothing = np.empty(0, np.int64)
    parts = [_sums_of_pairs(nothing, nothing, nothing, nothing)]
    for kind, row in spans.inside(owner):
        ones = np.ones(len(row), np.int64)
        parts.append(_sums_of_pairs(kind, names.codes[row], ones, lengths[row]))
    kind, name, count, total_ns = _sums_of_pairs(*map(np.concatenate, zip(*parts, strict=True)))
    return kinds.take(kind).assign(kernel=names.texts[name], count=count, total_ns=total_ns)


def _sums_of_pairs(kind: Ints, name: Ints, count: Ints, ns: Ints) -> tuple[Ints, ...]:
    """Return the distinct pairs of kind and name, and the sums of ``count`` and ``ns`` of each."""
    groups = groups_of(kind, name)
    pairs = np.array(groups.keys, np.int64).reshape(-1, 2).T
    return *pairs, groups.reduced(np.add, count), groups.reduced(np.add, ns)


def _sum_outside(trace: Trace, owners: dict[str, Ints]) -> dict[str, int]:
    """Return the scalars: total work, work outside any range, and work without a known launch."""
    totals = dict.fromkeys(("work_ns", "outside_ns", "outside_count", "unlinked_count"), 0)
    for name, owner in owners.items():
        work = trace.table(name)
        lengths = lengths_of(work)
        totals["work_ns"] += int(lengths.sum())
        totals["outside_ns"] += int(lengths[owner < 0].sum())
        totals["outside_count"] += int((owner < 0).sum())
        totals["unlinked_count"] += int((~launches_of(trace, name).is_known).sum())
    return totals


def _finish(result: Result) -> Result:
    """Return the combined result of all ranks with shares, order, and notes."""
    work_ns = result.scalars["work_ns"]
    ratio = result.table["device_ns"] / (work_ns or float("nan"))
    table = result.table.assign(device_ratio=ratio).in_order("-device_ns", "-host_ns", *_KEYS)
    kernels = result.tables["range_kernels"].in_order("-total_ns", *_KEYS, "kernel")
    result = result.with_table(table).with_table(kernels, "range_kernels")
    outside, unlinked = result.scalars["outside_count"], result.scalars["unlinked_count"]
    if not outside:
        return result
    text = "Outside any range: {count:count} kernels and copies ({lost:ns}, {share:ratio} of all)."
    values = {"count": outside, "lost": result.scalars["outside_ns"], "unlinked": unlinked}
    if unlinked:
        text += " Without a recorded launch: {unlinked:count}."
    return result.with_notes(Note.of(text, share=values["lost"] / (work_ns or 1), **values))


RANGE_WORK = Analysis(
    "range-work",
    RANGE_WORK_SPEC,
    needs=("ranges",),
    uses=("kernels", "copies", "api_calls"),
    whole=("ranges",),
    of_rank=measure_range_work,
    finish=_finish,
)
