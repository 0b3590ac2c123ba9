"""Put the ranks of a run on one clock, and give processes, devices, and sources distinct names."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from operator import or_
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from traceprof.model.grouping import places_of, renamed, rows_by_values
from traceprof.model.ranks import (
    SAME_GPU,
    Ranks,
    RunFiles,
    change_each,
    identified_gpus,
    measure_each,
)
from traceprof.model.table import Names, Table, objects
from traceprof.model.tables import ABSENT, TABLES, make_table, sort_order
from traceprof.model.timing import ClockCorrection, TimeWindow
from traceprof.model.trace import Trace, TraceInfo, make_trace, span_of, warnings_by_rank

_MACHINE_SOURCES: Final = ("nic", "rdma")
_NUMBERED_SOURCE: Final = re.compile(r"\b(process|gpu):(\d+)")
UNTIED_CLOCKS: Final = "the clocks of the ranks are not aligned: each rank has its own time axis"
"""Warning for ranks without a known wall clock. Alignment by collectives removes the reason for it.
"""
_PROCESS_ID_STEP: Final = 100_000_000
"""Added to equal process IDs of different hosts; greater than any real process ID."""
_Int64Array = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class SamplePlacement:
    """How the samples of one member (rank file) are placed in the run.

    ``names`` maps its sources to their names in the run. ``taken`` maps a series (source in the
    run, metric) to the range of instants that another member already covers.
    """

    names: Mapping[str, str]
    taken: Mapping[tuple[str, str], tuple[int, int]]


def places_of_samples(
    run: RunFiles,
    offsets_ns: Sequence[int],
    processes: Sequence[Mapping[int, int]],
    devices: Sequence[Mapping[int, int]],
) -> list[SamplePlacement]:
    """Return the sample placement of each member; its times move by ``offsets_ns``.

    Processes and devices get their numbers in the run. With several hosts, interfaces get the name
    of their host ("nic:eth0@alpha"). A series that several members of one host recorded at the same
    time counts once, in the version of the first member.
    """
    hosts = _hosts(run)
    devices = _devices_of_hosts(hosts, devices)
    taken: dict[tuple[str, str, str], tuple[int, int]] = {}
    places = []
    for i, series in enumerate(measure_each(run.traces, _series_in)):
        host = hosts[i] if _has_several(hosts) else ""
        names = {
            source: _renamed_source(source, processes[i], devices[i], host)
            for source in dict.fromkeys(source for source, _ in series)
        }
        edges: dict[tuple[str, str], list[int]] = {}
        for (source, metric), both in series.items():
            edges.setdefault((names[source], metric), []).extend(both)
        known_elsewhere: dict[tuple[str, str], tuple[int, int]] = {}
        for pair, instants in edges.items():
            first, last = min(instants) + offsets_ns[i], max(instants) + offsets_ns[i]
            if (hosts[i], *pair) in taken:
                known_elsewhere[pair] = since, until = taken[hosts[i], *pair]
                first, last = min(first, since), max(last, until)
            taken[hosts[i], *pair] = first, last
        places.append(SamplePlacement(names, known_elsewhere))
    return places


def placed_samples(samples: Table, place: SamplePlacement) -> Table:
    """Return a member's samples, already on the clock of the run, with their names in the run."""
    if samples.empty:
        return samples
    given: Names = samples["source"]
    names = [place.names.get(source, source) for source in given.texts.tolist()]
    source = Names.coded(names, given.packed, is_sorted=True)
    placed = make_table("samples", {**samples.columns, "source": source})
    instants = placed["start_ns"]
    is_new = np.ones(len(placed), np.bool_)
    for pair, rows in _rows_of_series(placed).items():
        if pair in place.taken:
            since, until = place.taken[pair]
            is_new[rows] = (instants[rows] < since) | (instants[rows] > until)
    return placed.take(is_new)


def _rows_of_series(samples: Table) -> dict[tuple[str, str], _Int64Array]:
    """Return the rows of each series, by source and metric."""
    source, metric = samples["source"], samples["metric"]
    return {
        (source.texts[source_code], metric.texts[metric_code]): rows
        for (source_code, metric_code), rows in rows_by_values(source, metric).items()
    }


def _series_in(trace: Trace) -> dict[tuple[str, str], tuple[int, int]]:
    """Return the first and last instant of each series (source, metric), on its own clock."""
    instants = trace.samples["start_ns"]
    return {
        series: (int(instants[rows].min()), int(instants[rows].max()))
        for series, rows in _rows_of_series(trace.samples).items()
    }


def _devices_of_hosts(
    hosts: Sequence[str], devices: Sequence[Mapping[int, int]]
) -> list[dict[int, int]]:
    """Return the numbers in the run of all devices of each member's host; its own devices win.

    A member samples all devices of its machine, not only the devices that it uses.
    """
    of_host: dict[str, dict[int, int]] = {}
    for host, numbers in zip(hosts, devices, strict=True):
        of_host.setdefault(host, {}).update(numbers)
    return [of_host[host] | dict(numbers) for host, numbers in zip(hosts, devices, strict=True)]


def merge_environments(run: RunFiles) -> Table:
    """Return the environment of the first member and, with several hosts, all interfaces."""
    hosts, frames = _hosts(run), [member.trace.environment for member in run]
    parts = [frames[0]]
    if _has_several(hosts):
        for host in dict.fromkeys(hosts):
            frame = frames[hosts.index(host)]
            names = [_at_host(str(name), host) for name in frame["name"]]
            named = frame.assign(name=objects(names))
            parts.append(named.take(np.array([bool(name) for name in names], np.bool_)))
    return Table.stacked(parts)


def _hosts(run: RunFiles) -> list[str]:
    return [member.host or member.trace.info.host for member in run]


def _has_several(hosts: Sequence[str]) -> bool:
    return len(set(hosts)) > 1


def _renamed_source(
    source: str, processes: Mapping[int, int], devices: Mapping[int, int], host: str
) -> str:
    """Return a sample source with its numbers in the run, or with its host for interfaces."""
    numbers = {"process": processes, "gpu": devices}

    def renumbered(match: re.Match[str]) -> str:
        kind, old = match[1], int(match[2])
        return f"{kind}:{numbers[kind].get(old, old)}"

    if host and source.startswith(tuple(f"{kind}:" for kind in _MACHINE_SOURCES)):
        name, _, protocol = source.partition(" ")
        return f"{name}@{host} {protocol}".strip()
    return _NUMBERED_SOURCE.sub(renumbered, source)


def _at_host(name: str, host: str) -> str:
    """Return the name of an interface property with its host; "" for other properties."""
    kind, _, rest = name.partition(".")
    interface, dot, fact = rest.rpartition(".")
    return f"{kind}.{interface}@{host}{dot}{fact}" if kind in _MACHINE_SOURCES and dot else ""


@dataclass(frozen=True, slots=True)
class Placement:
    """How one member is placed in the run: its rank, its time offset, and its new numbers.

    ``processes`` and ``devices`` map its numbers to those in the run. ``recorded``, ``span``, and
    ``environment`` are those of the run.
    """

    rank: int
    local_rank: int
    host: str
    rack: str
    offset_ns: int
    processes: Mapping[int, int]
    devices: Mapping[int, int]
    samples: SamplePlacement
    recorded: frozenset[str]
    span: TimeWindow
    environment: Table = field(repr=False)
    shared: Mapping[int, str] = field(default_factory=dict)
    """Device number in the run → text that names the other users, for devices that share a GPU."""


def processes_in(trace: Trace) -> list[int]:
    """Return the sorted processes that occur in any table of ``trace``."""
    frames = [trace.table(name) for name in TABLES]
    owners = [places_of(frame["process"])[1] for frame in frames if "process" in frame]
    return sorted(set[int]().union(*owners) - {ABSENT})


def place(trace: Trace, placement: Placement) -> Trace:
    """Return the member ``trace`` as a part of the run."""
    tables = _moved(trace, placement)
    tables["samples"] = placed_samples(tables["samples"], placement.samples)
    tables["environment"] = placement.environment
    placed = make_trace(
        trace.info, tables, placement.recorded, placement.span, placement.devices.values()
    )
    in_file = (
        (new, trace.device_numbers_in_file.get(old, old)) for old, new in placement.devices.items()
    )
    device_numbers = {new: old for new, old in in_file if new != old}
    # Without any process, the recording is stored under `ABSENT`: its devices may be known.
    span = trace.span.moved(placement.offset_ns)
    recordings = dict.fromkeys(placement.processes.values() or (ABSENT,), span)
    return replace(placed, recordings=recordings, device_numbers_in_file=device_numbers)


def _moved(trace: Trace, placement: Placement) -> dict[str, Table]:
    """Return the tables of the member on the common clock, with the IDs of the run."""
    moved = {}
    for name in TABLES:
        frame = trace.table(name)
        if name == "devices":
            frame = _with_rank(frame.take(frame["used"] == 1), placement)
        if name == "processes":
            frame = _with_roles(frame, placement)
        if frame.empty:
            moved[name] = frame
            continue
        times = [time for time in ("start_ns", "end_ns") if placement.offset_ns and time in frame]
        columns = {time: frame[time] + placement.offset_ns for time in times}
        for column in {"process"}.intersection(frame):
            columns[column] = renamed(frame[column], placement.processes)
        for column in {"device", "src_device", "dst_device"}.intersection(frame):
            columns[column] = renamed(frame[column], placement.devices)
        moved[name] = frame.assign(**columns)  # all rows move alike: the order stays
    return moved


def _with_rank(devices: Table, placement: Placement) -> Table:
    """Return the devices with rank and GPU sharing in front of their name."""
    rank = "" if placement.rank == ABSENT else f"rank {placement.rank}"
    numbers = (placement.devices.get(device, device) for device in devices["device"].tolist())
    about = ((rank, placement.shared.get(device, "")) for device in numbers)
    names = zip(about, devices["name"], strict=True)
    return devices.assign(
        name=objects(" ".join(filter(None, (*prefix, str(name)))) for prefix, name in names)
    )


def _shared_gpus(
    run: RunFiles, numbers: Sequence[Mapping[int, int]], environment: Table
) -> dict[int, str]:
    """Return a text for each device that shares a GPU with other ranks: which GPU it shares."""
    devices = [member.trace.devices for member in run]
    hosts = [member.trace.info.host for member in run]
    placed = [
        table.assign(device=renamed(table["device"], new))
        for table, new in zip(devices, numbers, strict=True)
    ]
    of_gpu: dict[tuple[str, str], list[int]] = {}
    for device, (host, uuid, _) in identified_gpus(
        [*zip(hosts, placed, strict=True)], environment
    ).items():
        of_gpu.setdefault((host, uuid), []).append(device)
    found = {}
    for first, *others in of_gpu.values():
        if others:
            found[first] = f"(shared by {len(others) + 1} ranks)"
            found |= dict.fromkeys(others, f"({SAME_GPU} GPU {first})")
    return found


def _with_roles(processes: Table, member: Placement) -> Table:
    """Return the processes with the rank, host, and rack of the run where their own are unknown.

    If a process is known to be the rank, the other processes are its helpers.
    """
    known = processes["rank"] != ABSENT
    placed = processes.assign(
        host=objects(name or member.host for name in processes["host"]),
        rack=objects(name or member.rack for name in processes["rack"]),
    )
    if known.any():
        return placed
    return placed.assign(rank=member.rank, local_rank=member.local_rank)


def clock_offsets_ns(members: Iterable[TraceInfo]) -> tuple[int, ...] | None:
    """Return the ns to add to each member's times to align all wall clocks.

    Return None if a member does not know its wall clock. Wall clocks of hosts differ by up to
    milliseconds.
    """
    epochs = [member.utc_epoch_ns for member in members]
    known = [epoch for epoch in epochs if epoch is not None]
    if len(known) < len(epochs) or not known:
        return None
    return tuple(epoch - min(known) for epoch in known)


def place_run(run: RunFiles, offsets_ns: Sequence[int] | None = None) -> Ranks:
    """Return the ranks of ``run`` on one clock.

    Args:
        run: at least one member.
        offsets_ns: ns to add to the times of each member; by default `clock_offsets_ns`. Without
            known wall clocks, every member keeps its own time.

    Equal process IDs of different members become distinct by adding multiples of 100,000,000. If
    two members use the same device number, all devices are renumbered in the order of the ranks. A
    table counts as recorded if any member recorded it; warnings name the members that did not.
    """
    if len(run) == 1 and offsets_ns is None:
        member = run.members[0]
        ranks, only = Ranks.of(member.trace), member.trace.processes
        if member.rank != ABSENT and len(only) == 1 and only["rank"][0] == ABSENT:
            numbers = {"rank": member.rank, "local_rank": member.local_rank}
            named = only.assign(**{name: np.array([n]) for name, n in numbers.items()})
            ranks = Ranks.of(member.trace.with_tables({"processes": named}))
        return ranks.with_warnings(*run.warnings) if run.warnings else ranks
    warnings = list(run.warnings)
    if offsets_ns is None:
        offsets_ns = clock_offsets_ns(member.trace.info for member in run)
        if offsets_ns is None:
            warnings.append(UNTIED_CLOCKS)
            offsets_ns = [0] * len(run)
    processes, devices = process_ids(run), device_ids(run)
    known = merge_environments(run)
    samples = places_of_samples(run, offsets_ns, processes, devices)
    shared = _shared_gpus(run, devices, known)
    recorded = frozenset[str]().union(*(member.trace.recorded for member in run))
    for name in sorted(recorded):
        without = [str(m.rank) for m in run if name not in m.trace.recorded]
        if without and name in ("kernels", "ranges", "collectives"):
            warnings.append(f"{name} of rank {', '.join(without)} were not recorded")
    spans = (m.trace.span.moved(ns) for m, ns in zip(run, offsets_ns, strict=True))
    span = reduce(or_, spans)
    placements = [
        Placement(
            *(m.rank, m.local_rank, m.host, m.rack, ns, *numbers, moved, recorded, span, known),
            shared=shared,
        )
        for m, ns, numbers, moved in zip(
            run, offsets_ns, zip(processes, devices, strict=True), samples, strict=True
        )
    ]
    placed = change_each(run.traces, place, [(placement,) for placement in placements])
    return Ranks(tuple(placed), _info(run, warnings, offsets_ns))


def _info(run: RunFiles, warnings: Sequence[str], offsets_ns: Sequence[int]) -> TraceInfo:
    first = run.members[0].trace.info
    epochs = [
        m.trace.info.utc_epoch_ns - offset
        for m, offset in zip(run, offsets_ns, strict=True)
        if m.trace.info.utc_epoch_ns is not None
    ]
    hosts = dict.fromkeys(m.host or m.trace.info.host for m in run)
    member_warnings, recording = warnings_by_rank([(m.rank, m.trace.info) for m in run])
    return replace(
        first,
        path=run.label,
        recording=recording,
        host=", ".join(filter(None, hosts)),
        profiler=", ".join(dict.fromkeys(m.trace.info.profiler for m in run)),
        utc_epoch_ns=min(epochs, default=None),
        warnings=(*warnings, *member_warnings),
    )


def process_ids(run: RunFiles) -> list[dict[int, int]]:
    """Return, for each member, the process ID in the run of each of its processes."""
    taken: set[int] = set()
    found = []
    for member_processes in measure_each(run.traces, processes_in):
        new = {}
        for process in member_processes:
            candidate = process
            while candidate in taken:
                candidate += _PROCESS_ID_STEP
            new[process] = candidate
        taken.update(new.values())
        found.append(new)
    return found


def device_ids(run: RunFiles) -> list[dict[int, int]]:
    """Return, for each member, the device number in the run of each of its devices.

    Numbers stay unchanged if they are distinct.
    """
    member_devices = [m.trace.devices["device"][m.trace.devices["used"] == 1].tolist() for m in run]
    flat = [device for devices in member_devices for device in devices]
    if len(set(flat)) == len(flat):
        return [{device: device for device in devices} for devices in member_devices]
    numbers = iter(range(len(flat)))
    return [{device: next(numbers) for device in devices} for devices in member_devices]


def retime(trace: Trace, corrections: Mapping[int, ClockCorrection]) -> Trace:
    """Return the whole ``trace`` with corrected times.

    Each process has its own correction. Rows without a correction or without a process stay
    unchanged.
    """
    tables: dict[str, Any] = {}
    for name, table in TABLES.items():
        frame = trace.table(name)
        if not table.has_times or "process" not in table.columns or frame.empty:
            continue
        processes, times = frame["process"], {"start_ns", "end_ns"}.intersection(frame)
        moved_times = {time: _corrected(frame[time], processes, corrections) for time in times}
        retimed = frame.assign(**moved_times)
        order = sort_order(retimed, table)
        tables[name] = retimed if order is None else retimed.take(order)
    moved = replace(trace, **tables, uncut=None)
    recordings = {}
    for process, window in trace.recordings.items():
        edges = np.array([window.start_ns, window.end_ns], np.int64)
        correction = corrections.get(process, ClockCorrection())
        recordings[process] = TimeWindow(*correction.apply(edges).tolist())
    return replace(
        moved,
        span=span_of({name: moved.table(name) for name in TABLES}, trace.span),
        recordings=recordings,
    )


def _corrected(
    instants: _Int64Array, processes: _Int64Array, corrections: Mapping[int, ClockCorrection]
) -> _Int64Array:
    """Return ``instants`` corrected by the clock of their process."""
    corrected = instants.copy()
    # The table of one rank contains few processes of the run.
    for process in places_of(processes)[1]:
        if process in corrections:
            rows = processes == process
            corrected[rows] = corrections[process].apply(instants[rows])
    return corrected
