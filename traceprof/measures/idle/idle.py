"""Why devices were idle: the gaps by cause, name and length, the longest, host-bound steps."""

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

_EDGES_NS: Final = (0, 10_000, 100_000, 1_000_000, 10_000_000, 100_000_000, 1_000_000_000)
_HOST_CAUSES: Final = ("data", "synchronizing", "launch", "host")
_HOST_BOUND: Final = 0.3
_SHOWN: Final = 12
_NAMED: Final = 3
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
    return _finish(measured_by_rank(ranks, _measure), analyzed(ranks))


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
    """Return a row per device and cause that some gap of it has."""
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
    """Return how long each device that worked was recorded, and idle."""
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
    """Return a row per device, cause, name and thread."""
    names = ("device", "cause", "operator", "name", "by")
    groups, keys = grouped({name: charged[name] for name in names})
    # The rows are in the order of gaps.
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
    lengths = lengths_of(gaps)
    length = np.searchsorted(_EDGES_NS, lengths, side="right") - 1
    edges = np.array([*_EDGES_NS, np.iinfo(np.int64).max])
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
    known = find_steps(trace)
    steps = known.table
    ratio = _waited_for_host(trace, steps, gaps) / np.maximum(known.durations_ns, 1)
    found = steps.select("process", "step").assign(idle_ratio=ratio)
    return found.take(ratio > _HOST_BOUND)


def _waited_for_host(trace: Trace, steps: Table, gaps: Table) -> Floats:
    """Return the ns that devices waited for the host in each step, the mean over its devices.

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
        for own in (gaps_of[device] for device in devices if device in gaps_of):
            place = span_at(starts[rows], ends[rows], closed[own] - 1)
            np.add.at(waited, rows[place[place >= 0]], lost[own[place >= 0]])
        waited[rows] /= max(1, len(devices))
    return waited


def _finish(result: Result, of: Analyzed) -> Result:
    table, devices, names = (result.tables[name] for name in ("causes", "devices", "names"))
    of_device = groups_of(table["device"])
    idle_ns = of_device.reduced(np.add, table["total_ns"])[of_device.number]
    shares = {name: _shares(own, of) for name, own in (("causes", table), ("names", names))}
    table = table.assign(
        share_ratio=shares["causes"],
        idle_ratio=table["total_ns"] / idle_ns,
        place=[CAUSES.index(cause) for cause in table["cause"].tolist()],
    )
    names = names.assign(share_ratio=shares["names"])
    names = names.in_order("-total_ns", "device", "cause", "name", "operator", "thread")
    result = result.with_table(_together(table, of), "total")
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
    return result.with_notes(
        *lost, *unrecorded, *_notes(result.tables["host_bound_steps"]), *_named(names)
    )


def _together(causes: Table, of: Analyzed) -> Table:
    """Return the causes of all devices together, the largest first; ``causes`` have shares."""
    keys, groups = grouped_by(causes, "cause")
    whole_ns = np.array([of.whole_ns.get(own, 0.0) for own in causes["device"].tolist()])
    shares = groups.sums(causes["share_ratio"] * whole_ns) / (sum(of.whole_ns.values()) or np.nan)
    table = keys.assign(total_ns=groups.sums(causes["total_ns"]), share_ratio=shares)
    return IDLE_SPEC.table("total").of_rows(table.in_order("-total_ns", "cause"))


def _shares(table: Table, of: Analyzed) -> Floats:
    """Return idle times as shares of the base; NaN for what the profiler added to the base."""
    devices = table["device"].tolist()
    whole_ns = np.array([of.whole_ns.get(own) or np.nan for own in devices], np.float64)
    scales = np.array([of.idle_scale.get(own, 1.0) for own in devices], np.float64)
    is_added = (table["cause"] == PROFILER) & of.is_unprofiled
    return np.where(is_added, np.nan, table["total_ns"] * scales / whole_ns)


def _named(names: Table) -> list[Note]:
    """Return what the host was in for the longest while devices were idle, all together."""
    sums = Counter[str]()
    for name, ns in zip(names["operator"].tolist(), names["total_ns"].tolist(), strict=True):
        sums[name] += ns
    ranked = sorted(sums.items(), key=lambda own: (-own[1], own[0]))[:_NAMED]
    if not ranked:
        return []
    values: dict[str, object] = {}
    for i, (name, ns) in enumerate(ranked):
        values |= {f"name{i}": name, f"ns{i}": ns}
    listed = ", ".join(f"{{name{i}}} {{ns{i}:ns}}" for i in range(len(ranked)))
    return [Note(f"CPU activity while the GPUs were idle: {listed}.", values)]


def _notes(steps: Table) -> list[Note]:
    if steps.empty:
        return []
    numbers = list(dict.fromkeys(steps["step"].tolist()))
    note = Note.of(
        "Host-bound steps: {n:count} ({steps}{more}). In these steps, the GPUs wait for the host "
        "for more than {limit:ratio} of the time.",
        n=len(numbers),
        limit=_HOST_BOUND,
        steps=", ".join(map(str, numbers[:_SHOWN])),
        more="" if len(numbers) <= _SHOWN else " …",
    )
    return [note]


IDLE = Analysis(
    "idle",
    IDLE_SPEC,
    needs=("kernels", "copies", "api_calls"),
    uses=("ranges", "host_ops", "overheads", "devices", "collectives"),
    whole=("kernels", "copies"),
    of_steps=True,
    of_ranks=measure_idle,
)


_MOST: Final = 1000
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
    longest = np.argsort(-lengths_of(gaps), kind="stable")[:_MOST]
    return Result(
        "gaps",
        GAPS_SPEC,
        tables={"gaps": GAPS_SPEC.tables[0].of_rows(_described(trace, gaps, longest))},
        scalars={"gaps_count": len(gaps)},
    )


def cause_times_of_gaps(trace: Trace, gaps: Ints) -> Ints:
    """Return how many ns of each of ``gaps`` (rows of `find_gaps`) each of `CAUSES` takes."""
    parts = find_idle_parts(trace)
    parts = parts.take(np.isin(parts["gap"], gaps))
    order = np.argsort(gaps)
    place = order[np.searchsorted(gaps[order], parts["gap"])]
    found = np.zeros((len(gaps), len(CAUSES)), np.int64)
    np.add.at(found, (place, parts["cause"]), parts["end_ns"] - parts["start_ns"])
    return found


def _described(trace: Trace, every: Table, rows: Ints) -> Table:
    gaps = every.take(rows)
    starts, lengths = gaps["start_ns"], lengths_of(gaps)
    causes = cause_times_of_gaps(trace, rows)
    charged, attributed_ns = _most(find_host_charges(trace), rows)
    running = find_charges(trace).running
    beside, beside_ns = _most(running.take(running["by"] == "other"), rows)
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
            "overlapping_activity": beside,
            "overlap_ratio": beside_ns / np.maximum(lengths, 1),
        }
    )


def _most(times: Table, gaps: Ints) -> tuple[Texts, Ints]:
    """Return the name that has the most of ``times`` in each of ``gaps``, and how much."""
    names = times["name"]
    n_names = max(1, len(names.texts))
    gap = times["gap"].astype(np.int64)
    kept = np.flatnonzero(np.isin(gap, gaps))
    own, code = gap[kept], names.codes[kept]
    pairs, place = np.unique(own * n_names + code, return_inverse=True)
    starts, ends = ints(times, "start_ns", "end_ns", rows=kept)
    covered = union_lengths(place, starts, ends, len(pairs))
    # Of equals the first name: the last one that is written stays.
    order = np.lexsort((-pairs, covered))
    text, most_ns = np.full(len(gaps), "", object), np.zeros(len(gaps), np.int64)
    where = np.argsort(gaps)
    row = where[np.searchsorted(gaps[where], pairs[order] // n_names)]
    text[row] = np.append(names.texts, "")[pairs[order] % n_names]
    most_ns[row] = covered[order]
    return text, most_ns


def _finish_gaps(result: Result) -> Result:
    table = result.table.in_order("-duration_ns", "device", "at_ns")
    result = result.with_table(table.head(_MOST))
    n = int(result.scalars["gaps_count"])
    note = Note.of("The table lists the {most:count} longest of {n:count} gaps.", most=_MOST, n=n)
    return result.with_notes(*([note] if n > _MOST else []))


GAPS = Analysis(
    "gaps",
    GAPS_SPEC,
    needs=("kernels", "copies", "api_calls"),
    uses=("ranges", "host_ops", "overheads", "devices", "collectives"),
    whole=("kernels", "copies"),
    of_steps=True,
    of_rank=measure_gaps,
    finish=_finish_gaps,
)
