"""Report why devices were idle: gaps by cause, name, and length; longest gaps; host-bound steps."""

from __future__ import annotations

from collections import Counter
from typing import Final

import numpy as np

from traceprof.measures.analyses import Analysis, measured_by_rank
from traceprof.measures.device.times import (
    devices_of_processes,
    note_on_unrecorded,
    recorded_times,
    used_devices,
)
from traceprof.measures.idle.charges import find_charges, find_host_charges
from traceprof.measures.idle.gaps import CAUSES, find_gaps, times_in_gaps
from traceprof.measures.idle.losses import Analyzed, analyzed, find_idle_parts
from traceprof.measures.lost_work import lost_work
from traceprof.measures.rows import (
    Floats,
    Ints,
    Texts,
    are_first,
    grouped,
    ints,
    lengths_of,
    rows_by,
    span_at,
)
from traceprof.measures.steps.completeness import completeness
from traceprof.measures.steps.find import find_steps
from traceprof.model.grouping import grouped_by, groups_of, rows_by_value
from traceprof.model.intervals import union_lengths
from traceprof.model.ranks import Ranks
from traceprof.model.results import Note, Result, ResultSpec, Unit, derived, key
from traceprof.model.table import Table
from traceprof.model.trace import Trace
from traceprof.names.ranges import PROFILER

_HISTOGRAM_EDGES_NS: Final = (0, 10_000, 100_000, 1_000_000, 10_000_000, 100_000_000, 1_000_000_000)
_HOST_CAUSES: Final = ("data", "synchronizing", "launch", "host")
_MIN_HOST_BOUND_RATIO: Final = 0.3
"""Steps in which the GPUs wait for the host for more than this share of the time are host-bound."""
_MAX_LISTED_STEPS: Final = 12
_MAX_LISTED_NAMES: Final = 3
_DEVICE: Final = key("device", "GPU index in the run", Unit.NUMBER)
_SHARE: Final = "idle time as a share of the step time, as in `breakdown`, or of the window"

IDLE_SPEC: Final = ResultSpec.of(
    """
    table causes: one row per GPU and cause of idle time, largest first
    """,
    _DEVICE,
    """
    key cause: cause of the idle time
    total total_ns: idle time with this cause; the causes of a GPU add up to its idle time
    """,
    derived("share_ratio", Unit.RATIO, _SHARE),
    """
    derived idle_ratio: total_ns as a share of the GPU's idle time
    total gap_count: number of idle gaps in which this cause is the largest
    table total: one row per cause of idle time, summed over all GPUs, largest first
    key cause: cause of the idle time
    total total_ns: idle time with this cause
    derived share_ratio: idle time as a share of the step time, as in `breakdown`, or of the window;
        mean over GPUs
    table names: one row per GPU, cause on the host, and CPU activity during the idle time, largest
        first
    """,
    _DEVICE,
    """
    key cause: cause of the idle time
    key name: innermost open range, operator, or call, without step and occurrence numbers;
        "(nothing recorded)" if none was open
    key operator: outermost operator around the name; the name itself if there is none
    key thread: "launching" for the thread that launches the work that ends the gap; "other" for
        another thread, while the launching thread waited or recorded nothing
    total total_ns: GPU idle time that overlaps with the name
    """,
    derived("share_ratio", Unit.RATIO, _SHARE),
    """
    total gap_count: number of idle gaps with this name
    table devices: one row per GPU with activity in the trace, with its idle time
    """,
    _DEVICE,
    """
    total recorded_ns: duration of the window, without the parts that were not recorded
    total idle_ns: idle time of the GPU
    derived share_ratio: idle time as a share of the step time, as in `breakdown`, or of the window
    table histogram: idle gaps of each GPU by duration
    """,
    _DEVICE,
    """
    key lower_bound_ns: shortest gap duration in the row
    same upper_bound_ns: upper bound of the gap duration (exclusive)
    total count: number of gaps
    total total_ns: total duration of the gaps
    table host_bound_steps: steps in which the GPUs wait for the host for more than 30% of the time
    key process: process ID
    key step: step number
    same idle_ratio: share of the step in which the GPUs wait for the host; mean over GPUs
    scalars:
    same window_ns: duration of the window
    total missing_count: number of launches in the window whose GPU work is missing from the trace
    """,
)


def measure_idle(ranks: Ranks) -> Result:
    """Return the idle time of each device by cause."""
    lost = lost_work(ranks)
    is_known = lost is None or lost.is_idle_known
    return _finish(measured_by_rank(ranks, _measure), analyzed(ranks), is_known)


def _measure(trace: Trace) -> Result:
    """Return the idle time of each device of one rank."""
    gaps = find_gaps(trace)
    tables = {
        "causes": _by_cause(trace, gaps),
        "names": _by_name(find_host_charges(trace)),
        "devices": _by_device(trace, gaps),
        "histogram": _histogram(gaps),
        "host_bound_steps": _host_bound_steps(trace, gaps),
    }
    return Result(
        "idle",
        IDLE_SPEC,
        tables={name: IDLE_SPEC.table(name).of_rows(table) for name, table in tables.items()},
        scalars={
            "window_ns": trace.span.duration_ns,
            "missing_count": sum(completeness(trace).n_lost.values()),
        },
    )


def _by_cause(trace: Trace, gaps: Table) -> Table:
    """Return a table with one row per device and cause that occurs in its gaps."""
    parts, rows_of = find_idle_parts(trace), rows_by_value(gaps["device"])
    numbers = np.array(list(rows_of), np.int64)
    total_ns, gap_count = (np.zeros((len(numbers), len(CAUSES)), np.int64) for _ in range(2))
    largest, most_ns = (np.zeros(len(gaps), np.int64) for _ in range(2))
    for cause in np.unique(parts["cause"]).tolist():
        ns = times_in_gaps(len(gaps), parts, cause)
        largest[ns > most_ns] = cause
        most_ns = np.maximum(ns, most_ns)
        total_ns[:, cause] = [ns[rows].sum() for rows in rows_of.values()]
    for number, rows in enumerate(rows_of.values()):
        gap_count[number] = np.bincount(largest[rows], minlength=len(CAUSES))
    devices, places = np.nonzero(total_ns)
    return Table(
        {
            "device": numbers[devices],
            "cause": np.array(CAUSES, object)[places],
            "total_ns": total_ns[devices, places],
            "gap_count": gap_count[devices, places],
        }
    )


def _by_device(trace: Trace, gaps: Table) -> Table:
    """Return the recorded time and the idle time of each device with activity."""
    devices, lengths = [*used_devices(trace)], lengths_of(gaps)
    idle_ns = {device: lengths[rows].sum() for device, rows in rows_by(gaps, "device").items()}
    recorded_ns = [recorded_times(trace, device).total_ns for device in devices]
    return Table(
        {
            "device": np.array(devices, np.int64),
            "recorded_ns": np.array(recorded_ns, np.int64),
            "idle_ns": np.array([idle_ns.get(device, 0) for device in devices], np.int64),
        }
    )


def _by_name(charged: Table) -> Table:
    """Return a table with one row per device, cause, name, and thread."""
    groups, keys = grouped(
        {name: charged[name] for name in ("device", "cause", "operator", "name", "by")}
    )
    # The rows are sorted by gap, so equal pairs of group and gap are adjacent.
    number = groups.number[groups.order]
    opens = are_first(number, charged["gap"][groups.order])
    return Table(
        {
            **keys,
            "total_ns": groups.reduced(np.add, charged["ns"]),
            "gap_count": np.bincount(number[opens], minlength=len(groups.keys)),
        }
    ).renamed(by="thread")


def _histogram(gaps: Table) -> Table:
    """Return the number and total length of the gaps of each device, by length."""
    lengths = lengths_of(gaps)
    length = np.searchsorted(_HISTOGRAM_EDGES_NS, lengths, side="right") - 1
    edges = np.array([*_HISTOGRAM_EDGES_NS, np.iinfo(np.int64).max])
    groups, keys = grouped({"device": gaps["device"], "length": length})
    place = keys["length"]
    return Table(
        {
            "device": keys["device"],
            "lower_bound_ns": edges[place],
            "upper_bound_ns": edges[place + 1],
            "count": groups.counts,
            "total_ns": groups.reduced(np.add, lengths),
        }
    )


def _host_bound_steps(trace: Trace, gaps: Table) -> Table:
    """Return the steps in which devices wait for the host for more than `_MIN_HOST_BOUND_RATIO`."""
    steps = find_steps(trace)
    ratio = _waited_for_host(trace, steps.table, gaps) / np.maximum(steps.durations_ns, 1)
    found = steps.table.select("process", "step").assign(idle_ratio=ratio)
    return found.take(ratio > _MIN_HOST_BOUND_RATIO)


def _waited_for_host(trace: Trace, steps: Table, gaps: Table) -> Floats:
    """Return the time in ns that devices waited for the host in each step (mean over its devices).

    A gap counts for the step in which it ends.
    """
    waited = np.zeros(len(steps))
    causes = [CAUSES.index(cause) for cause in _HOST_CAUSES]
    lost = times_in_gaps(len(gaps), find_idle_parts(trace), *causes).astype(np.float64)
    closed = gaps["end_ns"]
    gaps_of = rows_by_value(gaps["device"])
    devices_of = devices_of_processes(trace)
    starts, ends = ints(steps, "device_start_ns", "device_end_ns")
    for process, rows in rows_by(steps, "process").items():
        devices = devices_of.get(process, ())
        for rows_of_gaps in (gaps_of[device] for device in devices if device in gaps_of):
            place = span_at(starts[rows], ends[rows], closed[rows_of_gaps] - 1)
            np.add.at(waited, rows[place[place >= 0]], lost[rows_of_gaps[place >= 0]])
        waited[rows] /= max(1, len(devices))
    return waited


def _finish(result: Result, shares_of: Analyzed, is_known: bool) -> Result:
    """Return the combined result of all ranks with shares, order, and notes."""
    table, devices, names = (result.tables[name] for name in ("causes", "devices", "names"))
    of_device = groups_of(table["device"])
    idle_ns = of_device.reduced(np.add, table["total_ns"])[of_device.number]
    shares = {
        name: _shares_of_base(part_table, shares_of)
        for name, part_table in (("causes", table), ("names", names))
    }
    table = table.assign(
        share_ratio=shares["causes"],
        idle_ratio=table["total_ns"] / idle_ns,
        place=[CAUSES.index(cause) for cause in table["cause"].tolist()],
    )
    names = names.assign(share_ratio=shares["names"])
    names = names.in_order("-total_ns", "device", "cause", "name", "operator", "thread")
    result = result.with_table(_sum_over_devices(table, shares_of), "total")
    sums = dict.fromkeys(devices["device"].tolist(), 0.0)
    for device, share in zip(table["device"].tolist(), shares["causes"].tolist(), strict=True):
        sums[device] += np.nan_to_num(share)
    known = devices["recorded_ns"] > 0
    devices = devices.assign(share_ratio=np.where(known, np.array([*sums.values()]), np.nan))
    result = result.with_table(table.in_order("-total_ns", "device", "place"))
    result = result.with_table(names, "names").with_table(devices, "devices")
    missing = int(result.scalars["missing_count"])
    text = (
        "The GPU work of {missing:count} launch(es) is missing from the trace. The GPUs may have "
        "been busy for part of this idle time."
    )
    lost = [Note.of(text, missing=missing)] if missing else []
    unrecorded = note_on_unrecorded(result, devices["recorded_ns"])
    bound = _notes_on_host_bound(result.tables["host_bound_steps"]) if is_known else []
    return result.with_notes(*lost, *unrecorded, *bound, *_note_on_host_names(names))


def _sum_over_devices(causes: Table, base: Analyzed) -> Table:
    """Return the idle time and share_ratio by cause over all devices, largest first."""
    keys, groups = grouped_by(causes, "cause")
    whole_ns = np.array([base.whole_ns.get(device, 0.0) for device in causes["device"].tolist()])
    shares = groups.sums(causes["share_ratio"] * whole_ns) / (sum(base.whole_ns.values()) or np.nan)
    table = keys.assign(total_ns=groups.sums(causes["total_ns"]), share_ratio=shares)
    return IDLE_SPEC.table("total").of_rows(table.in_order("-total_ns", "cause"))


def _shares_of_base(table: Table, base: Analyzed) -> Floats:
    """Return idle times as shares of the step time of each device.

    NaN for overhead of the profiler if the step time was measured without the profiler.
    """
    devices = table["device"].tolist()
    whole_ns = np.array([base.whole_ns.get(device) or np.nan for device in devices], np.float64)
    scales = np.array([base.idle_scale.get(device, 1.0) for device in devices], np.float64)
    is_added = (table["cause"] == PROFILER) & base.is_unprofiled
    return np.where(is_added, np.nan, table["total_ns"] * scales / whole_ns)


def _note_on_host_names(names: Table) -> list[Note]:
    """Return a note with the operators that were open the longest while devices were idle."""
    sums = Counter[str]()
    for name, ns in zip(names["operator"].tolist(), names["total_ns"].tolist(), strict=True):
        sums[name] += ns
    ranked = sorted(sums.items(), key=lambda item: (-item[1], item[0]))[:_MAX_LISTED_NAMES]
    if not ranked:
        return []
    values: dict[str, object] = {}
    for i, (name, ns) in enumerate(ranked):
        values |= {f"name{i}": name, f"ns{i}": ns}
    listed = ", ".join(f"{{name{i}}} {{ns{i}:ns}}" for i in range(len(ranked)))
    return [Note(f"CPU activity while the GPUs were idle: {listed}.", values)]


def _notes_on_host_bound(steps: Table) -> list[Note]:
    """Return a note that lists the host-bound steps, if there are any."""
    if steps.empty:
        return []
    numbers = list(dict.fromkeys(steps["step"].tolist()))
    return [
        Note.of(
            "Host-bound steps: {n:count} ({steps}{more}). In these steps, the GPUs wait for the "
            "host for more than {limit:ratio} of the time.",
            n=len(numbers),
            limit=_MIN_HOST_BOUND_RATIO,
            steps=", ".join(map(str, numbers[:_MAX_LISTED_STEPS])),
            more="" if len(numbers) <= _MAX_LISTED_STEPS else " …",
        )
    ]


IDLE = Analysis(
    "idle",
    IDLE_SPEC,
    needs=("kernels", "copies", "api_calls"),
    uses=("marks", "ranges", "host_ops", "functions", "overheads", "devices", "collectives"),
    whole=("kernels", "copies"),
    of_steps=True,
    of_ranks=measure_idle,
)


_MAX_GAPS: Final = 1000
GAPS_SPEC: Final = ResultSpec.of("""
    table gaps: longest idle gaps, longest first
    key device: GPU index in the run
    key at_ns: start of the gap
    same duration_ns: duration of the gap inside the window
    same cause: main cause of the gap
    same cause_ratio: share of the gap with this cause
    same host_name: CPU activity that delayed the GPU for most of the gap: the innermost range,
        operator, or call on the thread that launches the work that ends the gap, else on another
        running thread; "" if the CPU did not delay the GPU
    same host_ratio: share of the gap attributed to host_name
    same overlapping_activity: longest activity of other threads during the gap, not attributed as
        a cause
    same overlap_ratio: share of the gap covered by overlapping_activity
    same before: last kernel or copy before the gap
    same after: first kernel or copy after the gap
    scalars:
    total gaps_count: number of gaps on all GPUs
    """)


def measure_gaps(trace: Trace) -> Result:
    """Return the longest gaps of the devices of a rank."""
    gaps = find_gaps(trace)
    longest = np.argsort(-lengths_of(gaps), kind="stable")[:_MAX_GAPS]
    return Result(
        "gaps",
        GAPS_SPEC,
        tables={"gaps": GAPS_SPEC.tables[0].of_rows(_describe_gaps(trace, gaps, longest))},
        scalars={"gaps_count": len(gaps)},
    )


def cause_times_of_gaps(trace: Trace, gaps: Ints) -> Ints:
    """Return the ns per gap (row of `find_gaps`) and cause. Shape: (len(gaps), len(CAUSES))."""
    parts = find_idle_parts(trace)
    parts = parts.take(np.isin(parts["gap"], gaps))
    order = np.argsort(gaps)
    place = order[np.searchsorted(gaps[order], parts["gap"])]
    found = np.zeros((len(gaps), len(CAUSES)), np.int64)
    np.add.at(found, (place, parts["cause"]), parts["end_ns"] - parts["start_ns"])
    return found


def _describe_gaps(trace: Trace, all_gaps: Table, rows: Ints) -> Table:
    """Return the rows of table gaps for the gaps with row numbers ``rows``."""
    gaps = all_gaps.take(rows)
    starts, lengths = gaps["start_ns"], lengths_of(gaps)
    causes = cause_times_of_gaps(trace, rows)
    charged, attributed_ns = _longest_name(find_host_charges(trace), rows)
    running = find_charges(trace).running
    other_name, other_ns = _longest_name(running.take(running["by"] == "other"), rows)
    return Table(
        {
            "device": gaps["device"],
            "at_ns": starts - trace.whole.span.start_ns,
            "duration_ns": lengths,
            "cause": np.array(CAUSES, object)[causes.argmax(axis=1)],
            "cause_ratio": causes.max(axis=1, initial=0) / np.maximum(lengths, 1),
            "before": gaps["before"].plain(),
            "after": gaps["after"].plain(),
            "host_name": charged,
            "host_ratio": attributed_ns / np.maximum(lengths, 1),
            "overlapping_activity": other_name,
            "overlap_ratio": other_ns / np.maximum(lengths, 1),
        }
    )


def _longest_name(times: Table, gaps: Ints) -> tuple[Texts, Ints]:
    """Return the name with the most time in each of ``gaps``, and that time in ns."""
    names = times["name"]
    n_names = max(1, len(names.texts))
    gap = times["gap"].astype(np.int64)
    kept = np.flatnonzero(np.isin(gap, gaps))
    gap_of_row, code = gap[kept], names.codes[kept]
    pairs, place = np.unique(gap_of_row * n_names + code, return_inverse=True)
    starts, ends = ints(times, "start_ns", "end_ns", rows=kept)
    covered = union_lengths(place, starts, ends, len(pairs))
    # The last assignment to a gap wins: the longest name, and the first one of equally long names.
    order = np.lexsort((-pairs, covered))
    text, most_ns = np.full(len(gaps), "", object), np.zeros(len(gaps), np.int64)
    order_of_gaps = np.argsort(gaps)
    row = order_of_gaps[np.searchsorted(gaps[order_of_gaps], pairs[order] // n_names)]
    text[row] = np.append(names.texts, "")[pairs[order] % n_names]
    most_ns[row] = covered[order]
    return text, most_ns


def _finish_gaps(result: Result) -> Result:
    table = result.table.in_order("-duration_ns", "device", "at_ns")
    result = result.with_table(table.head(_MAX_GAPS))
    n = int(result.scalars["gaps_count"])
    note = Note.of(
        "The table lists the {most:count} longest of {n:count} gaps.", most=_MAX_GAPS, n=n
    )
    return result.with_notes(*([note] if n > _MAX_GAPS else []))


GAPS = Analysis(
    "gaps",
    GAPS_SPEC,
    needs=("kernels", "copies", "api_calls"),
    uses=("marks", "ranges", "host_ops", "functions", "overheads", "devices", "collectives"),
    whole=("kernels", "copies"),
    of_steps=True,
    of_rank=measure_gaps,
    finish=_finish_gaps,
)
