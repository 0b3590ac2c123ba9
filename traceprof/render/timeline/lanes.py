"""Which lanes a Trace has: sections (processes) of groups (devices, then threads) of rows.

Of a device one lane per stream; of a thread ranges nested by depth, operators, API calls.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
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
from traceprof.render.timeline.encode import in_order_of_use, renumbered
from traceprof.render.timeline.events import NameTable, Track, in_order, pieces_in_time, rows_inside

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
    of_kernels = _by_kind(kernels["activity"], _category_of_kernel)
    of_copies = _by_kind(copies["direction"], lambda d: d if d in _DIRECTIONS else "copy")
    both = (
        _to_draw(kernels, of_kernels, names.ids(kernels["name"]), *_PLACE),
        _to_draw(copies, of_copies, _copy_names(copies, names), *_PLACE),
    )
    tracks: dict[tuple[int, ...], Track] = defaultdict(Track)
    for pieces in pieces_in_time(*both):
        parts = zip(both, pieces, strict=True)
        events = in_order([_events_of(table.take(piece), origin_ns) for table, piece in parts])
        for place, rows in rows_by_values(*(events[name] for name in _PLACE)).items():
            tracks[place].add(events.without(*_PLACE).take(rows))
    found: dict[tuple[int, int], list[LaneRow]] = defaultdict(list)
    for process, device, stream in sorted(tracks):
        label = "Unknown stream" if stream == ABSENT else f"Stream {stream}"
        found[process, device].extend(tracks[process, device, stream].rows(label, "gpu"))
    for (process, device), rows_of_device in found.items():
        yield process, device, tuple(rows_of_device)


_PLACE: Final = ("process", "device", "stream")


def describe_device(trace: Trace, device: int) -> str:
    """Return "GPU 0" with the name of the device where it is known."""
    known = trace.devices["name"][trace.devices["device"] == device]
    name = str(known[0]) if len(known) else ""
    number = "GPU" if device == ABSENT else f"GPU {device}"
    if SAME_GPU in name:
        before, _, rest = name.partition(f"({SAME_GPU}")
        other, _, rest = rest.partition(")")
        number, name = f"{number} ({SAME_GPU}{other})", f"{before.strip()}{rest}".strip()
    return f"{number} · {name}" if name else number


def _category_of_kernel(activity: str) -> str:
    return _KERNEL_CATEGORY[Activity(activity).part] if activity else "compute"


def _by_kind(kinds: Names, category: Callable[[str], str]) -> np.ndarray:
    """Return the place in the palette of the category of each row's kind."""
    return kinds.by_text(
        np.array([CATEGORY_INDEX[category(kind)] for kind in kinds.texts.tolist()], np.int64)
    )


def _to_draw(table: Table, categories: np.ndarray, names: Packed | np.ndarray, *more: str) -> Table:
    """Return what is drawn of a table, on the disk where that is large, and ``more`` columns."""
    known = (name for name in (*_DRAWN, *more) if name in table)
    return table.select(*known).assign(categories=Packed(categories), names=names).on_disk()


_DRAWN: Final = ("start_ns", "end_ns", "n_bytes", "correlation")


def _events_of(table: Table, origin_ns: int) -> Table:
    """Return some rows to draw as events; those without an end are instants."""
    starts = table["start_ns"] - origin_ns
    return table.without(*_DRAWN).assign(
        starts=starts,
        ends=table["end_ns"] - origin_ns if "end_ns" in table else starts,
        names=table["names"],
        n_bytes=_column(table, "n_bytes"),
        correlations=_column(table, "correlation"),
    )


def _copy_names(copies: Table, names: NameTable) -> Packed:
    """Return names such as "Memcpy host → device (pageable → device)"."""
    ids = []
    columns: list[Names] = [copies[c] for c in ("direction", "src_kind", "dst_kind")]
    groups = groups_of(*(column.packed for column in columns))
    for row in groups.first_rows.tolist():
        direction, source, target = (column[row] for column in columns)
        label = _DIRECTIONS.get(direction, "Memcpy")
        if source and target and direction != "memset":
            label += f" ({source} → {target})"
        ids.append(names.id_of(label))
    return Packed(np.array(ids, np.int64))[groups.packed]


@dataclass(frozen=True, slots=True)
class _Lane:
    """How one table becomes a lane: from the table, its name column, to a category and a kind."""

    table: str
    name: str
    label: str
    kind: str
    category: str


_LANES: Final = (
    _Lane("ranges", "name", "Ranges", "range", "range"),
    _Lane("marks", "name", "Marks", "mark", "mark"),
    _Lane("collectives", "op", "Collectives", "collective", "communication"),
    _Lane("host_ops", "name", "Operators", "host_op", "host_op"),
    _Lane("api_calls", "name", "CUDA API", "api", "api"),
    _Lane("syncs", "kind", "Waits", "sync", "sync"),
    _Lane("overheads", "name", "Profiler overhead", "overhead", "overhead"),
)


@dataclass(frozen=True, slots=True)
class ThreadRows:
    """The rows of one thread (ABSENT: not known which); ``weight`` orders threads."""

    process: int
    thread: int
    rows: tuple[LaneRow, ...]
    weight: tuple[int, int, int]


def thread_lanes(trace: Trace, origin_ns: int, names: NameTable) -> list[ThreadRows]:
    """Return the lanes of every thread that left rows, the most telling threads first."""
    rows: dict[tuple[int, int], list[LaneRow]] = defaultdict(list)
    for lane in _LANES:
        table = trace.table(lane.table)
        within, labels = _split_within(lane, table)
        parts = rows_by_values(_column(table, "process"), _column(table, "thread"), within)
        ids = names.ids(table[lane.name], parts.values())
        events = _to_draw(table, _categories(lane, table), ids)
        for (process, thread, code), places in parts.items():
            track = Track()
            for piece in pieces_of(len(places)):
                track.add(_events_of(events.take(places[piece]), origin_ns))
            rows[process, thread].extend(track.rows(labels[code], lane.kind))
    threads = [
        ThreadRows(process, thread, tuple(found), _weight(found))
        for (process, thread), found in rows.items()
    ]
    return sorted(threads, key=lambda t: (t.process, *(-w for w in t.weight), t.thread))


def _split_within(lane: _Lane, table: Table) -> tuple[Packed, Mapping[int, str]]:
    """Return what further divides a thread's rows of one table: the kind or the source."""
    if lane.table == "ranges":
        # A start/end range need not nest in the others: it would shift their depth.
        loose = table["kind"] == "start_end"
        return Packed.below(2, loose), {0: lane.label, 1: "Start/end ranges"}
    if lane.table == "host_ops":
        sources: Names = table["source"]
        words = {"cpu_op": "Operators", "osrt": "System calls", "": "Operators"}
        labels = {i: words.get(name, name) for i, name in enumerate(sources.texts.tolist())}
        return sources.packed, labels
    return Packed.repeated(0, len(table)), {0: lane.label}


def _column(table: Table, name: str) -> np.ndarray:
    column: np.ndarray = table.get(name, np.full(len(table), ABSENT))
    return column


def _categories(lane: _Lane, table: Table) -> np.ndarray:
    """Return the category of each row: ranges named after a phase of training have their own."""
    plain = CATEGORY_INDEX[lane.category]
    if lane.table != "ranges":
        return np.full(len(table), plain)
    by_phase = [*(CATEGORY_INDEX[f"range_{phase}"] for phase in PHASES), plain]
    return np.array(by_phase, np.int64)[phases_of_ranges(table)]


def _weight(rows: list[LaneRow]) -> tuple[int, int, int]:
    """Return what makes a thread worth a look: its API calls, its ranges, everything else."""
    count: dict[str, int] = defaultdict(int)
    for row in rows:
        count[row.kind] += sum(len(channel) for channel in row.channels)
    return count["api"], count["range"] + count["collective"], sum(count.values())


_MAX_QUIET = 3
_TELLING_KINDS = {"range", "mark", "collective", "api", "sync"}


@dataclass(frozen=True, slots=True)
class RankLanes:
    """The lanes of one Trace of a run; the last ``n_quiet`` groups are processes of little note."""

    lanes: Lanes
    n_quiet: int


def build_lanes(trace: Trace, window: TimeWindow) -> Lanes:
    """Return everything of ``trace`` with a part inside ``window``, in the order of the screen.

    Rows are whole even where the window cuts them, so that a hover shows an event's real times.
    """
    own = lanes_of_rank(trace, window, has_hosts=_has_hosts(trace.processes))
    return arranged([own], trace.processes)


def lanes_of_rank(trace: Trace, window: TimeWindow, *, has_hosts: bool) -> RankLanes:
    """Return the lanes of the Trace of one rank; ``has_hosts``: the run has several."""
    names, whole = NameTable(), trace
    trace = rows_inside(trace, window)
    devices: dict[int, list[tuple[int, tuple[LaneRow, ...]]]] = defaultdict(list)
    for process, device, rows in device_groups(trace, window.start_ns, names):
        devices[process].append((device, rows))
    threads: dict[int, list[ThreadRows]] = defaultdict(list)
    for found in thread_lanes(trace, window.start_ns, names):
        threads[found.process].append(found)
    main = [p for p in {*devices, *threads} if devices[p] or any(map(_is_telling, threads[p]))]
    groups: list[LaneGroup] = []
    for process in sorted(main):
        section = plain_text(describe_process(trace, process, has_hosts=has_hosts), 120)
        groups.extend(
            LaneGroup(
                *(section, describe_device(trace, device), "device", rows, process),
                states=_unrecorded(whole, device, window),
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
    """Return when nothing was recorded of the device of a whole trace, where that is so."""
    recorded = recorded_times(trace, device)
    inside = window & trace.span
    unknown = recorded.gaps(inside.start_ns, inside.end_ns)
    starts, ends = unknown.starts - window.start_ns, unknown.ends - window.start_ns
    return (state_channel(NOT_RECORDED, Intervals(starts, ends)),) if len(unknown) else ()


def arranged(every: Sequence[RankLanes], processes: Table) -> Lanes:
    """Return the lanes of all ranks in the order of the screen; ``processes`` are those of all."""
    places: dict[str, int] = {}
    main: list[LaneGroup] = []
    quiet: list[LaneGroup] = []
    for own in every:
        of_names = np.array([places.setdefault(n, len(places)) for n in own.lanes.names], np.int64)
        is_same = np.array_equal(of_names, np.arange(len(of_names)))
        groups = (own.lanes if is_same else renumbered(own.lanes, of_names)).groups
        first_quiet = len(groups) - own.n_quiet
        main += groups[:first_quiet]
        quiet += groups[first_quiet:]
    place = {p: i for i, p in enumerate(_in_order(processes, {g.process for g in [*main, *quiet]}))}
    main, quiet = (sorted(own, key=lambda group: place[group.process]) for own in (main, quiet))
    return in_order_of_use(Lanes((*main, *_few(quiet)), tuple(places)))


def describe_process(trace: Trace, process: int, *, has_hosts: bool | None = None) -> str:
    """Return a name such as "rank 3 · host node1 · python3 · process 4711".

    The host only where there are several (``has_hosts``, by default: in ``trace``), before what
    the width of the names may cut off.
    """
    known = trace.processes.take(trace.processes["process"] == process)
    words = []
    if len(known):
        row = known.row(0)
        rank = row["rank"]
        words += [f"rank {rank}"] if rank != ABSENT else []
        several = _has_hosts(trace.processes) if has_hosts is None else has_hosts
        words += [f"host {row['host']}"] if several and row["host"] else []
        words += [_file_name(str(row["name"]))] if row["name"] else []
    words += [f"process {process}"] if process != ABSENT else []
    return " · ".join(words) or "Unknown process"


def _file_name(path: str) -> str:
    return PureWindowsPath(path).name if "\\" in path else PurePath(path).name


def _has_hosts(processes: Table) -> bool:
    return len({*processes["host"].tolist()}) > 1


def _in_order(known: Table, processes: Iterable[int]) -> list[int]:
    ranks = dict(zip(known["process"].tolist(), known["rank"].tolist(), strict=True))

    def place(process: int) -> tuple[bool, int, int]:
        rank = ranks.get(process, ABSENT)
        return (rank == ABSENT, rank, process)

    return sorted(processes, key=place)


def _thread_groups(trace: Trace, section: str, threads: list[ThreadRows]) -> list[LaneGroup]:
    """Return one group per telling thread and one for all the others."""
    telling = [t for t in threads if _is_telling(t)]
    others = [t for t in threads if not _is_telling(t)]
    if len(others) == 1:
        telling, others = [*telling, *others], []
    groups = [
        LaneGroup(section, _thread_label(trace, own), "thread", own.rows, own.process)
        for own in telling
    ]
    if others:
        label = f"{len(others)} other threads"
        groups.append(_joined_group(trace, section, label, others))
    return groups


def _few(groups: Sequence[LaneGroup]) -> Sequence[LaneGroup]:
    """Return processes that neither annotate nor use a device, many of them as one group."""
    if len(groups) <= _MAX_QUIET:
        return groups
    rows = tuple(
        LaneRow(group.label if i == 0 else row.label, row.kind, row.channels)
        for group in groups
        for i, row in enumerate(group.rows)
    )
    label = f"{len(groups)} other processes"
    return [LaneGroup("Other processes", label, "threads", rows, groups[0].process)]


def _joined_group(
    trace: Trace, section: str, label: str, threads: Sequence[ThreadRows]
) -> LaneGroup:
    rows = tuple(
        LaneRow(_thread_label(trace, thread) if i == 0 else row.label, row.kind, row.channels)
        for thread in threads
        for i, row in enumerate(thread.rows)
    )
    return LaneGroup(section, label, "threads", rows, threads[0].process)


def _is_telling(thread: ThreadRows) -> bool:
    return any(row.kind in _TELLING_KINDS or row.label == "Operators" for row in thread.rows)


def _thread_label(trace: Trace, thread: ThreadRows) -> str:
    if thread.thread == ABSENT:
        return "Synchronization"
    threads = trace.threads
    is_it = (threads["process"] == thread.process) & (threads["thread"] == thread.thread)
    name = str(threads["name"][is_it][0]) if is_it.any() else ""
    # Kineto repeats the number: "thread 4711 (python3)".
    name = name.removeprefix(f"thread {thread.thread} (").removesuffix(")")
    main = "Main thread" if thread.thread == thread.process else f"Thread {thread.thread}"
    return plain_text(f"{main} · {name}" if name else main, 80)
