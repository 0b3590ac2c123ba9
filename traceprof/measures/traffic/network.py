"""Traffic over network, NVLink, and PCI Express, from sampled counters.

The tables are by source and over time. They compare traffic with the input size of the collectives
that ran at the same time, and with the peaks of the links.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from traceprof.hardware.catalogue import Link, Peak
from traceprof.measures.analyses import Analysis
from traceprof.measures.collectives.operations import collectives_of_ranks
from traceprof.measures.collectives.rates import rates_of_peaks
from traceprof.measures.device.counters import measure_link_utilization
from traceprof.measures.device.peaks import peak_of, peak_of_interface
from traceprof.measures.device.times import trace_of_device
from traceprof.measures.facts import fact, of_window
from traceprof.measures.rows import Floats, bounds, lengths_of, rows_by
from traceprof.model.grouping import groups_of, numbered, rows_by_value, rows_by_values
from traceprof.model.intervals import Int64Array, Intervals
from traceprof.model.ranks import Ranks
from traceprof.model.results import Note, Result, ResultSpec, TableSpec, columns
from traceprof.model.table import Names, Table
from traceprof.model.tables import stack
from traceprof.model.timing import TimeWindow
from traceprof.model.trace import Trace, how_to_record

_LOOPBACK: Final = ("nic:lo", "nic:lo0")
_OWNER_COLUMNS: Final = {"process": "process", "gpu": "device"}
_MIN_COVERED_RATIO: Final = 0.5
_HOST_SOURCES: Final = ("nic:", "rdma:")
_KEYS: Final = ("source", "link", "direction")

_WAYS: Final = ("sent", "received")
_CUMULATIVE: Final = {
    f"{of}bytes_{way}": way for of in ("", "tcp_", "nvlink_", "pcie_") for way in _WAYS
}
# NVML measures these rates over the 20 ms after the sample; the time until the next is unknown.
_NVML_RATES: Final = {f"pcie_{way}_bytes_per_s": way for way in _WAYS}
_NVML_SPAN_NS: Final = 20_000_000
_DIRECTIONS: Final = _CUMULATIVE | _NVML_RATES


@of_window
def find_traffic(ranks: Ranks) -> Table:
    """Return the bytes of each source between two samples, clipped to the window.

    Columns: source ("nic:eth0", "rdma:…", "process:123", "gpu:0"), link ("network", "tcp" of a
    process, "nvlink", "pcie"), direction (sent or received, from the point of view of the source),
    start_ns, end_ns, size_bytes. An interval is omitted if the counter fell (it was reset) or is
    NaN (it was not read, or may have wrapped). An interval that the window cuts has its share of
    the bytes.
    """
    return _clip_traffic(_traffic_of_whole(ranks), ranks.span)


@fact
def _traffic_of_whole(ranks: Ranks) -> Table:
    # Several ranks of a host can each have sampled a part of one series.
    """Return `find_traffic` of the whole recording."""
    samples = stack("samples", ranks.each(_traffic_samples))
    sources, metrics = samples["source"], samples["metric"]
    parts = [
        _intervals(sources.texts[source], metrics.texts[metric], samples.take(rows))
        for (source, metric), rows in rows_by_values(sources, metrics).items()
    ]
    empty = Table(
        dict.fromkeys(_KEYS, Names.repeated("", 0))
        | dict.fromkeys(("start_ns", "end_ns", "size_bytes"), np.empty(0, np.int64))
    )
    return Table.stacked([empty, *parts])


def _traffic_samples(trace: Trace) -> Table:
    """Return the samples of traffic counters."""
    return trace.samples.take(trace.samples["metric"].isin(_DIRECTIONS))


def _intervals(source: str, metric: str, rows: Table) -> Table:
    """Return the bytes in each interval between two samples of one metric of one source."""
    instants, values = rows["start_ns"], rows["value"]
    if metric in _NVML_RATES:
        starts, ends = instants, instants + _NVML_SPAN_NS
        moved = values * (_NVML_SPAN_NS / 1e9)
    else:
        starts, ends = instants[:-1], instants[1:]
        moved = np.diff(values)
    kept = (moved >= 0) & (ends > starts)
    keys = dict(zip(_KEYS, (source, _link(source, metric), _DIRECTIONS[metric]), strict=True))
    return Table(
        {
            **{name: Names.repeated(text, int(kept.sum())) for name, text in keys.items()},
            "start_ns": starts[kept],
            "end_ns": ends[kept],
            "size_bytes": np.rint(moved[kept]).astype(np.int64),
        }
    )


def _link(source: str, metric: str) -> str:
    """Return the link that a metric of a source measures."""
    otherwise = "tcp" if source.startswith("process:") else "network"
    return next((link for link in ("nvlink", "pcie") if metric.startswith(link)), otherwise)


def _clip_traffic(traffic: Table, span: TimeWindow) -> Table:
    """Return the intervals clipped to a span, with their share of the bytes."""
    traffic = traffic.take(span.overlaps(*bounds(traffic)))
    starts, ends = bounds(traffic)
    new_starts, new_ends = np.maximum(starts, span.start_ns), np.minimum(ends, span.end_ns)
    share = (new_ends - new_starts) / (ends - starts)
    n_bytes = np.floor(traffic["size_bytes"] * share).astype(np.int64)
    return traffic.assign(start_ns=new_starts, end_ns=new_ends, size_bytes=n_bytes)


@of_window
def traffic_with_collectives(ranks: Ranks) -> Table:
    """Return `find_traffic` with collective_ns and collective_bytes of each interval.

    collective_ns is the time with a running collective. collective_bytes is the input size of the
    collectives, spread evenly over their durations. The sockets of a process and the links of a GPU
    are compared with their own collectives, network interfaces with all collectives.
    """
    traffic = find_traffic(ranks)
    if traffic.empty:
        return traffic.assign(collective_ns=0, collective_bytes=0)
    timed = collectives_of_ranks(ranks.whole)
    timed = timed.take(timed["is_timed"])
    work = timed.select("start_ns", "end_ns", "n_bytes", *_OWNER_COLUMNS.values())
    rows_of = {kind: rows_by(work, column) for kind, column in _OWNER_COLUMNS.items()}
    names = traffic["source"]
    sources: dict[tuple[str, int] | None, list[Int64Array]] = {}
    for source, rows in rows_by_value(names.packed).items():
        kind, _, number = names.texts[source].partition(":")
        owner = (kind, int(number)) if kind in _OWNER_COLUMNS and number.isdigit() else None
        sources.setdefault(owner, []).append(rows)
    starts, ends = bounds(traffic)
    covered, moved = np.zeros(len(traffic), np.int64), np.zeros(len(traffic), np.int64)
    no_rows = np.empty(0, np.int64)
    for owner, row_groups in sources.items():
        rows = np.concatenate(row_groups)
        collectives = work.take(rows_of[owner[0]].get(owner[1], no_rows)) if owner else work
        covered[rows], moved[rows] = _collectives_within(collectives, starts[rows], ends[rows])
    return traffic.assign(collective_ns=covered, collective_bytes=moved)


def peak_of_source(ranks: Ranks, source: str, link: str) -> Peak | None:
    """Return the speed of a source's link (as named in `find_traffic`); None if unknown.

    Loopback interfaces and the sockets of a process have no speed.
    """
    if source in _LOOPBACK or source.startswith("process:"):
        return None
    if source.startswith("gpu:"):
        number = source.removeprefix("gpu:")
        if not number.isdigit():
            return None
        return peak_of(trace_of_device(ranks, int(number)), int(number), Link(link))
    return peak_of_interface(ranks.parts[0], source)


def _collectives_within(
    work: Table, starts: Int64Array, ends: Int64Array
) -> tuple[Int64Array, Int64Array]:
    """Return the time with a running collective in each span, and the collectives' bytes in it."""
    work_starts, work_ends = bounds(work)
    sizes = work["n_bytes"].astype(np.float64)
    sized = (sizes > 0) & (work_ends > work_starts)
    rates = sizes[sized] / (work_ends - work_starts)[sized]
    moved = [
        _bytes_until(work_starts[sized], rates, instants)
        - _bytes_until(work_ends[sized], rates, instants)
        for instants in (starts, ends)
    ]
    covered = Intervals.union_of(work_starts, work_ends).covered_ns(starts, ends)
    return covered, np.asarray(np.rint(moved[1] - moved[0]), np.int64)


def _bytes_until(
    begins: Int64Array, rates: npt.NDArray[np.float64], instants: Int64Array
) -> npt.NDArray[np.float64]:
    """Return the sum of ``rates · (instant - begins)`` over rates that began by each instant."""
    order = np.argsort(begins, kind="stable")
    origin = int(begins.min()) if len(begins) else 0
    rate = np.concatenate(([0.0], np.cumsum(rates[order])))
    begin_sum = np.concatenate(([0.0], np.cumsum(rates[order] * (begins[order] - origin))))
    n_begun = np.searchsorted(begins[order], instants, side="right")
    return np.asarray(rate[n_begun] * (instants - origin) - begin_sum[n_begun], np.float64)


_KEY_COLUMNS: Final = columns("""
    key source: network interface, RDMA port, TCP sockets of a process, or GPU
    key link: network, tcp, nvlink, or pcie
    key direction: sent or received, from the point of view of the source
    """)
SPEC: Final = ResultSpec.of(
    "table sources: one row per source and direction with traffic, sorted by size",
    *_KEY_COLUMNS,
    """
    total size_bytes: bytes transferred
    total duration_ns: part of the window that the samples cover
    derived rate_bytes_per_s: mean rate over duration_ns
    largest top_rate_bytes_per_s: highest rate between two samples
    derived peak_ratio: mean rate as a share of the link's peak
    derived top_ratio: highest rate as a share of the link's peak
    total in_collectives_bytes: part of size_bytes transferred between samples with a running
        collective
    total collective_bytes: input size of the collectives in that time, summed over ranks
    """,
    """
    table links: one row per GPU link and direction, for GPUs that sample link utilization in
        percent (nsys --gpu-metrics-devices). These samples contain no byte counts
    key source: GPU
    key link: nvlink or pcie
    key direction: sent or received, from the point of view of the source
    total duration_ns: part of the window that the samples cover
    derived mean_ratio: mean utilization of the link, including protocol overhead
    derived top_ratio: highest utilization in a sample
    """,
    """
    scalars:
    same window_ns: duration of the window
    """,
)
_SOURCES, _LINKS = SPEC.tables


def _no_counters(ranks: Ranks) -> str:
    """Return the sentence for a trace without network counters."""
    advice = how_to_record("samples", ranks.info, ranks.recorded)
    return f"the trace contains no network counters: {advice}"


def measure_network(ranks: Ranks) -> Result:
    """Return the traffic of each source in the window."""
    traffic = traffic_with_collectives(ranks)
    window_ns = ranks.span.duration_ns
    rows: dict[tuple[str, ...], dict[str, Any]] = {}
    for row in chain.from_iterable(ranks.each(measure_link_utilization)):
        rows.setdefault(tuple(row[key] for key in _KEYS), row)
    links = _LINKS.of_rows(list(rows.values()))
    if traffic.empty:
        tables = {"sources": _SOURCES.of_rows(), "links": links}
        result = Result("network", SPEC, tables, {"window_ns": window_ns})
        return result if rows else result.lacking(_no_counters(ranks))
    table = _sum_by_source(traffic)
    speed = _peaks(ranks, table)
    table = table.assign(
        peak_ratio=table["rate_bytes_per_s"] / speed,
        top_ratio=table["top_rate_bytes_per_s"] / speed,
    )
    tables = {"sources": _SOURCES.of_rows(table), "links": links}
    result = Result("network", SPEC, tables, {"window_ns": window_ns})
    return result.with_notes(*_notes(table), *_note_partial_samples(table, window_ns))


def _sum_by_source(traffic: Table) -> Table:
    """Return one row per source and direction with traffic, sorted by bytes."""
    n_bytes, duration = traffic["size_bytes"], lengths_of(traffic)
    number, first = numbered(*(traffic[key] for key in _KEYS))
    groups = groups_of(number)
    added = {
        "size_bytes": n_bytes,
        "duration_ns": duration,
        "in_collectives_bytes": np.where(traffic["collective_ns"] > 0, n_bytes, 0),
        "collective_bytes": traffic["collective_bytes"],
    }
    sums = {name: groups.reduced(np.add, values) for name, values in added.items()}
    table = traffic.select(*_KEYS).take(first)
    return (
        table.assign(
            **sums,
            rate_bytes_per_s=sums["size_bytes"] / sums["duration_ns"] * 1e9,
            top_rate_bytes_per_s=groups.reduced(np.maximum, n_bytes / duration) * 1e9,
        )
        .take(sums["size_bytes"] > 0)
        .in_order("-size_bytes", "source")
    )


def _notes(sources: Table) -> Iterator[Note]:
    """Yield the network sources with traffic and unknown link speed."""
    if sources.empty:
        yield Note("No network traffic in this window.")
        return
    unknown = dict.fromkeys(sources["source"][np.isnan(sources["peak_ratio"])])
    named = [name for name in unknown if name.startswith(_HOST_SOURCES) and name not in _LOOPBACK]
    if named:
        yield Note.of(
            "The link speed of {sources} is unknown. To see its utilization, specify the speed, "
            "for example --link nic=400Gb/s.",
            sources=", ".join(named),
        )


def _note_partial_samples(sources: Table, window_ns: int) -> Iterator[Note]:
    """Yield the links whose samples cover less than half of the window."""
    rows = sources.rows()
    last = {(row["link"], row["source"]): row for row in rows}
    for row in rows:
        is_last = row is last[row["link"], row["source"]]
        if not is_last or row["duration_ns"] >= _MIN_COVERED_RATIO * window_ns:
            continue
        yield Note.of(
            "The samples of {link} on {source} cover {share:ratio} of the window. The bytes are "
            "for that part only.",
            link=row["link"],
            source=row["source"],
            share=row["duration_ns"] / window_ns,
        )


_USES: Final = ("collectives", "kernels", "api_calls", "ranges", "devices", "environment")
_WHOLE: Final = ("samples", "collectives", "kernels")

NETWORK: Final = Analysis(
    "network", SPEC, needs=("samples",), uses=_USES, whole=_WHOLE, of_ranks=measure_network
)


_INTERVALS: Final = TableSpec.of(
    """
    table intervals: one row per source, direction, and interval between two samples, in time order
    """,
    *_KEY_COLUMNS,
    """
    key at_ns: start of the interval
    key duration_ns: duration of the interval
    total size_bytes: bytes transferred
    derived rate_bytes_per_s: bytes divided by duration
    derived peak_ratio: rate as a share of the link's peak
    derived collective_ratio: share of the interval with a running collective
    total collective_bytes: input size of the collectives in the interval, summed over ranks
    """,
)
_TIME_SPEC: Final = ResultSpec.of(_INTERVALS)


def measure_network_time(ranks: Ranks) -> Result:
    """Return the network traffic between each two consecutive samples of the window."""
    traffic = traffic_with_collectives(ranks)
    if traffic.empty:
        result = Result("network-time", _TIME_SPEC, {"intervals": _INTERVALS.of_rows()})
        return result.lacking(_no_counters(ranks))
    duration = lengths_of(traffic)
    rate = traffic["size_bytes"] / (duration / 1e9)
    table = traffic.assign(
        at_ns=traffic["start_ns"] - ranks.whole.span.start_ns,
        duration_ns=duration,
        rate_bytes_per_s=rate,
        peak_ratio=rate / _peaks(ranks, traffic),
        collective_ratio=traffic["collective_ns"] / duration,
    )
    tables = {"intervals": _INTERVALS.of_rows(table.in_order("at_ns", *_KEYS))}
    return Result("network-time", _TIME_SPEC, tables)


def _peaks(ranks: Ranks, rows: Table) -> Floats:
    """Return the speed of each row's link in bytes/s; NaN if unknown."""
    number, first = numbered(rows["source"], rows["link"])
    distinct = zip(rows["source"][first], rows["link"][first], strict=True)
    speeds: Floats = rates_of_peaks(peak_of_source(ranks, *key) for key in distinct)[number]
    return speeds


NETWORK_TIME: Final = Analysis(
    "network-time",
    _TIME_SPEC,
    needs=("samples",),
    uses=_USES,
    whole=_WHOLE,
    of_steps=True,
    of_ranks=measure_network_time,
)
