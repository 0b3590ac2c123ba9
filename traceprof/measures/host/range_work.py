"""Device work by host range: what was launched inside each NVTX range, and when that ran.

Work belongs to every range that is open on its launching thread at the launch, as in the reports
nvtxgpuproj and nvtxkernsum of ``nsys stats``. Different from these: a range inside another of
its name counts its work once, names are without numbers and the ids of operators, copies and
memsets count beside kernels, and ranges that do not nest (start/end) are left out.
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

_FEW_ROUNDS: Final = 64
"""Spans seldom nest deeper; up to here one look at the next outer one after the other is quick."""


@dataclass(frozen=True, slots=True, eq=False)
class RangeWork:
    """For each of some nested host spans, the kernels and copies launched inside it.

    ``parent`` is the row of the span around each, -1 for the outermost. Totals include the
    spans inside, self times do not; times are summed over streams and devices. ``first_ns`` to
    ``last_ns`` is the span projected onto the devices: from the first start to the last end of
    its work (0, 0 where ``work_count`` is 0).
    """

    parent: Ints
    self_ns: Ints
    total_ns: Ints
    work_count: Ints
    first_ns: Ints
    last_ns: Ints


def is_outermost_of(codes: Ints, parent: Ints) -> Bools:
    """Return which spans have none of the same code around them (recursion counts once)."""
    outermost = np.ones(len(codes), np.bool_)
    rows, above = np.arange(len(codes)), parent
    for _ in range(_FEW_ROUNDS):
        inside = above >= 0
        rows, above = rows[inside], above[inside]
        if not len(rows):
            break
        outermost[rows[codes[above] == codes[rows]]] = False
        above = parent[above]
    return outermost if not len(rows) else ~has_ancestor_with_same_code(codes, parent)


def add_to_parents(values: Ints, parent: Ints, depth: Ints) -> Ints:
    """Return the value of each span together with those of all spans inside it."""
    total = values.copy()
    for rows in _inside_others(parent, depth):
        np.add.at(total, parent[rows], total[rows])
    return total


def _inside_others(parent: Ints, depth: Ints) -> Iterator[Ints]:
    """Yield the spans that are inside others, the deepest first."""
    inside = np.flatnonzero(parent >= 0)
    return (inside[rows] for rows in reversed(levels_of(depth[inside])))


def sum_work(trace: Trace, owners: Mapping[str, Ints], parent: Ints, depth: Ints) -> RangeWork:
    """Return the work of nested spans; ``owners`` say which span launched each row of a table.

    That is the innermost one, -1 where there is none.
    """
    n_spans = len(parent)
    device_self_ns, count = np.zeros(n_spans, np.int64), np.zeros(n_spans, np.int64)
    first = np.full(len(parent), np.iinfo(np.int64).max)
    last = np.full(len(parent), np.iinfo(np.int64).min)
    for name, owner in owners.items():
        work = trace.table(name)
        owned, (starts, ends) = owner >= 0, bounds(work)
        device_self_ns += sums_at(owner, ends - starts, n_spans)
        count += sums_at(owner, 1, n_spans)
        np.minimum.at(first, owner[owned], starts[owned])
        np.maximum.at(last, owner[owned], ends[owned])
    for rows in _inside_others(parent, depth):
        np.minimum.at(first, parent[rows], first[rows])
        np.maximum.at(last, parent[rows], last[rows])
    total_count = add_to_parents(count, parent, depth)
    worked = total_count > 0
    return RangeWork(
        parent=parent,
        self_ns=device_self_ns,
        total_ns=add_to_parents(device_self_ns, parent, depth),
        work_count=total_count,
        first_ns=np.where(worked, first, 0),
        last_ns=np.where(worked, last, 0),
    )


@dataclass(frozen=True, slots=True, eq=False)
class NestedRanges:
    """The ranges of the whole trace that nest on their thread.

    ``rows`` are their rows in ``ranges``; ``parent`` (the place in ``rows`` of the range around
    each, -1 for the outermost) and ``depth`` are as `find_parents` gives them.
    """

    rows: Ints
    parent: Ints
    depth: Ints


@fact
def nested_ranges(trace: Trace) -> NestedRanges:
    """Return how the ranges of the whole trace nest."""
    rows = np.flatnonzero(trace.ranges["kind"] == "push_pop")
    spans = trace.ranges.select("process", "thread", "start_ns", "end_ns").take(rows)
    return NestedRanges(rows, *find_parents(spans))


@of_rows
def ranges_of_work(trace: Trace, table: str) -> Ints:
    """Return the place in `nested_ranges` of the innermost range that launched each row; -1: none.

    That is on the launching thread: what autograd's threads launch belongs to their own ranges.
    """
    place = np.full(len(trace.ranges) + 1, -1, np.int64)
    rows = nested_ranges(trace).rows
    place[rows] = np.arange(len(rows))
    return place[range_of_launches(trace, launches_of(trace, table))]


@dataclass(frozen=True, slots=True, eq=False)
class SpanKinds:
    """Nested spans by their kind: of those of a kind in one another the outermost alone counts.

    ``codes`` are the kinds (a number for its name, say), from 0 to ``n_kinds`` - 1. ``nearest`` is
    the innermost span that counts of each and those around it, ``outer`` the next of those around.
    """

    codes: Ints
    n_kinds: int
    counts: Bools
    nearest: Ints
    outer: Ints
    chain: Ints

    @classmethod
    def of(cls, codes: Ints, n_kinds: int, parent: Ints) -> SpanKinds:
        """Return the kinds of spans; ``parent`` is the one around each, -1 for the outermost."""
        counts = is_outermost_of(codes, parent)
        outer = find_nearest_ancestors(parent, counts)
        nearest = np.where(counts, np.arange(len(codes)), outer)
        return cls(codes, n_kinds, counts, nearest, outer, sum_of_chains(counts, parent))

    def summed(self, totals: Ints) -> Ints:
        """Return the sum of each kind; ``totals`` are of each span and all inside it."""
        return sums_at(self.codes[self.counts], totals[self.counts], self.n_kinds)

    def inside(self, owner: Ints) -> Iterator[tuple[Ints, Ints]]:
        """Yield which work was launched inside which kind, each pair of a kind and a row once.

        ``owner`` is the innermost span around each row of work, -1 where there is none. Rows ascend
        in each portion: first those of the innermost kinds, then of those around them.
        """
        row = np.flatnonzero(owner >= 0)
        check_pairs(int(self.chain[owner[row]].sum()), len(row) + len(self.codes))
        span = self.nearest[owner[row]]
        while len(row):
            yield self.codes[span], row
            span = self.outer[span]
            row, span = row[span >= 0], span[span >= 0]


_Owners: TypeAlias = Mapping[str, Ints]
_AT_ONCE: Final = 200_000
"""Of about so many kernels and copies that overlap unions are made at a time."""

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
    """Return the device work of the ranges by name; of those that the window cuts, the part inside.

    Work counts for the ranges that launched it, also where these lie before the window.
    """
    nested = nested_ranges(trace)
    kinds, codes = _kinds(trace, nested)
    spans = SpanKinds.of(codes, len(kinds), nested.parent)
    owners = {name: ranges_of_work(trace, name) for name in DEVICE_TABLES}
    of_device = _device(trace, spans, owners, nested)
    table = kinds.assign(**_host(trace, len(kinds), codes, nested), **of_device)
    table = table.take((table["count"] > 0) | (table["work_count"] > 0))
    kernels = _kernels(trace, spans, owners["kernels"], kinds)
    return Result(
        "range-work",
        RANGE_WORK_SPEC,
        {"range_work": table, "range_kernels": kernels},
        _outside(trace, owners),
    )


def _kinds(trace: Trace, nested: NestedRanges) -> tuple[Table, Ints]:
    """Return the distinct names and domains of ranges, and which of them each range is."""
    ranges = trace.whole.ranges.select("name", "domain").take(nested.rows)
    domains = ranges["domain"]
    groups, kinds = grouped({"name": unnumbered_names(ranges["name"]), "domain": domains})
    return Table(kinds), groups.number


def _host(trace: Trace, n_kinds: int, codes: Ints, nested: NestedRanges) -> dict[str, Ints]:
    kind_of = np.full(len(trace.whole.ranges), -1, np.int64)
    kind_of[nested.rows] = codes
    kind = kind_of[trace.rows_in_whole("ranges")]
    here = np.flatnonzero(kind >= 0)
    ranges = trace.ranges.select("start_ns", "end_ns", "process", "thread").take(here)
    kind = kind[here]
    own: dict[str, Ints | int] = {
        "count": 1,
        "host_ns": lengths_of(ranges),
        "self_ns": self_time_ns(ranges),
    }
    return {name: sums_at(kind, values, n_kinds) for name, values in own.items()}


def _device(
    trace: Trace, spans: SpanKinds, owners: _Owners, nested: NestedRanges
) -> dict[str, Ints]:
    work = sum_work(trace, owners, nested.parent, nested.depth)
    return {
        "device_self_ns": sums_at(spans.codes, work.self_ns, spans.n_kinds),
        "projected_ns": sums_at(spans.codes, work.last_ns - work.first_ns, spans.n_kinds),
        "union_ns": _union_ns(trace, spans, work, owners),
        "work_count": spans.summed(work.work_count),
        "device_ns": spans.summed(work.total_ns),
    }


def _union_ns(trace: Trace, spans: SpanKinds, work: RangeWork, owners: _Owners) -> Ints:
    """Return when a device worked on anything of each kind, added up over devices.

    Work that has its device to itself counts as it is: unions are made of what overlaps alone.
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
    """Yield those of ``rows``, which come by start, that overlap others; what overlaps at once."""
    furthest = np.maximum.accumulate(ends[rows])
    begins = np.append(True, starts[rows[1:]] >= furthest[:-1])
    first = np.flatnonzero(begins)
    counts = np.diff(np.append(first, len(rows)))
    is_shared = np.repeat(counts > 1, counts)
    first = np.flatnonzero(begins[is_shared])
    shared = rows[is_shared]
    if len(shared):
        cuts = np.searchsorted(first, np.arange(_AT_ONCE, len(shared), _AT_ONCE))
        yield from np.split(shared, np.unique(first[cuts[cuts < len(first)]]))


def _kernels(trace: Trace, spans: SpanKinds, owner: Ints, kinds: Table) -> Table:
    lengths, names = lengths_of(trace.kernels), trace.kernels["name"]
    nothing = np.empty(0, np.int64)
    parts = [_sums_of_pairs(nothing, nothing, nothing, nothing)]
    for kind, row in spans.inside(owner):
        ones = np.ones(len(row), np.int64)
        parts.append(_sums_of_pairs(kind, names.codes[row], ones, lengths[row]))
    kind, name, count, total_ns = _sums_of_pairs(*map(np.concatenate, zip(*parts, strict=True)))
    return kinds.take(kind).assign(kernel=names.texts[name], count=count, total_ns=total_ns)


def _sums_of_pairs(kind: Ints, name: Ints, count: Ints, ns: Ints) -> tuple[Ints, ...]:
    """Return the distinct pairs of a kind and a name, and the sums of each."""
    groups = groups_of(kind, name)
    pairs = np.array(groups.keys, np.int64).reshape(-1, 2).T
    return *pairs, groups.reduced(np.add, count), groups.reduced(np.add, ns)


def _outside(trace: Trace, owners: dict[str, Ints]) -> dict[str, int]:
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
    work_ns = result.scalars["work_ns"]
    ratio = result.table["device_ns"] / (work_ns or float("nan"))
    table = result.table.assign(device_ratio=ratio).in_order("-device_ns", "-host_ns", *_KEYS)
    kernels = result.tables["range_kernels"].in_order("-total_ns", *_KEYS, "kernel")
    result = result.with_table(table).with_table(kernels, "range_kernels")
    outside, unlinked = result.scalars["outside_count"], result.scalars["unlinked_count"]
    if not outside:
        return result
    text = "Outside any range: {count:count} kernels and copies ({lost:ns}, {share:ratio} of all)."
    told = {"count": outside, "lost": result.scalars["outside_ns"], "unlinked": unlinked}
    if unlinked:
        text += " Without a recorded launch: {unlinked:count}."
    return result.with_notes(Note.of(text, share=told["lost"] / (work_ns or 1), **told))


RANGE_WORK = Analysis(
    "range-work",
    RANGE_WORK_SPEC,
    needs=("ranges",),
    uses=("kernels", "copies", "api_calls"),
    whole=("ranges",),
    of_rank=measure_range_work,
    finish=_finish,
)
