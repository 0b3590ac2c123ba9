"""Which lanes a Trace has: sections (processes) of groups (threads, then devices) of rows."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import PurePath, PureWindowsPath

import numpy as np
import numpy.typing as npt
import pandas as pd

from traceprof.model.tables import ABSENT
from traceprof.model.timing import TimeWindow
from traceprof.model.trace import Trace
from traceprof.render.escape import plain_text
from traceprof.render.timeline.channels import Channel, Group, Lanes, Row
from traceprof.render.timeline.device_lanes import device_groups, make_device_group
from traceprof.render.timeline.events import NameTable
from traceprof.render.timeline.host_lanes import ThreadLanes, thread_lanes
from traceprof.render.timeline.inside import rows_inside
from traceprof.render.timeline.names import in_order_of_use, renumbered, with_channels
from traceprof.values import dataclass

__all__ = ["RankLanes", "arranged", "build_lanes", "describe_process", "lanes_of_rank"]

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
    names = NameTable()
    trace = rows_inside(trace, window)
    devices: dict[int, list[tuple[int, tuple[Row, ...]]]] = defaultdict(list)
    for process, device, rows in device_groups(trace, window.start_ns, names):
        devices[process].append((device, rows))
    threads: dict[int, list[ThreadLanes]] = defaultdict(list)
    for found in thread_lanes(trace, window.start_ns, names):
        threads[found.process].append(found)
    main = [p for p in {*devices, *threads} if devices[p] or any(map(_is_telling, threads[p]))]
    groups: list[Group] = []
    for process in sorted(main):
        section = plain_text(describe_process(trace, process, has_hosts=has_hosts), 120)
        groups.extend(_thread_groups(trace, section, threads[process]))
        groups.extend(
            make_device_group(trace, section, process, device, rows)
            for device, rows in devices[process]
        )
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


def arranged(every: Sequence[RankLanes], processes: pd.DataFrame) -> Lanes:
    """Return the lanes of all ranks in the order of the screen; ``processes`` are those of all."""
    places: dict[str, int] = {}
    main: list[Group] = []
    quiet: list[Group] = []
    for own in every:
        of_names = np.array([places.setdefault(n, len(places)) for n in own.lanes.names], np.int64)
        groups = _renamed(own.lanes, of_names).groups
        first_quiet = len(groups) - own.n_quiet
        main += groups[:first_quiet]
        quiet += groups[first_quiet:]
    place = {p: i for i, p in enumerate(_in_order(processes, {g.process for g in [*main, *quiet]}))}
    main, quiet = (sorted(own, key=lambda group: place[group.process]) for own in (main, quiet))
    return in_order_of_use(Lanes((*main, *_few(quiet)), tuple(places)))


def _renamed(lanes: Lanes, of_names: npt.NDArray[np.int64]) -> Lanes:
    """Return the same lanes, each name at its place ``of_names`` among those of all."""
    if np.array_equal(of_names, np.arange(len(of_names))):
        return lanes

    def renamed(channel: Channel) -> Channel:
        return replace(channel, names=renumbered(channel, of_names))

    return with_channels(lanes, renamed)


def describe_process(trace: Trace, process: int, *, has_hosts: bool | None = None) -> str:
    """Return a name such as "rank 3 · host node1 · python3 · process 4711".

    The host only where there are several (``has_hosts``, by default: in ``trace``), before what
    the width of the names may cut off.
    """
    known = trace.processes[trace.processes["process"] == process]
    words = []
    if len(known):
        row = known.iloc[0]
        rank = int(row["rank"])
        words += [f"rank {rank}"] if rank != ABSENT else []
        several = _has_hosts(trace.processes) if has_hosts is None else has_hosts
        words += [f"host {row['host']}"] if several and row["host"] else []
        words += [_file_name(str(row["name"]))] if row["name"] else []
    words += [f"process {process}"] if process != ABSENT else []
    return " · ".join(words) or "Process not known"


def _file_name(path: str) -> str:
    return PureWindowsPath(path).name if "\\" in path else PurePath(path).name


def _has_hosts(processes: pd.DataFrame) -> bool:
    return bool(processes["host"].nunique() > 1)


def _in_order(known: pd.DataFrame, processes: Iterable[int]) -> list[int]:
    ranks = dict(zip(known["process"], known["rank"], strict=True))

    def place(process: int) -> tuple[bool, int, int]:
        rank = int(ranks.get(process, ABSENT))
        return (rank == ABSENT, rank, process)

    return sorted(processes, key=place)


def _thread_groups(trace: Trace, section: str, threads: list[ThreadLanes]) -> list[Group]:
    """Return one group per telling thread and one for all the others."""
    telling = [t for t in threads if _is_telling(t)]
    others = [t for t in threads if not _is_telling(t)]
    if len(others) == 1:
        telling, others = [*telling, *others], []
    groups = [_thread_group(trace, section, thread) for thread in telling]
    if others:
        label = f"{len(others)} other threads"
        groups.append(_joined_group(trace, section, label, others))
    return groups


def _few(groups: Sequence[Group]) -> Sequence[Group]:
    """Return processes that neither annotate nor use a device, many of them as one group."""
    if len(groups) <= _MAX_QUIET:
        return groups
    rows = tuple(
        Row(group.label if i == 0 else row.label, row.kind, row.channels)
        for group in groups
        for i, row in enumerate(group.rows)
    )
    label = f"{len(groups)} other processes"
    return [Group("Other processes", label, "threads", rows, groups[0].process)]


def _joined_group(trace: Trace, section: str, label: str, threads: Sequence[ThreadLanes]) -> Group:
    rows = tuple(
        Row(_thread_label(trace, thread) if i == 0 else row.label, row.kind, row.channels)
        for thread in threads
        for i, row in enumerate(thread.rows)
    )
    return Group(section, label, "threads", rows, threads[0].process)


def _is_telling(thread: ThreadLanes) -> bool:
    return any(row.kind in _TELLING_KINDS or row.label == "Operators" for row in thread.rows)


def _thread_group(trace: Trace, section: str, thread: ThreadLanes) -> Group:
    return Group(section, _thread_label(trace, thread), "thread", thread.rows, thread.process)


def _thread_label(trace: Trace, thread: ThreadLanes) -> str:
    if thread.thread == ABSENT:
        return "Synchronisation"
    known = trace.threads[
        (trace.threads["process"] == thread.process) & (trace.threads["thread"] == thread.thread)
    ]
    name = str(known["name"].iloc[0]) if len(known) else ""
    # Kineto repeats the number: "thread 4711 (python3)".
    name = name.removeprefix(f"thread {thread.thread} (").removesuffix(")")
    main = "Main thread" if thread.thread == thread.process else f"Thread {thread.thread}"
    return plain_text(f"{main} · {name}" if name else main, 80)
