"""Build the lanes of a Trace: sections (processes) of groups (devices, then threads) of rows.

A device has one lane per stream. A thread has lanes for ranges (nested by depth), operators, and
API calls.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePath, PureWindowsPath
from typing import Final

import numpy as np

from traceprof.measures.device.times import recorded_times
from traceprof.model.activity import Activity, Part
from traceprof.model.grouping import groups_of, pieces_of, rows_by_values
from traceprof.model.intervals import Intervals
from traceprof.model.packed import Packed
from traceprof.model.ranks import SAME_GPU
from traceprof.model.table import Names, Table
from traceprof.model.tables import ABSENT
from traceprof.model.timing import TimeWindow
from traceprof.model.trace import Trace
from traceprof.names.ranges import PHASES, phases_of_ranges
from traceprof.render.escape import plain_text
from traceprof.render.palette import CATEGORY_INDEX, NOT_RECORDED
from traceprof.render.timeline.channels import Channel, LaneGroup, LaneRow, Lanes, state_channel
from traceprof.render.timeline.encode import number_names_by_use, renumbered
from traceprof.render.timeline.events import (
    NameTable,
    Track,
    in_order,
    pieces_by_start,
    rows_inside,
)

_KERNEL_CATEGORY = {
    Part.COMPUTE: "compute",
    Part.COMMUNICATION: "communication",
    Part.TRANSFER: "copy",
    Part.DEVICE_MEMORY: "memset",
}
_DIRECTIONS = {
    "h2d": "Memcpy host → device",
    "d2h": "Memcpy device → host",
    "d2d": "Memcpy within the device",
    "p2p": "Memcpy device → device",
    "h2h": "Memcpy host → host",
    "memset": "Memset",
}


def device_groups(
    trace: Trace, origin_ns: int, names: NameTable
) -> Iterator[tuple[int, int, tuple[LaneRow, ...]]]:
    """Yield (process, device, rows) for every process that used a device."""
    kernels, copies = trace.kernels, trace.copies
    of_kernels = _categories_of_kinds(kernels["activity"], _category_of_kernel)
    of_copies = _categories_of_kinds(
        copies["direction"], lambda d: d if d in _DIRECTIONS else "copy"
    )
    drawn_tables = (
        _drawn_columns(kernels, of_kernels, names.ids(kernels["name"]), *_STREAM_KEY),
        _drawn_columns(copies, of_copies, _copy_names(copies, names), *_STREAM_KEY),
    )
    tracks: dict[tuple[int, ...], Track] = defaultdict(Track)
    for pieces in pieces_by_start(*drawn_tables):
        parts = zip(drawn_tables, pieces, strict=True)
        events = in_order([_events_of(table.take(piece), origin_ns) for table, piece in parts])
        for place, rows in rows_by_values(*(events[name] for name in _STREAM_KEY)).items():
            tracks[place].add(events.without(*_STREAM_KEY).take(rows))
    rows_by_device: dict[tuple[int, int], list[LaneRow]] = defaultdict(list)
    for process, device, stream in sorted(tracks):
        label = "Unknown stream" if stream == ABSENT else f"Stream {stream}"
        rows_by_device[process, device].extend(tracks[process, device, stream].rows(label, "gpu"))
    for (process, device), rows_of_device in rows_by_device.items():
        yield process, device, tuple(rows_of_device)


_STREAM_KEY: Final = ("process", "device", "stream")


def describe_device(trace: Trace, device: int) -> str:
    """Return "GPU 0", followed by the name of the device if it is known.

    A remark in the name about other devices on the same GPU moves behind the number.
    """
    names = trace.devices["name"][trace.devices["device"] == device]
    name = str(names[0]) if len(names) else ""
    number = "GPU" if device == ABSENT else f"GPU {device}"
    if SAME_GPU in name:
        before, _, rest = name.partition(f"({SAME_GPU}")
        other, _, rest = rest.partition(")")
        number, name = f"{number} ({SAME_GPU}{other})", f"{before.strip()}{rest}".strip()
    return f"{number} · {name}" if name else number


def _category_of_kernel(activity: str) -> str:
    return _KERNEL_CATEGORY[Activity(activity).part] if activity else "compute"


def _categories_of_kinds(kinds: Names, category: Callable[[str], str]) -> np.ndarray:
    """Return the palette index of the category of each row; ``category`` maps a kind to a key."""
    return kinds.by_text(
        np.array([CATEGORY_INDEX[category(kind)] for kind in kinds.texts.tolist()], np.int64)
    )


def _drawn_columns(
    table: Table, categories: np.ndarray, names: Packed | np.ndarray, *key_columns: str
) -> Table:
    """Return the drawn columns of a table and its ``key_columns``.

    Large tables are stored on disk.
    """
    present = (name for name in (*_DRAWN_COLUMNS, *key_columns) if name in table)
    return table.select(*present).assign(categories=Packed(categories), names=names).on_disk()


_DRAWN_COLUMNS: Final = ("start_ns", "end_ns", "n_bytes", "correlation")


def _events_of(table: Table, origin_ns: int) -> Table:
    """Convert rows to events with times relative to ``origin_ns``.

    Rows without an end are instants.
    """
    starts = table["start_ns"] - origin_ns
    return table.without(*_DRAWN_COLUMNS).assign(
        starts=starts,
        ends=table["end_ns"] - origin_ns if "end_ns" in table else starts,
        names=table["names"],
        n_bytes=_column(table, "n_bytes"),
        correlations=_column(table, "correlation"),
    )


def _copy_names(copies: Table, names: NameTable) -> Packed:
    """Return the ids of names such as "Memcpy host → device (pageable → device)"."""
    ids = []
    columns: list[Names] = [copies[c] for c in ("direction", "src_kind", "dst_kind")]
    groups = groups_of(*columns)
    for row in groups.first_rows.tolist():
        direction, source, target = (column[row] for column in columns)
        label = _DIRECTIONS.get(direction, "Memcpy")
        if source and target and direction != "memset":
            label += f" ({source} → {target})"
        ids.append(names.id_of(label))
    return Packed(np.array(ids, np.int64))[groups.packed]


@dataclass(frozen=True, slots=True)
class _Lane:
    """How one table becomes a lane: its name column, label, kind of row, and category."""

    table: str
    name: str
    label: str
    kind: str
    category: str


_LANES: Final = (
    _Lane("ranges", "name", "Ranges", "range", "range"),
    _Lane("functions", "name", "Python functions", "host_op", "host_op"),
    _Lane("marks", "name", "Marks", "mark", "mark"),
    _Lane("collectives", "op", "Collectives", "collective", "communication"),
    _Lane("host_ops", "name", "Operators", "host_op", "host_op"),
    _Lane("api_calls", "name", "CUDA API", "api", "api"),
    _Lane("syncs", "kind", "Waits", "sync", "sync"),
    _Lane("overheads", "name", "Profiler overhead", "overhead", "overhead"),
)


@dataclass(frozen=True, slots=True)
class ThreadRows:
    """The rows of one thread (ABSENT if the thread is unknown); ``weight`` orders the threads."""

    process: int
    thread: int
    rows: tuple[LaneRow, ...]
    weight: tuple[int, int, int]


def thread_lanes(trace: Trace, origin_ns: int, names: NameTable) -> list[ThreadRows]:
    """Return the lanes of every thread with events, sorted by process and descending weight."""
    rows: dict[tuple[int, int], list[LaneRow]] = defaultdict(list)
    for lane in _LANES:
        table = trace.table(lane.table)
        within, labels = _split_within(lane, table)
        parts = rows_by_values(_column(table, "process"), _column(table, "thread"), within)
        ids = names.ids(table[lane.name], parts.values())
        events = _drawn_columns(table, _categories(lane, table), ids)
        for (process, thread, code), places in parts.items():
            track = Track()
            for piece in pieces_of(len(places)):
                track.add(_events_of(events.take(places[piece]), origin_ns))
            rows[process, thread].extend(track.rows(labels[code], lane.kind))
    threads = [
        ThreadRows(process, thread, tuple(lane_rows), _thread_weight(lane_rows))
        for (process, thread), lane_rows in rows.items()
    ]
    return sorted(threads, key=lambda t: (t.process, *(-w for w in t.weight), t.thread))


def _split_within(lane: _Lane, table: Table) -> tuple[Packed, Mapping[int, str]]:
    """Return a code that divides a thread's rows of one table further, and a label per code.

    Ranges are divided by kind, operators by source.
    """
    if lane.table == "ranges":
        # Start/end ranges do not always nest in other ranges and would shift the depth of these.
        loose = table["kind"] == "start_end"
        return Packed.below(2, loose), {0: lane.label, 1: "Start/end ranges"}
    if lane.table == "host_ops":
        sources: Names = table["source"]
        words = {"cpu_op": "Operators", "osrt": "System calls", "": "Operators"}
        labels = {i: words.get(name, name) for i, name in enumerate(sources.texts.tolist())}
        return sources.packed, labels
    return Packed.repeated(0, len(table)), {0: lane.label}


def _column(table: Table, name: str) -> np.ndarray:
    """Return a column of a table; ABSENT for each row if the table lacks the column."""
    column: np.ndarray = table.get(name, np.full(len(table), ABSENT))
    return column


def _categories(lane: _Lane, table: Table) -> np.ndarray:
    """Return the category of each row.

    Ranges named after a training phase have the category of that phase.
    """
    plain = CATEGORY_INDEX[lane.category]
    if lane.table != "ranges":
        return np.full(len(table), plain)
    by_phase = [*(CATEGORY_INDEX.get(f"range_{phase}", plain) for phase in PHASES), plain]
    return np.array(by_phase, np.int64)[phases_of_ranges(table)]


def _thread_weight(rows: list[LaneRow]) -> tuple[int, int, int]:
    """Return the numbers of API calls, of ranges and collectives, and of all events."""
    count: dict[str, int] = defaultdict(int)
    for row in rows:
        count[row.kind] += sum(len(channel) for channel in row.channels)
    return count["api"], count["range"] + count["collective"], sum(count.values())


_MAX_QUIET_GROUPS = 3
_INFORMATIVE_KINDS = {"range", "mark", "collective", "api", "sync"}


@dataclass(frozen=True, slots=True)
class RankLanes:
    """The lanes of one Trace of a run.

    The last ``n_quiet`` groups are processes without annotations and GPU activity.
    """

    lanes: Lanes
    n_quiet: int


def build_lanes(trace: Trace, window: TimeWindow) -> Lanes:
    """Return the lanes of all events of ``trace`` that overlap ``window``, in screen order.

    Events are not clipped to the window, so the tooltip shows their real times.
    """
    rank_lanes = lanes_of_rank(trace, window, has_hosts=has_several_hosts(trace.processes))
    return merge_ranks([rank_lanes], trace.processes)


def lanes_of_rank(trace: Trace, window: TimeWindow, *, has_hosts: bool) -> RankLanes:
    """Return the lanes of one rank's Trace; ``has_hosts``: the run uses several hosts."""
    names, whole_trace = NameTable(), trace
    trace = rows_inside(trace, window)
    devices: dict[int, list[tuple[int, tuple[LaneRow, ...]]]] = defaultdict(list)
    for process, device, rows in device_groups(trace, window.start_ns, names):
        devices[process].append((device, rows))
    threads: dict[int, list[ThreadRows]] = defaultdict(list)
    for thread_rows in thread_lanes(trace, window.start_ns, names):
        threads[thread_rows.process].append(thread_rows)
    main = [p for p in {*devices, *threads} if devices[p] or any(map(_is_informative, threads[p]))]
    groups: list[LaneGroup] = []
    for process in sorted(main):
        section = plain_text(describe_process(trace, process, has_hosts=has_hosts), 120)
        groups.extend(
            LaneGroup(
                *(section, describe_device(trace, device), "device", rows, process),
                states=_unrecorded(whole_trace, device, window),
                device=device,
            )
            for device, rows in devices[process]
        )
        groups.extend(_thread_groups(trace, section, threads[process]))
    quiet = [
        _joined_group(
            trace,
            "Other processes",
            plain_text(describe_process(trace, process, has_hosts=has_hosts), 120),
            threads[process],
        )
        for process in sorted(set(threads) - set(main))
    ]
    return RankLanes(Lanes((*groups, *quiet), names.names), len(quiet))


def _unrecorded(trace: Trace, device: int, window: TimeWindow) -> tuple[Channel, ...]:
    """Return the times inside ``window`` in which the device was not recorded, as a state channel.

    ``trace`` is the whole Trace. Without gaps, return no channel.
    """
    recorded = recorded_times(trace, device)
    inside = window & trace.span
    unknown = recorded.gaps(inside.start_ns, inside.end_ns)
    starts, ends = unknown.starts - window.start_ns, unknown.ends - window.start_ns
    return (state_channel(NOT_RECORDED, Intervals(starts, ends)),) if len(unknown) else ()


def merge_ranks(all_ranks: Sequence[RankLanes], processes: Table) -> Lanes:
    """Merge the lanes of all ranks in screen order; ``processes`` is the table of all processes."""
    name_ids: dict[str, int] = {}
    main: list[LaneGroup] = []
    quiet: list[LaneGroup] = []
    for rank_lanes in all_ranks:
        of_names = np.array(
            [name_ids.setdefault(name, len(name_ids)) for name in rank_lanes.lanes.names], np.int64
        )
        is_same = np.array_equal(of_names, np.arange(len(of_names)))
        lanes = rank_lanes.lanes if is_same else renumbered(rank_lanes.lanes, of_names)
        first_quiet = len(lanes.groups) - rank_lanes.n_quiet
        main += lanes.groups[:first_quiet]
        quiet += lanes.groups[first_quiet:]
    order = _sort_processes(processes, {group.process for group in [*main, *quiet]})
    place = {process: i for i, process in enumerate(order)}
    main, quiet = (
        sorted(groups, key=lambda group: place[group.process]) for groups in (main, quiet)
    )
    return number_names_by_use(Lanes((*main, *_limit_quiet_groups(quiet)), tuple(name_ids)))


def describe_process(trace: Trace, process: int, *, has_hosts: bool | None = None) -> str:
    """Return a name such as "rank 3 · host node1 · python3 · process 4711".

    ``has_hosts`` selects whether the name contains the host; by default, it does if ``trace`` has
    several hosts. The host comes early because the display cuts long names at the end.
    """
    process_rows = trace.processes.take(trace.processes["process"] == process)
    words = []
    if len(process_rows):
        row = process_rows.row(0)
        rank = row["rank"]
        words += [f"rank {rank}"] if rank != ABSENT else []
        shows_host = has_several_hosts(trace.processes) if has_hosts is None else has_hosts
        words += [f"host {row['host']}"] if shows_host and row["host"] else []
        words += [_file_name(str(row["name"]))] if row["name"] else []
    words += [f"process {process}"] if process != ABSENT else []
    return " · ".join(words) or "Unknown process"


def _file_name(path: str) -> str:
    return PureWindowsPath(path).name if "\\" in path else PurePath(path).name


def has_several_hosts(processes: Table) -> bool:
    """Return whether the processes run on more than one host."""
    return len({*processes["host"].tolist()}) > 1


def _sort_processes(table: Table, processes: Iterable[int]) -> list[int]:
    """Sort processes by rank, then those without a rank by number; ``table`` has their ranks."""
    ranks = dict(zip(table["process"].tolist(), table["rank"].tolist(), strict=True))
    with_rank = ((ranks.get(process, ABSENT), process) for process in processes)
    return [process for _, process in sorted(with_rank, key=lambda p: (p[0] == ABSENT, *p))]


def _thread_groups(trace: Trace, section: str, threads: list[ThreadRows]) -> list[LaneGroup]:
    """Return one group per informative thread and one group for all other threads."""
    shown = [t for t in threads if _is_informative(t)]
    others = [t for t in threads if not _is_informative(t)]
    if len(others) == 1:
        shown, others = [*shown, *others], []
    groups = [
        LaneGroup(section, _thread_label(trace, thread), "thread", thread.rows, thread.process)
        for thread in shown
    ]
    if others:
        label = f"{len(others)} other threads"
        groups.append(_joined_group(trace, section, label, others))
    return groups


def _limit_quiet_groups(groups: Sequence[LaneGroup]) -> Sequence[LaneGroup]:
    """Merge more than `_MAX_QUIET_GROUPS` groups of quiet processes into one group.

    Quiet processes have neither annotations nor GPU activity.
    """
    if len(groups) <= _MAX_QUIET_GROUPS:
        return groups
    rows = _joined_rows((group.label, group.rows) for group in groups)
    label = f"{len(groups)} other processes"
    return [LaneGroup("Other processes", label, "threads", rows, groups[0].process)]


def _joined_group(
    trace: Trace, section: str, label: str, threads: Sequence[ThreadRows]
) -> LaneGroup:
    """Return one group with the rows of several threads."""
    rows = _joined_rows((_thread_label(trace, thread), thread.rows) for thread in threads)
    return LaneGroup(section, label, "threads", rows, threads[0].process)


def _joined_rows(members: Iterable[tuple[str, Sequence[LaneRow]]]) -> tuple[LaneRow, ...]:
    """Return the rows of all ``members``; the first row of each gets the label of the member."""
    return tuple(
        replace(row, label=label if i == 0 else row.label)
        for label, rows in members
        for i, row in enumerate(rows)
    )


def _is_informative(thread: ThreadRows) -> bool:
    return any(row.kind in _INFORMATIVE_KINDS or row.label == "Operators" for row in thread.rows)


def _thread_label(trace: Trace, thread: ThreadRows) -> str:
    """Return a label such as "Main thread · python3" or "Thread 4711"."""
    if thread.thread == ABSENT:
        return "Synchronization"
    threads = trace.threads
    is_thread = (threads["process"] == thread.process) & (threads["thread"] == thread.thread)
    name = str(threads["name"][is_thread][0]) if is_thread.any() else ""
    # Kineto repeats the number: "thread 4711 (python3)".
    name = name.removeprefix(f"thread {thread.thread} (").removesuffix(")")
    main = "Main thread" if thread.thread == thread.process else f"Thread {thread.thread}"
    return plain_text(f"{main} · {name}" if name else main, 80)
