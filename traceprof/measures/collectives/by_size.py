"""Collectives by operation, group and message size: time, bandwidth, and overlap with compute."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from traceprof.measures.analyses import Analysis
from traceprof.measures.collectives.blame import why_withheld
from traceprof.measures.collectives.buckets import traffic_per_step
from traceprof.measures.collectives.callers import phases_of_collectives, values_of_rows
from traceprof.measures.collectives.matches import find_matches
from traceprof.measures.collectives.operations import require_collectives
from traceprof.measures.collectives.rates import (
    columns_of_peak,
    count_devices_of_machine,
    peak_of_class,
    rates_of_peaks,
)
from traceprof.measures.collectives.waits import find_values_in, find_waits
from traceprof.measures.rows import Floats, lengths_of, where_known
from traceprof.model.grouping import codes_of, grouped_by, groups_of, numbered
from traceprof.model.intervals import Int64Array
from traceprof.model.ranks import Ranks
from traceprof.model.results import Note, Result, ResultSpec
from traceprof.model.table import Table, is_known
from traceprof.model.tables import ABSENT
from traceprof.names.messages import labels_of_sizes, order_of_size, places_of_sizes
from traceprof.names.ranges import UNCLAIMED

_MIN_UNEVEN_FACTOR: Final = 1.05  # times the mean size
_KEYS: Final = ("op", "group", "group_size")

SPEC: Final = ResultSpec.of("""
    table classes: one row per operation, group, and size class, sorted by total time over all
        ranks. Bandwidth is total size divided by total time, as in nccl-tests. If several ranks
        recorded a collective, its time is that of the shortest rank, which excludes waiting;
        otherwise its recorded duration. Bandwidth is empty if a size, a time, or the number of
        ranks is unknown
    key op: operation
    key sizes: size class of the input per rank (K and M are binary)
    total count: number of collectives, summed over ranks
    total size_bytes: total input size of all ranks; empty if any size is unknown
    total total_ns: total duration, summed over ranks
    derived busbw_bytes_per_s: bus bandwidth: the rate that each link must carry
    derived peak_ratio: bus bandwidth as a share of the link's peak; can exceed 1
    total exposed_ns: time not overlapped with compute on the same GPU
    total waited_ns: part of exposed_ns spent waiting for the last rank, after the ranks first
        synchronized
    derived algbw_bytes_per_s: algorithm bandwidth: operation size divided by time
    median median_ns: median duration
    key group: communicator; empty if it has no name
    key group_size [count]: number of ranks in the communicator
    same algorithm: algorithms and protocols, from kernel names
    same dtype: element types
    same peak_bytes_per_s: peak of the link in one direction
    table phases: one row per phase that called collectives, sorted by exposed time
    key phase: phase of the training loop
    total count: number of collectives
    total exposed_ns: time not overlapped with compute
    table peaks: one row per group size: the link whose peak the bandwidth is compared with
    key group_size [count]: number of ranks
    same peak_bytes_per_s: peak of the link in one direction
    same link: the link
    same source: source of the peak
    same is_larger_than_machine: whether the group has more ranks than a machine in this run has
        GPUs
    scalars:
    total count: number of collectives in the window, summed over ranks
    total shared_count: number of these that several ranks of the run recorded
    total unknown_size_count: number of these with unknown size
    total kernels_without_launch_count: number of these that are kernels without a recorded launch
    total launches_without_kernel_count: number of these that are calls without a recorded kernel
    total ranks_count: number of participating ranks
    derived collectives_per_s: collectives per second per rank
    derived per_step_count [number]: collectives per step per rank
    derived per_step_bytes: input size per step per rank
    derived all_reduce_ratio: share of step time in which an all-reduce runs
    """)
_CLASSES, _PHASES, _PEAKS = SPEC.tables


def measure_collectives(ranks: Ranks) -> Result:
    """Return the collectives of the window by operation, group and size.

    Raises:
        NotRecordedError: neither collectives nor kernels were recorded.
    """
    require_collectives(ranks)
    matches = find_matches(ranks)
    work = matches.rows
    if work.empty:
        tables = {table.name: table.of_rows() for table in SPEC.tables}
        return Result("collectives", SPEC, tables, {"count": 0})
    # Waiting time of each row without compute, after the ranks first synchronized.
    waits = find_values_in(find_waits(ranks), work, "exposed_ns", 0).astype(np.float64)
    waits = np.full(len(work), np.nan) if why_withheld(ranks) else waits
    classes = _with_peaks(ranks, _summarize_classes(_Classes(work), waits, matches.table))
    tables = {
        "classes": _CLASSES.of_rows(_in_order(classes)),
        "phases": _PHASES.of_rows(_by_phase(ranks, work)),
        "peaks": _PEAKS.of_rows(_peaks(ranks, classes, work)),
    }
    notes = tuple(_notes_on_uneven(matches.table["imbalance"]))
    return Result("collectives", SPEC, tables, _scalars(ranks, work), notes)


def _notes_on_uneven(imbalance: Floats) -> Iterator[Note]:
    """Yield a note on the size imbalance of all-to-alls (tokens of experts, rows of embeddings)."""
    uneven = imbalance[imbalance >= _MIN_UNEVEN_FACTOR]
    if len(uneven):
        text = "{n:count} uneven all-to-all(s): one rank sends {times:number} times the mean size."
        yield Note.of(text, n=len(uneven), times=float(np.median(uneven)))


class _Classes:
    """The class (operation, group, size) of each collective.

    ``number`` is the class of each row: 0, 1, … in order of first occurrence. ``first`` is the
    first row of each class. The code reads one column at a time, because all columns of a thousand
    ranks together are large.
    """

    def __init__(self, work: Table) -> None:
        sizes = places_of_sizes(work["n_bytes"])
        self.work = work
        self.number, self.first = numbered(*(codes_of(work[name]) for name in _KEYS), sizes)
        self.keys = work.take(self.first).select(*_KEYS)
        self.keys = self.keys.assign(sizes=labels_of_sizes(sizes[self.first]))
        self.groups = groups_of(self.number)

    def total(
        self, values: npt.NDArray[Any], is_counted: npt.NDArray[np.bool_]
    ) -> npt.NDArray[Any]:
        """Return the sum of the known values of counted rows in each class; NaN without any."""
        is_counted = is_counted & ~np.isnan(values)
        has_any = self.groups.reduced(np.logical_or, is_counted)
        return where_known(self.groups.reduced(np.add, np.where(is_counted, values, 0)), has_any)

    def rows(self) -> Iterator[Int64Array]:
        """Yield the row indices of each class."""
        yield from np.split(self.groups.order, self.groups.first[1:])

    def texts(self, *columns: str) -> list[str]:
        """Return the distinct texts of each class, sorted and joined by commas."""
        _, rows = numbered(self.number, *(codes_of(self.work[name]) for name in columns))
        distinct = self.work.take(rows)
        found: list[set[str]] = [set() for _ in self.first]
        texts = (distinct[name] for name in columns)
        for number, *parts in zip(self.number[rows].tolist(), *texts, strict=True):
            found[number].add(" ".join(parts).strip())
        return [", ".join(sorted(class_texts - {""})) for class_texts in found]


def _summarize_classes(classes: _Classes, wait_ns: npt.NDArray[np.float64], shared: Table) -> Table:
    """Return one row per class, in order of first occurrence.

    ``wait_ns`` is the waiting time of each row. ``device`` is the largest device number of the
    class.
    """
    work = classes.work
    is_timed, n_bytes, times = work["is_timed"], work["n_bytes"], lengths_of(work)
    is_sized = classes.groups.reduced(np.minimum, n_bytes) >= 0
    transfers = list(_transfers_by_class(classes, is_timed, shared))
    return classes.keys.assign(
        count=classes.groups.counts,
        size_bytes=where_known(classes.groups.reduced(np.add, n_bytes), is_sized),
        device=classes.groups.reduced(np.maximum, work["device"]),
        total_ns=classes.total(times, is_timed),
        exposed_ns=classes.total(work["exposed_ns"], is_timed),
        median_ns=[
            float(np.median(times[rows])) if len(rows) else np.nan
            for rows in (class_rows[is_timed[class_rows]] for class_rows in classes.rows())
        ],
        waited_ns=classes.total(wait_ns, is_timed & (work["match"] >= 0)),
        algorithm=classes.texts("algorithm", "protocol"),
        dtype=classes.texts("dtype"),
        algbw_bytes_per_s=[_rate(table, "operation_bytes") for table in transfers],
        busbw_bytes_per_s=[_rate(table, "bus_bytes") for table in transfers],
        operation_bytes=[_mean_known(table["operation_bytes"]) for table in transfers],
    )


def _transfers_by_class(
    classes: _Classes, is_timed: npt.NDArray[np.bool_], shared: Table
) -> Iterator[Table]:
    """Yield a table of transfers for each class.

    Collectives that several ranks recorded count once, with the time of the shortest rank. A class
    without them lists all its rows.
    """
    match = classes.work["match"]
    for rows in classes.rows():
        timed = rows[is_timed[rows]]
        matches = np.unique(match[timed])
        if matches.max(initial=ABSENT) >= 0:
            yield shared.take(np.searchsorted(shared["match"], matches[matches >= 0]))
        else:
            columns = ("start_ns", "end_ns", "operation_bytes", "bus_bytes")
            alone = classes.work.take(timed).select(*columns)
            yield alone.assign(duration_ns=lengths_of(alone))


def _rate(transfers: Table, column: str) -> float:
    """Return total ``column`` divided by total duration, in bytes per second; NaN if unknown."""
    known = ~np.isnan(transfers[column])
    total_ns = int(transfers["duration_ns"][known].sum())
    return float(transfers[column][known].sum()) / total_ns * 1e9 if total_ns > 0 else np.nan


def _mean_known(sizes: Floats) -> float:
    """Return the mean of the known sizes; NaN if none is known."""
    known = sizes[~np.isnan(sizes)]
    return float(known.mean()) if len(known) else np.nan


def _with_peaks(ranks: Ranks, classes: Table) -> Table:
    """Return the classes with peak, peak_bytes_per_s, and peak_ratio."""
    names = ("device", "group_size", "op", "operation_bytes")
    groups = zip(*(classes[name].tolist() for name in names), strict=True)
    peaks = [peak_of_class(ranks, *group) for group in groups]
    rates = rates_of_peaks(peaks)
    return classes.without("operation_bytes").assign(
        peak=peaks, peak_bytes_per_s=rates, peak_ratio=classes["busbw_bytes_per_s"] / rates
    )


def _in_order(classes: Table) -> Table:
    """Return the classes sorted by total time, operation, and size."""
    sizes = classes["group_size"]
    return classes.assign(
        longest=np.nan_to_num(classes["total_ns"]),
        place=[order_of_size(label) for label in classes["sizes"]],
        group_size=where_known(sizes, sizes != ABSENT),
    ).in_order("-longest", "op", "place")


def _by_phase(ranks: Ranks, work: Table) -> Table:
    """Return the number and exposed time of collectives by phase, sorted by exposed time."""
    phases = values_of_rows(work, ranks.each(phases_of_collectives))
    table, groups = grouped_by(Table({"phase": phases}), "phase")
    exposed_ns = groups.sums(work["exposed_ns"])
    return table.assign(count=groups.counts, exposed_ns=exposed_ns).in_order("-exposed_ns")


def _peaks(ranks: Ranks, classes: Table, work: Table) -> list[dict[str, Any]]:
    """Return the peak link bandwidth of each group size, and group sizes without a known peak."""
    is_sized = ~np.isnan(work["bus_bytes"]) & (work["device"] >= 0)
    pairs = groups_of(work["device"][is_sized], work["group_size"][is_sized]).keys
    wider = {size for device, size in pairs if size > count_devices_of_machine(ranks, device)}
    is_compared = is_known(classes["busbw_bytes_per_s"]) & is_known(classes["peak"])
    sizes = (classes[name][is_compared].tolist() for name in ("group_size", "peak"))
    peaks: dict[int, Any] = {}
    for size, peak in zip(*sizes, strict=True):  # of peaks by message size, the highest
        known = peaks.get(size)
        peaks[size] = peak if known is None or peak.bytes_per_s > known.bytes_per_s else known
    return [
        {
            "group_size": size,
            **columns_of_peak(peaks.get(size)),
            "is_larger_than_machine": size in wider,
        }
        for size in [*peaks, *sorted(wider - set(peaks))]
    ]


def _scalars(ranks: Ranks, work: Table) -> dict[str, float | None]:
    """Return the scalars of the result: counts, and the traffic per step."""
    n_ranks = len(groups_of(work["process"], work["member"]).keys)
    seconds = ranks.span.duration_ns / 1e9
    scalars: dict[str, float | None] = {
        "count": len(work),
        "shared_count": int((work["match"] >= 0).sum()),
        "unknown_size_count": int((work["n_bytes"] < 0).sum()),
        "kernels_without_launch_count": int((work["call_ns"] < 0).sum()),
        "launches_without_kernel_count": int((~work["is_timed"]).sum()),
        "ranks_count": n_ranks,
        "collectives_per_s": len(work) / n_ranks / seconds if seconds else None,
    }
    return scalars | traffic_per_step(ranks, work)


def _with_notes(result: Result) -> Result:
    """Return the result with notes on the collectives, missing data, and the peaks."""
    if not result.scalars["count"]:
        return result.with_notes(Note("No collective starts in this window."))
    scalars = result.scalars
    missing = [
        Note.of(text, n=scalars[name], count=scalars["count"])
        for name, text in _MISSING.items()
        if scalars[name]
    ]
    return result.with_notes(
        *_notes_on_all(scalars), *_notes_on_phases(result), *missing, *_notes_on_peaks(result)
    )


_PACE: Final = {
    "pace": ("collectives_per_s", "{pace:count} collectives per second"),
    "count": ("per_step_count", "{count:count} per step"),
    "size": ("per_step_bytes", "{size:bytes} per step"),
    "share": ("all_reduce_ratio", "all-reduce runs during {share:ratio} of step time"),
}
_MISSING: Final = {
    "unknown_size_count": "Bandwidth excludes {n:count} of {count:count} collectives whose size "
    "was not recorded.",
    "kernels_without_launch_count": "{n:count} of {count:count} collectives are kernels without "
    "a recorded launch.",
    "launches_without_kernel_count": "{n:count} of {count:count} collectives are calls without "
    "a recorded kernel. Their duration is unknown.",
}


def _notes_on_all(scalars: Mapping[str, Any]) -> Iterator[Note]:
    """Yield a note on how durations were measured, and a note on the traffic per step."""
    shared, count = scalars["shared_count"], scalars["count"]
    if shared:
        text = (
            "Several ranks recorded {shared:count} of {count:count} collectives. Their bandwidth "
            "uses the time of the shortest rank, which excludes waiting."
        )
        yield Note.of(text, shared=shared, count=count)
    else:
        yield Note(
            "No collective was recorded on several ranks. Durations include waiting for other "
            "ranks, so bandwidths are lower bounds."
        )
    known = {name: scalars.get(scalar) for name, (scalar, _) in _PACE.items()}
    if pace := {name: value for name, value in known.items() if value is not None}:
        yield Note(", ".join(_PACE[name][1] for name in pace), pace)


def _notes_on_phases(result: Result) -> Iterator[Note]:
    """Yield a note that lists the exposed time by calling phase."""
    phases = result.tables["phases"]
    exposed = phases.take(phases["exposed_ns"].astype(np.float64) > 0)
    if exposed.empty or exposed["phase"].tolist() == [UNCLAIMED]:
        return
    values: dict[str, Any] = {}
    parts = []
    pairs = zip(exposed["phase"], exposed["exposed_ns"].tolist(), strict=True)
    for i, (phase, exposed_ns) in enumerate(pairs):
        values |= {f"phase{i}": phase, f"exposed{i}": exposed_ns}
        parts.append(f"{{phase{i}}} {{exposed{i}:ns}}")
    yield Note(f"Exposed time by calling phase: {', '.join(parts)}", values)


def _notes_on_peaks(result: Result) -> Iterator[Note]:
    """Yield a note on each known peak, and a note on group sizes without a known peak."""
    peaks = result.tables["peaks"]
    known = is_known(peaks["peak_bytes_per_s"])
    for row in peaks.take(known).rows():
        text = "Peak for groups of {n:count} ranks: {peak:bytes/s} ({link}; {source})"
        if not row["is_larger_than_machine"]:
            text += ", assuming that the ranks share a machine"
        yield Note.of(
            text,
            n=row["group_size"],
            peak=row["peak_bytes_per_s"],
            link=row["link"],
            source=row["source"],
        )
    unknown = peaks["group_size"][~known].tolist()
    if len(unknown):
        yield Note.of(
            "Groups of {sizes} ranks are larger than a machine in this trace. Specify the network "
            "bandwidth per GPU, for example --link nic=400Gb/s.",
            sizes=", ".join(map(str, unknown)),
        )


COLLECTIVES: Final = Analysis(
    "collectives",
    SPEC,
    uses=("collectives", "kernels", "api_calls", "ranges", "processes", "devices", "environment"),
    whole=("collectives", "kernels", "ranges"),
    of_steps=True,
    of_ranks=measure_collectives,
    finish=_with_notes,
)
