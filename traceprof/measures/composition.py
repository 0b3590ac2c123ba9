"""Splits the time of GPUs and hosts by cause, exactly to the ns, and locates work within steps.

Every ns of a part belongs to exactly one operation. If kernels, copies, or collectives overlap, the
one that began first gets the time; a later one gets only the time that it adds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, TypeAlias

import numpy as np

from traceprof.measures.collectives.blame import find_blame
from traceprof.measures.collectives.matches import find_matches
from traceprof.measures.collectives.members import Member
from traceprof.measures.collectives.waits import find_values_in, find_waits
from traceprof.measures.device.times import (
    device_time,
    devices_of_processes,
    indices_in_part,
    recorded_times,
)
from traceprof.measures.facts import fact
from traceprof.measures.host.launches import launches_of
from traceprof.measures.host.states import phase_times
from traceprof.measures.idle.charges import CAUSES_CHARGED_TO_HOST, NOTHING, find_charges
from traceprof.measures.rows import (
    Array,
    Floats,
    Ints,
    bounds,
    grouped,
    ints,
    lengths_of,
    ratio_of,
    rows_by,
    span_at,
    union_of,
)
from traceprof.measures.steps.find import pattern_of_ranks, steps_of_ranks
from traceprof.model.activity import BUSY_PARTS, IDLE, PARTS
from traceprof.model.compact import CompactTable
from traceprof.model.grouping import grouped_by, groups_of
from traceprof.model.intervals import Intervals
from traceprof.model.packed import Packed
from traceprof.model.ranks import Ranks, measure_of_each
from traceprof.model.table import Names, Table, objects
from traceprof.model.tables import ABSENT
from traceprof.model.timing import TimeWindow
from traceprof.model.trace import DEVICE_TABLES, Trace
from traceprof.names.ranges import PHASES, UNCLAIMED

COLLECTIVE: Final = "collective"
WAITING: Final = "waiting"
NOT_IN_STEP: Final = "(ranks that were not synchronized yet)"
"""Name of the awaited rank before the first common release of all ranks, when no rank is late."""


@fact
def released_collectives(ranks: Ranks, *, knows_waits: bool) -> CompactTable:
    """Return the collectives that kernels executed, sorted by start.

    Columns: device, start_ns, end_ns, op, n_bytes (`ABSENT` if unknown), release_ns (arrival of the
    last rank, clipped to start and end; start_ns if unknown), and waits_for: the rank that caused
    the delay, that is the last rank, or a rank that the last rank had waited for; "" for none.
    """
    matches = find_matches(ranks)
    carried = matches.rows.take(matches.rows["kernels"] > 0)
    carried = carried.take(np.argsort(carried["start_ns"], kind="stable"))
    columns = ("device", "start_ns", "end_ns", "op", "n_bytes")
    found = CompactTable({name: carried[name] for name in columns})
    starts = carried["start_ns"]
    if not knows_waits or not matches.is_shared:
        return found.assign(release_ns=starts, waits_for=np.full(len(found), "", object))
    match, member = carried["match"], carried["member"]
    shared = matches.table
    place = np.searchsorted(shared["match"], match)
    known = np.flatnonzero((match >= 0) & (member >= 0) & (place < len(shared)))
    known = known[shared["match"][place[known]] == match[known]]
    release = starts.copy()
    release[known] = shared["last_start_ns"][place[known]]
    release = np.clip(release, starts, carried["end_ns"])
    awaited = np.full(len(found), ABSENT, np.int64)
    awaited[known] = shared["last_member"][place[known]]
    origins = find_blame(ranks).origin_of_match
    origin = np.array([origins.get(number, ABSENT) for number in match[known].tolist()], np.int64)
    # A rank does not wait for itself, even if its own delay comes back to it.
    is_other = (origin != ABSENT) & (origin != member[known])
    awaited[known[is_other]] = origin[is_other]
    in_step = find_values_in(find_waits(ranks), carried, "is_in_step", 0).astype(np.bool_)
    names = np.array([*map(_name_of, matches.members), NOT_IN_STEP, ""], object)
    awaited[awaited < 0] = len(names) - 1
    awaited[~in_step] = len(names) - 2
    awaited[release <= starts] = len(names) - 1
    return found.assign(release_ns=release, waits_for=names[awaited])


def _name_of(member: Member) -> str:
    if member.rank != ABSENT:
        return f"rank {member.rank}"
    return f"device {member.device}" if member.device != ABSENT else f"process {member.process}"


DeviceSpans: TypeAlias = Mapping[tuple[int, int], TimeWindow]
"""Windows by (index of the Trace in the ranks, device number)."""

KERNEL: Final = "kernel"
COPY: Final = "copy"
REST: Final = "rest"
"""Kinds of device time, besides the causes of idle time. `REST` has no known cause."""

_KEYS: Final = ("part", "kind", "name", "device")
_WITHOUT_HOST: Final = {
    "queued": "(launched, not begun yet)",
    "peer": "(work shared with another device)",
    "role": "(work of another role)",
}
"""Names of idle time that the host did not cause, by cause."""


def composition_of_devices(
    ranks: Ranks,
    spans: DeviceSpans,
    *,
    knows_waits: bool = True,
    launched: Mapping[int, TimeWindow] | None = None,
) -> Table:
    """Return what each device did in its span.

    Columns: part (of `PARTS`), kind, name, device, ns, count, and n_bytes. kind is `KERNEL`,
    `COPY`, `COLLECTIVE`, `WAITING`, the cause of idle time, or `REST` (unknown cause). name is the
    kernel, the copy direction with the kind of host memory, the operation, the awaited rank, or the
    activity of the host. count is the number of operations that began in the span, or of idle gaps.
    n_bytes is the size of copies and collective inputs, NaN if unknown. The ns add up to the
    recorded parts of the spans.

    ``knows_waits``: whether the arrival of the other ranks at a collective is known. ``launched``:
    when each process launched the work of the span, for example of a step. With it, kernels and
    copies are counted by launch time instead of start; work without a known launch is counted where
    it began.
    """
    released = released_collectives(ranks, knows_waits=knows_waits)
    parts, arguments = [], []
    by_window: dict[tuple[int, TimeWindow], list[int]] = {}
    for (place, device), window in spans.items():
        by_window.setdefault((place, window), []).append(device)
    for (place, window), devices in by_window.items():
        # Reuse the facts of a cut Trace.
        parts.append((ranks if window == ranks.span else ranks.whole).parts[place])
        collectives = released.take(np.isin(released["device"], devices))
        arguments.append((window, tuple(devices), collectives, launched))
    sums = _added_up(measure_of_each(parts, _sums_in_window, arguments))
    return sums.take((sums["ns"] != 0) | (sums["count"] != 0))


def _added_up(found: Sequence[Table]) -> Table:
    """Return the sums of ns, count, and n_bytes by part, kind, name, and device."""
    nothing = dict.fromkeys(("device", "ns", "count"), np.empty(0, np.int64))
    stacked = Table.stacked([Table(dict.fromkeys((*_KEYS, "n_bytes"), ()) | nothing), *found])
    keys, groups = grouped_by(stacked, *_KEYS)
    return keys.assign(**{name: groups.sums(stacked[name]) for name in ("ns", "count", "n_bytes")})


def _sums_in_window(
    trace: Trace,
    window: TimeWindow,
    devices: Sequence[int],
    released: CompactTable,
    launched: Mapping[int, TimeWindow] | None,
) -> Table:
    """Return the sums of the devices of one Trace in a window; runs where the Trace is."""
    device_sums = _sums_by_device(trace.within(window), devices, released)
    sums = _added_up([rows.assign(device=device) for device, rows in device_sums])
    if launched is None:
        return sums
    is_work = (sums["kind"] == KERNEL) | (sums["kind"] == COPY)
    sums = sums.assign(
        count=np.where(is_work, 0, sums["count"]),
        n_bytes=np.where(is_work, np.nan, sums["n_bytes"]),
    )
    counted = _launched_work(trace.whole, window, launched)
    counted = counted.take(np.isin(counted["device"], devices) & (counted["place"] >= 0))
    part = np.array(BUSY_PARTS, object)[counted["place"]]
    counted = counted.select("kind", "name", "device", "n_bytes").assign(part=part, ns=0, count=1)
    return _added_up([sums, counted])


def _launched_work(trace: Trace, window: TimeWindow, launched: Mapping[int, TimeWindow]) -> Table:
    """Return the kernels and copies that processes launched in their windows (see `work_of_trace`).

    Work without a known launch is included if it began in ``window``.
    """
    parts = []
    for name in DEVICE_TABLES:
        launches, work = launches_of(trace, name), trace.table(name)
        is_inside = ~launches.is_known & window.holds(work["start_ns"])
        for process in launched.keys() & set(np.unique(work["process"]).tolist()):
            is_inside |= (work["process"] == process) & launched[process].holds(launches.start_ns)
        parts.append(_work_rows(trace, name).take(is_inside))
    return Table.stacked(parts)


def _sums_by_device(
    trace: Trace, devices: Sequence[int], released: Table
) -> Iterator[tuple[int, Table]]:
    """Yield each device of a Trace, cut to the window, with its sums."""
    charges = find_charges(trace).times
    work = work_of_trace(trace)
    for device in devices:
        span, recorded = trace.span, recorded_times(trace, device)
        exposed = device_time(trace, device).within(recorded).parts()
        device_work = work.take_on_disk(work["device"] == device)
        collectives = released.take(released["device"] == device)
        found: list[Table] = []
        for place, part in enumerate(BUSY_PARTS):  # in the order of `Part`
            unclaimed = exposed[part]
            if part == "exposed_communication":
                found += [*_collectives(collectives, unclaimed, span)]
                unclaimed = unclaimed - union_of(collectives)
            part_work = device_work.take(device_work["place"] == place)
            found.append(_claims(part_work, unclaimed, part, span))
        found.append(_idle(charges.take_on_disk(charges["device"] == device)))
        found.append(_rest(found, exposed, recorded.total_ns))
        yield device, Table.stacked(found)


def work_of_trace(trace: Trace) -> Table:
    """Return the kernels and copies that overlap the window, with their uncut starts.

    Columns: start_ns, end_ns, device, place (index of the part in `BUSY_PARTS`), kind, name (both
    Names), and n_bytes.
    """
    work = Table.stacked([_work_rows(trace, name) for name in DEVICE_TABLES])
    return work.take_on_disk(work.order("start_ns"))


def _work_rows(trace: Trace, name: str) -> Table:
    rows, is_kernel = trace.table(name), name == "kernels"
    columns = {
        "start_ns": trace.whole.table(name)["start_ns"][trace.rows_in_whole(name)],
        "end_ns": rows["end_ns"],
        "device": Packed(rows["device"]),
        "place": Packed(indices_in_part(trace, name)),
        "kind": Names.repeated(KERNEL if is_kernel else COPY, len(rows)),
        "name": rows["name"] if is_kernel else _routes(rows),
        "n_bytes": np.full(len(rows), np.nan) if is_kernel else _sizes(rows["n_bytes"]),
    }
    return Table(columns)


def _routes(copies: Table) -> Names:
    """Return the direction of each copy, followed by the kind of host memory for h2d and d2h."""
    columns = [copies[name] for name in ("direction", "src_kind", "dst_kind")]
    groups = groups_of(*columns)
    texts = []
    for key in groups.keys:
        direction, *ends = (column.texts[code] for column, code in zip(columns, key, strict=True))
        memory = dict(zip(("h2d", "d2h"), ends, strict=True)).get(direction, "")
        texts.append(f"{direction} {memory}".strip())
    return Names.coded(texts, groups.packed)


def _sizes(n_bytes: Ints) -> Floats:
    return np.where(n_bytes != ABSENT, n_bytes, np.nan)


def _sums(
    part: str, kind: Names, name: Names, ns: Ints, count: Array, n_bytes: Floats | None = None
) -> Table:
    """Return the sums of the rows by kind and name."""
    groups, keys = grouped({"kind": kind, "name": name})
    return Table(
        {
            "part": part,
            **keys,
            "ns": groups.sums(ns),
            "count": groups.sums(count),
            "n_bytes": np.nan if n_bytes is None else groups.sums(n_bytes),
        }
    )


def first_claims(rows: Table) -> tuple[Ints, Ints]:
    """Return start and end of the time in which each row is the earliest running row.

    ``rows`` are sorted by start. The span is empty for a row that earlier rows cover.
    """
    starts, ends = bounds(rows)
    reach = np.maximum.accumulate(np.append(starts[:1], ends[:-1]))
    return np.minimum(np.maximum(starts, reach), ends), ends


def _claims(rows: Table, unclaimed: Intervals, part: str, span: TimeWindow) -> Table:
    """Return the time of ``left`` that each kernel or copy claims, summed by kind and name."""
    first, ends = first_claims(rows)
    begins = span.holds(rows["start_ns"])
    n_bytes = np.where(begins, rows["n_bytes"], np.nan)
    return _sums(
        part, rows["kind"], rows["name"], unclaimed.covered_ns(first, ends), begins, n_bytes
    )


def _collectives(rows: Table, unclaimed: Intervals, span: TimeWindow) -> Iterator[Table]:
    """Yield the exposed time spent waiting for other ranks, then the exposed collective time."""
    rows = rows.take(span.overlaps(*bounds(rows)))
    first, ends = first_claims(rows)
    release = np.clip(rows["release_ns"], first, ends)
    part = "exposed_communication"
    begins = span.holds(rows["start_ns"])
    waited = unclaimed.covered_ns(first, release)
    counts = begins & (waited > 0)
    awaited, ops = (Names.of(rows[name]) for name in ("waits_for", "op"))
    yield _sums(part, Names.repeated(WAITING, len(rows)), awaited, waited, counts)
    n_bytes = np.where(begins, _sizes(rows["n_bytes"]), np.nan)
    worked = unclaimed.covered_ns(release, ends)
    yield _sums(part, Names.repeated(COLLECTIVE, len(rows)), ops, worked, begins, n_bytes)


def _idle(charges: Table) -> Table:
    """Return idle time, summed by cause and host activity; count is the number of gaps."""
    cause, name = charges["cause"], charges["name"]
    groups = groups_of(cause, name)
    pairs = []
    for code, named in groups.keys:
        cause_name, text = cause.texts[code], name.texts[named]
        # Name of idle time in which nothing was recorded or delayed the device.
        unnamed = (
            NOTHING if cause_name in CAUSES_CHARGED_TO_HOST else _WITHOUT_HOST.get(cause_name, "")
        )
        pairs.append((cause_name, text or unnamed))
    causes, names = (
        Names.coded((pair[place] for pair in pairs), groups.packed) for place in (0, 1)
    )
    labels = groups_of(causes, names)
    of_gaps = charges["gap"] * len(labels.first) + labels.number
    is_first = np.zeros(len(charges), np.int64)
    is_first[np.unique(of_gaps, return_index=True)[1]] = 1
    return _sums(IDLE, causes, names, lengths_of(charges), is_first)


def _rest(found: Sequence[Table], exposed: Mapping[str, Intervals], length_ns: int) -> Table:
    """Return the time of each part that has no known cause."""
    known = Counter[str]()
    for row in Table.stacked(found).rows():
        known[row["part"]] += row["ns"]
    busy = {part: exposed[part].total_ns for part in BUSY_PARTS}
    whole = busy | {IDLE: length_ns - sum(busy.values())}
    lost = [whole[part] - known[part] for part in PARTS]
    return Table(
        {"part": PARTS, "kind": REST, "name": "", "ns": lost, "count": 0, "n_bytes": np.nan}
    )


HostSpans: TypeAlias = Mapping[int, tuple[Intervals, int]]
"""By process: the time on the host, and the time from its end to the next step, in ns."""

BETWEEN_STEPS_OF_HOST: Final = "(between steps)"


def composition_of_hosts(ranks: Ranks, spans: HostSpans) -> Table:
    """Return the time of the main threads in ``spans`` by phase, summed over processes.

    Columns: phase (of `PHASES`, `UNCLAIMED`, or `BETWEEN_STEPS_OF_HOST`) and ns. Only processes
    with named phases count. The sum is the length of the spans plus the time until the next steps.
    """
    sums = Counter[str]()
    for trace in ranks.whole:
        for process, times in phase_times(trace).items():
            if process not in spans:
                continue
            host_time, between_ns = spans[process]
            phase_ns = {name: (time & host_time).total_ns for name, time in times.items()}
            phase_ns[UNCLAIMED] = host_time.total_ns - sum(phase_ns.values())
            sums.update(phase_ns | {BETWEEN_STEPS_OF_HOST: between_ns})
    order = [name for name in (*PHASES, UNCLAIMED, BETWEEN_STEPS_OF_HOST) if sums[name]]
    return Table({"phase": order, "ns": np.array([sums[n] for n in order], np.int64)})


_StepSpans = Mapping[int, tuple[Ints, Ints]]
_PLACED_KEYS: Final = ("kind", "name")


def place_of_work(ranks: Ranks) -> Table:
    """Return the class of kernels, copies, and collectives, and where within a step they begin.

    One row per kind and name (of `composition_of_devices`), with class (of kernels, else "") and
    place_ratio: the mean position of the start, from 0 to 1 (end of the step); NaN if no step
    contains it. Without steps, the iterations of the kernel pattern are used.
    """
    spans = _spans_of_steps(ranks)
    tables = ranks.each_of(_placed_work, [(by_device,) for by_device in spans])
    released = released_collectives(ranks, knows_waits=False)
    released = released.take(ranks.span.holds(released["start_ns"]))
    collectives = released.select("start_ns", "device").assign(
        kind=Names.repeated(COLLECTIVE, len(released)), name=Names.of(released["op"])
    )
    every_device = {device: times for by_device in spans for device, times in by_device.items()}
    tables.append(_placed(collectives, every_device))
    placed = Table.stacked(tables)
    found, groups = grouped_by(placed, *_PLACED_KEYS)
    ratio = ratio_of(*(groups.sums(placed[name]) for name in ("place", "known")))
    known = {name: text for rank in ranks.whole.each(_classes_of) for name, text in rank.items()}
    pairs = zip(found["kind"], found["name"], strict=True)
    classes = objects(known.get(name, "") if kind == KERNEL else "" for kind, name in pairs)
    return found.assign(place_ratio=ratio, **{"class": classes})


def _placed_work(trace: Trace, spans: _StepSpans) -> Table:
    return _placed(work_of_trace(trace), spans)


def _spans_of_steps(ranks: Ranks) -> list[_StepSpans]:
    """Return for each rank the starts and ends of its steps by device."""
    steps = steps_of_ranks(ranks.whole)
    table = (steps if len(steps) else pattern_of_ranks(ranks.whole)).table
    by_process = rows_by(table, "process")
    starts, ends = ints(table, "device_start_ns", "device_end_ns")
    found: list[_StepSpans] = []
    for part in ranks.whole.parts:
        by_device: dict[int, tuple[Ints, Ints]] = {}
        for process, devices in devices_of_processes(part).items():
            rows = by_process.get(process)
            if rows is not None:
                order = rows[np.argsort(starts[rows], kind="stable")]
                by_device |= dict.fromkeys(devices, (starts[order], ends[order]))
        found.append(by_device)
    return found


def _placed(work: Table, spans: _StepSpans) -> Table:
    """Return the sum and the number of known positions within steps, by kind and name."""
    (instants,) = ints(work, "start_ns")
    place = np.full(len(work), np.nan)
    for device, rows in rows_by(work, "device").items():
        starts, ends = spans.get(device, (np.empty(0, np.int64),) * 2)
        step = span_at(starts, ends, instants[rows])
        held, step = rows[step >= 0], step[step >= 0]
        place[held] = (instants[held] - starts[step]) / np.maximum(1, ends[step] - starts[step])
    groups, keys = grouped({key: work[key] for key in _PLACED_KEYS})
    sums = {"place": groups.sums(np.nan_to_num(place)), "known": groups.sums(~np.isnan(place))}
    return Table(keys | sums)


def _classes_of(trace: Trace) -> dict[str, str]:
    """Return the class of each kernel by name."""
    names, activities = trace.kernels["name"], trace.kernels["activity"]
    keys = groups_of(names, activities).keys
    return {names.texts[name]: activities.texts[activity] for name, activity in keys}
