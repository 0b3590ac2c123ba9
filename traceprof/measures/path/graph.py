"""Find the critical path: the chain of work and waits that determines the duration of a window.

The path is searched backward. Work cannot start before its launch, and not before the previous work
on its stream has ended. It waited for the later of the two. If work on another stream ended
directly before the start, that work is assumed to be a dependency. A wait of the host ends with the
work that it waited for. The host runs independently until it waits for the device, and then depends
on that work.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from traceprof.measures.device.times import indices_in_part
from traceprof.measures.facts import fact
from traceprof.measures.host.launches import launches_of
from traceprof.measures.host.states import is_blocking_copy, is_synchronization
from traceprof.measures.idle.gaps import LATENCY_NS
from traceprof.measures.rows import Array, Ints, Texts, moved_to_disk
from traceprof.model.activity import Part
from traceprof.model.grouping import groups_of, pieces_of, places_of
from traceprof.model.intervals import Intervals
from traceprof.model.packed import Packed, joined_numbers
from traceprof.model.timing import TimeWindow
from traceprof.model.trace import DEVICE_TABLES, Trace

_Columns = Mapping[str, Any]

DEVICE_KINDS: Final = tuple(part.value for part in Part)
DEPENDS_NS: Final = 10_000
"""Maximum delay after the end of work on another stream for which a dependency is assumed."""
_NONE: Final = -1
_UNKNOWN_NS: Final = np.iinfo(np.int64).min
"""Time of a launch that was not recorded; earlier than all other times."""


@dataclass(frozen=True, slots=True, eq=False)
class Graph:
    """The work of a process and the waits of its host in the whole recording. Times are in ns.

    Work, sorted by start:

    * ``starts``, ``ends``
    * ``kinds``: place in `DEVICE_KINDS`
    * ``n_bytes``, ``directions``: of a copy; ``directions`` is a place in ``direction_names``, -1
      for kernels
    * ``launched``: start of the launching call, or the start of the work if unknown
    * ``work_before``: row of the work that it waited for; -1 if it waited for its launch
    * ``wait_before``: last wait of the host before the launch; -1: none
    * ``latest_end``: running maximum of ``ends``

    Waits, sorted by end:

    * ``wait_starts``, ``wait_ends``
    * ``released_by``: row of the work whose end ended the wait; -1: none
    * ``exit_ns``: time at which the path leaves the wait: the end of that work, or else the start
      of the wait
    * ``earlier_wait``: last wait that ended before ``exit_ns``; -1: none
    """

    starts: Ints
    ends: Ints
    kinds: Packed
    n_bytes: Ints
    directions: Packed
    direction_names: Texts
    launched: Ints
    work_before: Ints
    wait_before: Ints
    latest_end: Ints
    wait_starts: Ints
    wait_ends: Ints
    released_by: Ints
    exit_ns: Ints
    earlier_wait: Ints

    def wait_until(self, instants: npt.ArrayLike) -> Ints:
        """Return the last wait that had ended at each instant; -1: none."""
        return np.asarray(np.searchsorted(self.wait_ends, instants, side="right") - 1, np.int64)


@fact
def dependencies(trace: Trace) -> Mapping[int, Graph]:
    """Return the work and waits of each process with device work."""
    work = _work(trace)
    calls = trace.api_calls
    waits = calls.take(is_synchronization(calls["name"]) | is_blocking_copy(calls["name"]))
    waits = waits.select("process", "start_ns", "end_ns").in_order("process", "end_ns")
    work_of, waits_of = _by_process(work), _by_process(waits.columns)
    nothing = {name: np.empty(0, np.int64) for name in ("start_ns", "end_ns")}
    directions = trace.copies["direction"].texts
    return {
        process: _graph(columns, waits_of.get(process, nothing), directions)
        for process, columns in work_of.items()
    }


def _by_process(columns: _Columns) -> dict[int, _Columns]:
    """Return the columns of each process, as views, of a table that is sorted by process."""
    number, processes = places_of(columns["process"])
    firsts = np.searchsorted(number.wide(), np.arange(len(processes)))
    lasts = np.append(firsts[1:], len(number))
    return {
        process: {name: column[first:last] for name, column in columns.items()}
        for process, first, last in zip(processes, firsts.tolist(), lasts.tolist(), strict=False)
    }


def _work(trace: Trace) -> dict[str, Any]:
    """Return the work of all devices, sorted by process and start.

    Column ``lane`` is a number for the device and stream of each row.
    """
    parts = [_work_of(trace, name) for name in DEVICE_TABLES]
    columns = {
        name: moved_to_disk(joined_numbers([part[name] for part in parts])) for name in parts[0]
    }
    del parts
    columns["lane"] = groups_of(columns.pop("device"), columns.pop("stream")).packed
    order = np.argsort(columns["start_ns"], kind="stable")
    order = order[groups_of(columns["process"][order]).order]
    for name, column in columns.items():
        columns[name] = moved_to_disk(column[order])
    return columns


def _work_of(trace: Trace, name: str) -> dict[str, Any]:
    """Return the rows of a device table with kind and launch (`_UNKNOWN_NS` if unknown)."""
    table, launches = trace.table(name), launches_of(trace, name)
    known = launches.is_known
    is_copy = name == "copies"
    columns = ("start_ns", "end_ns", "device", "stream", "process")
    n_rows = len(table)
    return {
        **{column: table[column] for column in columns},
        "kind": _kinds_of(trace, name),
        "launch_ns": np.where(known, launches.start_ns, _UNKNOWN_NS),
        "launched_ns": np.where(known, launches.end_ns, _UNKNOWN_NS),
        "n_bytes": table["n_bytes"] if is_copy else Packed.repeated(0, n_rows),
        "direction": table["direction"].packed if is_copy else Packed.repeated(_NONE, n_rows),
    }


def _kinds_of(trace: Trace, name: str) -> Packed:
    """Return the place of each row in `DEVICE_KINDS`; host-to-host copies count as transfers."""
    places = indices_in_part(trace, name)
    otherwise = DEVICE_KINDS.index("transfer") if name == "copies" else 0
    return Packed.below(len(DEVICE_KINDS), np.where(places < 0, otherwise, places))


def _graph(work: _Columns, waits: _Columns, directions: Texts) -> Graph:
    """Return the graph of one process from the columns of its work and waits."""
    starts, ends = work["start_ns"], work["end_ns"]
    wait_starts, wait_ends = waits["start_ns"], waits["end_ns"]
    launch: Ints = work["launch_ns"]
    launched = np.where(launch == _UNKNOWN_NS, starts, np.minimum(launch, starts))
    by_end = np.argsort(ends, kind="stable")
    in_order = ends[by_end]
    released_by = _last_ended(by_end, in_order, wait_ends)
    # Work that ended before the wait began, or that has no duration, does not end a wait.
    is_released = (released_by >= 0) & (ends[released_by] > wait_starts)
    is_released &= starts[released_by] < wait_ends
    exit_ns = np.where(is_released, ends[released_by], np.minimum(wait_starts, wait_ends - 1))
    return Graph(
        starts=starts,
        ends=ends,
        kinds=work["kind"],
        n_bytes=work["n_bytes"],
        directions=work["direction"],
        direction_names=directions,
        launched=launched,
        work_before=_predecessors(work, by_end, in_order),
        wait_before=np.searchsorted(wait_ends, launched, side="right") - 1,
        latest_end=np.maximum.accumulate(ends),
        wait_starts=wait_starts,
        wait_ends=wait_ends,
        released_by=np.where(is_released, released_by, _NONE),
        exit_ns=exit_ns,
        earlier_wait=np.searchsorted(wait_ends, exit_ns, side="right") - 1,
    )


def _predecessors(work: _Columns, by_end: Ints, in_order: Ints) -> Ints:
    """Return the row that each piece of work waited for; -1 if it waited for its launch."""
    found = _previous_in_lane(work["lane"])
    for rows in pieces_of(len(found)):
        piece = {name: work[name][rows] for name in ("start_ns", "launch_ns", "launched_ns")}
        other = _last_ended(by_end, in_order, piece["start_ns"])
        # Of work without duration that begins together, the first does not wait for the others.
        other = np.where(other < np.arange(rows.start, rows.stop), other, _NONE)
        found[rows] = _choose_predecessors(piece, work["end_ns"], found[rows], other)
    return found


def _choose_predecessors(work: _Columns, ends: Ints, ahead: Ints, other: Ints) -> Ints:
    """Return the row that some work waited for: ``ahead``, ``other``, or -1 for its launch.

    ``ahead`` is the previous work on its stream, ``other`` the last work that ended before it.
    """
    starts = work["start_ns"]
    ahead_end = np.where(ahead >= 0, np.minimum(ends[ahead], starts), _UNKNOWN_NS)
    other_end = np.where(other >= 0, ends[other], _UNKNOWN_NS)
    is_dependency = (other >= 0) & (other_end > ahead_end) & (starts <= other_end + DEPENDS_NS)
    best = np.where(is_dependency, other, ahead)
    best_end = np.where(is_dependency, other_end, ahead_end)
    # The call of a blocking copy returns long after the launch of the copy.
    launch, returned = work["launch_ns"], work["launched_ns"]
    is_known = launch != _UNKNOWN_NS
    launched = np.minimum(np.minimum(returned, launch + LATENCY_NS), starts)
    best = np.where(is_known & (launched >= best_end), _NONE, best)
    return np.where(~is_known & (best < 0), other, best)


def _previous_in_lane(lane: Ints) -> Ints:
    """Return the row directly before each row in its lane; -1 for the first."""
    order = np.argsort(lane, kind="stable")
    ahead = np.full(len(lane), _NONE, np.int64)
    ahead[order[1:]] = np.where(lane[order[1:]] == lane[order[:-1]], order[:-1], _NONE)
    return ahead


def _last_ended(by_end: Ints, ends: Ints, instants: Ints) -> Ints:
    """Return the row of the work that ended last at or before each instant; -1: none."""
    place = np.searchsorted(ends, instants, side="right") - 1
    return np.where(place >= 0, by_end[place], _NONE)


HOST: Final = len(DEVICE_KINDS)
"""Kind of a segment in which the host runs code or launches. `path` distinguishes the two."""
LATENCY: Final = HOST + 1
"""Kind of a segment between a launch, or the end of the previous work, and the start of work."""
SYNC: Final = HOST + 2
"""Kind of a segment between the end of work and the end of the call that waited for it."""

_END: Final = -1


@dataclass(frozen=True, slots=True, eq=False)
class Segments:
    """The path of one process as segments that fill the window without gaps, latest first.

    ``kind`` is a place in `DEVICE_KINDS`, or `HOST`, `LATENCY`, or `SYNC`. ``row`` is the row of
    the work in ``graph`` (-1 for the host).
    """

    start_ns: Ints
    end_ns: Ints
    kind: Packed
    row: Ints
    graph: Graph

    def times_of_kind(self, kind: int) -> Intervals:
        """Return the times of the segments of one kind."""
        chosen = self.kind == kind
        return Intervals.union_of(self.start_ns[chosen][::-1], self.end_ns[chosen][::-1])

    def copy_saving_ns(self, speeds: Mapping[str, float], times: Intervals) -> float:
        """Return the ns within ``times`` that copies would save at ``speeds`` (bytes/s).

        All segments must be copies. ``speeds`` are the rates of the links, by direction.
        """
        graph, rows = self.graph, self.row
        on_path = times.covered_ns(self.start_ns, self.end_ns)
        length = (graph.ends[rows] - graph.starts[rows]).astype(np.float64)
        of_names = [speeds.get(name, np.nan) for name in graph.direction_names]
        speed = graph.directions[rows].pick(np.array([*of_names, np.nan]))
        n_bytes = graph.n_bytes[rows]
        ideal = np.where(n_bytes >= 0, n_bytes, np.nan) / speed * 1e9
        slack = np.clip(1 - ideal / np.maximum(length, 1), 0, 1)
        return float(np.nansum(on_path * slack))

    def of_kind(self, kind: int) -> Segments:
        """Return the segments of one kind."""
        chosen = self.kind == kind
        return Segments(
            self.start_ns[chosen],
            self.end_ns[chosen],
            self.kind[chosen],
            self.row[chosen],
            self.graph,
        )


@dataclass(frozen=True, slots=True, eq=False)
class _Nodes:
    """The work and then the waits of a window, as nodes of the path.

    ``exit_ns`` is the time at which the path, followed backward, leaves each node. ``next_node`` is
    the node that follows on the way backward; `_END`: none.
    """

    first_row: int
    first_wait: int
    n_rows: int
    exit_ns: Ints
    next_node: Ints

    def node_of_wait(self, wait: int) -> int:
        """Return the node of a wait of the recording; `_END` for a wait before the window."""
        return self.n_rows + wait - self.first_wait if wait >= self.first_wait else _END


def walk_back(graph: Graph, span: TimeWindow) -> Segments:
    """Return the critical path of a process through the window ``span``."""
    nodes = _nodes(graph, span)
    node, at, opening = _find_last_node(graph, nodes, span)
    path = _follow_chain(nodes.next_node, node)
    arrived = np.append(at, nodes.exit_ns[path])
    pieces = pieces_of(len(path))
    of_nodes = (_segments(graph, nodes, path[piece], arrived[:-1][piece]) for piece in pieces)
    closing = ([span.start_ns], [arrived[-1]], [HOST], [_END])
    parts = [_clip_segments(columns, span) for columns in (opening, *of_nodes, closing)]
    starts, ends, kinds, rows = zip(*parts, strict=True)
    begun, ended, of_work = (moved_to_disk(np.concatenate(piece)) for piece in (starts, ends, rows))
    return Segments(begun, ended, moved_to_disk(Packed.joined(kinds)), of_work, graph)


def _clip_segments(columns: Sequence[Any], span: TimeWindow) -> tuple[Ints, Ints, Packed, Ints]:
    """Return the columns of segments clipped to ``span``, without empty segments."""
    starts, ends, kinds, rows = (np.asarray(column, np.int64) for column in columns)
    starts = np.maximum(starts, span.start_ns)
    kept = ends > starts
    return starts[kept], ends[kept], Packed(kinds[kept]), rows[kept]


def _nodes(graph: Graph, span: TimeWindow) -> _Nodes:
    """Return the work and waits of the recording that can be on the path through the window."""
    # From the first row that ends after the start of the window to the last that begins before its
    # end.
    first = int(np.searchsorted(graph.latest_end, span.start_ns, side="right"))
    last = max(first, int(np.searchsorted(graph.starts, span.end_ns, side="left")))
    first_wait, last_wait = np.searchsorted(
        graph.wait_ends, [span.start_ns, span.end_ns], side="right"
    ).tolist()
    n_rows = last - first
    rows, waits = slice(first, last), slice(first_wait, max(first_wait, last_wait))

    def nodes_of_waits(wait: Ints) -> Ints:
        return np.where(wait >= first_wait, n_rows + wait - first_wait, _END)

    before = graph.work_before[rows]
    # Work that ended before the window is not on its path, although later work waited for it.
    waits_for_work = (before >= 0) & (graph.ends[before] > span.start_ns)
    launched = graph.launched[rows]
    ahead_ended = np.where(before >= 0, graph.ends[before], launched)
    exit_ns = np.where(waits_for_work, graph.starts[rows], np.minimum(launched, ahead_ended))
    next_node = np.where(waits_for_work, before - first, nodes_of_waits(graph.wait_before[rows]))
    released = graph.released_by[waits]
    after_wait = np.where(
        released >= 0, released - first, nodes_of_waits(graph.earlier_wait[waits])
    )
    exit_ns = np.concatenate([exit_ns, graph.exit_ns[waits]])
    next_node = np.concatenate([next_node, after_wait])
    next_node[exit_ns <= span.start_ns] = _END
    return _Nodes(first, first_wait, n_rows, exit_ns, next_node)


def _find_last_node(
    graph: Graph, nodes: _Nodes, span: TimeWindow
) -> tuple[int, int, tuple[Sequence[int], ...]]:
    """Return the last node of the path, the end of its time on it, and the segments after it."""
    end = span.end_ns
    none = ((), (), (), ())
    rows = slice(nodes.first_row, nodes.first_row + nodes.n_rows)
    ends = np.minimum(graph.ends[rows], end)
    last = len(ends) - 1 - int(ends[::-1].argmax()) if len(ends) else _END
    if last >= 0 and ends[last] > end - DEPENDS_NS:
        return last, end, none
    # The host may still be waiting. It then waits for the last work that ended during the wait.
    first_open = np.searchsorted(graph.wait_ends, end, side="left")
    begun = graph.wait_starts[first_open:]
    begun = begun[begun < end]
    if not len(begun):
        return nodes.node_of_wait(int(graph.wait_until(end))), end, none
    since = max(int(begun.max()), span.start_ns)
    released = last >= 0 and int(ends[last]) > since
    at = int(ends[last]) if released else min(since, end - 1)
    waiting = ([at], [end], [SYNC], [_END])
    return (last if released else nodes.node_of_wait(int(graph.wait_until(at)))), at, waiting


def _follow_chain(next_node: Ints, node: int) -> Ints:
    """Return the nodes from ``node`` backward to the start of the window."""
    path, chain = array("q"), next_node.data
    while node >= 0:
        path.append(node)
        node = chain[node]
    return np.array(path, np.int64)


def _segments(graph: Graph, nodes: _Nodes, path: Ints, arrived: Ints) -> tuple[Array, ...]:
    """Return start, end, kind, and row of the segments of each node of ``path``, latest first.

    ``arrived`` is the time at which the path enters each node. A node of work has three segments:
    the latency after its end, the work itself, and the time from its launch to its start. A node of
    a wait has two: the host after the wait, and the time from the end of the work to the end of the
    wait.
    """
    is_row, exit_ns = path < nodes.n_rows, nodes.exit_ns[path]
    row = np.where(is_row, path + nodes.first_row, _END)
    ended, begun, kind = np.empty_like(path), exit_ns.copy(), np.full(len(path), SYNC)
    ended[is_row] = np.minimum(graph.ends[row[is_row]], arrived[is_row])
    ended[~is_row] = graph.wait_ends[path[~is_row] - nodes.n_rows + nodes.first_wait]
    begun[is_row], kind[is_row] = graph.starts[row[is_row]], graph.kinds[row[is_row]].wide()
    kind_after, no_row = np.where(is_row, LATENCY, HOST), np.full(len(path), _END)
    kind_before = np.full(len(path), LATENCY)
    return (
        np.stack([ended, begun, exit_ns], axis=1).ravel(),
        np.stack([arrived, ended, begun], axis=1).ravel(),
        np.stack([kind_after, kind, kind_before], axis=1).ravel(),
        np.stack([no_row, row, no_row], axis=1).ravel(),
    )
