"""The chain of work and waiting that decides how long a window takes, found backwards.

A piece of work could not start before the work ahead of it on its stream had ended, nor before
its launch; the later of the two is what it waited for. Where work on another stream ended right
before a start, that is taken for a dependency. A wait of the host ends with the work that it
waited for. The host goes on by itself until it waits for the device, and then depends on the
work that it waited for.
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
from traceprof.model.packed import Packed, joined_numbers
from traceprof.model.timing import TimeWindow
from traceprof.model.trace import DEVICE_TABLES, Trace

_Columns = Mapping[str, Any]

DEVICE_KINDS: Final = tuple(part.value for part in Part)
DEPENDS_NS: Final = 10_000
"""Work that starts this soon after work on another stream ended is taken to depend on it."""
_NONE: Final = -1
_NEVER: Final = np.iinfo(np.int64).min


@dataclass(frozen=True, slots=True, eq=False)
class Graph:
    """The work of a process and the waits of its host in the whole recording.

    Work, by start: ``starts``, ``ends``, ``kinds`` (its place in `DEVICE_KINDS`), ``n_bytes`` and
    ``directions`` (of a copy, its place in ``direction_names``; -1 of a kernel), ``launched`` (when
    the host launched it, its start where that is not known), ``work_before`` (the row that it
    waited for, -1 where it was its launch) and ``wait_before`` (the last wait of the host before
    the launch, -1: none). ``reach`` is the latest end so far.

    Waits, by end: ``wait_starts``, ``wait_ends``, ``released_by`` (the row of the work that ended
    each, -1: none), ``left`` (when the host began to wait for it: the end of that work, else the
    start of the wait), ``earlier_wait`` (the last wait before that).
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
    reach: Ints
    wait_starts: Ints
    wait_ends: Ints
    released_by: Ints
    left: Ints
    earlier_wait: Ints

    def wait_until(self, instants: npt.ArrayLike) -> Ints:
        """Return the last wait that had ended at each instant, -1 where none had."""
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
        process: _graph(own, waits_of.get(process, nothing), directions)
        for process, own in work_of.items()
    }


def _by_process(columns: _Columns) -> dict[int, _Columns]:
    """Return the columns of a table that is sorted by process, for each: views, no copies."""
    number, processes = places_of(columns["process"])
    firsts = np.searchsorted(number.wide(), np.arange(len(processes)))
    lasts = np.append(firsts[1:], len(number))
    return {
        process: {name: column[first:last] for name, column in columns.items()}
        for process, first, last in zip(processes, firsts.tolist(), lasts.tolist(), strict=False)
    }


def _work(trace: Trace) -> dict[str, Any]:
    """Return the work of the devices by process and start, ``lane`` being the stream of each."""
    parts = [_work_of(trace, name) for name in DEVICE_TABLES]
    columns = {
        name: moved_to_disk(joined_numbers([own[name] for own in parts])) for name in parts[0]
    }
    del parts
    columns["lane"] = groups_of(columns.pop("device"), columns.pop("stream")).packed
    order = np.argsort(columns["start_ns"], kind="stable")
    order = order[groups_of(columns["process"][order]).order]
    for name, column in columns.items():
        columns[name] = moved_to_disk(column[order])
    return columns


def _work_of(trace: Trace, name: str) -> dict[str, Any]:
    """Return the rows of a device table with kind and launch (`_NEVER` where it is not known)."""
    table, launches = trace.table(name), launches_of(trace, name)
    known = launches.is_known
    is_copy = name == "copies"
    columns = ("start_ns", "end_ns", "device", "stream", "process")
    n_rows = len(table)
    return {
        **{column: table[column] for column in columns},
        "kind": _kinds_of(trace, name),
        "launch_ns": np.where(known, launches.start_ns, _NEVER),
        "launched_ns": np.where(known, launches.end_ns, _NEVER),
        "n_bytes": table["n_bytes"] if is_copy else Packed.repeated(0, n_rows),
        "direction": table["direction"].packed if is_copy else Packed.repeated(_NONE, n_rows),
    }


def _kinds_of(trace: Trace, name: str) -> Packed:
    """Return the place of each row in `DEVICE_KINDS`; copies of the host alone are transfers."""
    places = indices_in_part(trace, name)
    otherwise = DEVICE_KINDS.index("transfer") if name == "copies" else 0
    return Packed.below(len(DEVICE_KINDS), np.where(places < 0, otherwise, places))


def _graph(work: _Columns, waits: _Columns, directions: Texts) -> Graph:
    starts, ends = work["start_ns"], work["end_ns"]
    wait_starts, wait_ends = waits["start_ns"], waits["end_ns"]
    launch: Ints = work["launch_ns"]
    launched = np.where(launch == _NEVER, starts, np.minimum(launch, starts))
    by_end = np.argsort(ends, kind="stable")
    in_order = ends[by_end]
    released_by = _last(by_end, in_order, wait_ends)
    # What ended before the wait began, or takes no time, releases nobody.
    is_released = (released_by >= 0) & (ends[released_by] > wait_starts)
    is_released &= starts[released_by] < wait_ends
    left = np.where(is_released, ends[released_by], np.minimum(wait_starts, wait_ends - 1))
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
        reach=np.maximum.accumulate(ends),
        wait_starts=wait_starts,
        wait_ends=wait_ends,
        released_by=np.where(is_released, released_by, _NONE),
        left=left,
        earlier_wait=np.searchsorted(wait_ends, left, side="right") - 1,
    )


def _predecessors(work: _Columns, by_end: Ints, in_order: Ints) -> Ints:
    """Return the row that each piece of work waited for, -1 where it was its launch."""
    found = _ahead(work["lane"])
    for rows in pieces_of(len(found)):
        some = {name: work[name][rows] for name in ("start_ns", "launch_ns", "launched_ns")}
        other = _last(by_end, in_order, some["start_ns"])
        # Of work that takes no time and begins together the first waits for none of the others.
        other = np.where(other < np.arange(rows.start, rows.stop), other, _NONE)
        found[rows] = _waited_for(some, work["end_ns"], found[rows], other)
    return found


def _waited_for(work: _Columns, ends: Ints, ahead: Ints, other: Ints) -> Ints:
    """Return which row some work waited for: the one ahead, another, or its launch (-1)."""
    starts = work["start_ns"]
    ahead_end = np.where(ahead >= 0, np.minimum(ends[ahead], starts), _NEVER)
    other_end = np.where(other >= 0, ends[other], _NEVER)
    is_dependency = (other >= 0) & (other_end > ahead_end) & (starts <= other_end + DEPENDS_NS)
    best = np.where(is_dependency, other, ahead)
    best_end = np.where(is_dependency, other_end, ahead_end)
    # A blocking copy is launched long before its call returns.
    launch, returned = work["launch_ns"], work["launched_ns"]
    is_known = launch != _NEVER
    launched = np.minimum(np.minimum(returned, launch + LATENCY_NS), starts)
    best = np.where(is_known & (launched >= best_end), _NONE, best)
    return np.where(~is_known & (best < 0), other, best)


def _ahead(lane: Ints) -> Ints:
    """Return the row right before each one in its lane, -1 for the first."""
    order = np.argsort(lane, kind="stable")
    ahead = np.full(len(lane), _NONE, np.int64)
    together = lane[order[1:]] == lane[order[:-1]]
    ahead[order[1:]] = np.where(together, order[:-1], _NONE)
    return ahead


def _last(by_end: Ints, ends: Ints, instants: Ints) -> Ints:
    """Return the row of the work that ended last at or before each instant, -1: none."""
    place = np.searchsorted(ends, instants, side="right") - 1
    return np.where(place >= 0, by_end[place], _NONE)


HOST: Final = len(DEVICE_KINDS)
"""The host runs code or launches; which of them is told apart later."""
LATENCY: Final = HOST + 1
"""Between a launch, or the work ahead, and the start of work."""
SYNC: Final = HOST + 2
"""Between the end of work and the end of the call that waited for it."""

_END: Final = -1


@dataclass(frozen=True, slots=True, eq=False)
class Segments:
    """The path of one process, latest first: segments that fill the window without gaps.

    ``kind`` is the place in `DEVICE_KINDS`, or HOST, LATENCY, SYNC; ``row`` the row of the work
    in ``graph`` (-1 for the host).
    """

    start_ns: Ints
    end_ns: Ints
    kind: Packed
    row: Ints
    graph: Graph

    def of_kind(self, kind: int) -> Segments:
        """Return those of one kind."""
        own = self.kind == kind
        return Segments(
            self.start_ns[own], self.end_ns[own], self.kind[own], self.row[own], self.graph
        )


@dataclass(frozen=True, slots=True, eq=False)
class _Nodes:
    """The work and then the waits of a window: when each is left, and for which; `_END`: none."""

    first_row: int
    first_wait: int
    n_rows: int
    left: Ints
    following: Ints

    def of_wait(self, wait: int) -> int:
        """Return the node of a wait of the recording, `_END` for one before the window."""
        return self.n_rows + wait - self.first_wait if wait >= self.first_wait else _END


def walk_back(graph: Graph, span: TimeWindow) -> Segments:
    """Return the path of a process through the window ``span``."""
    nodes = _nodes(graph, span)
    node, at, opening = _begin(graph, nodes, span)
    path = _followed(nodes.following, node)
    arrived = np.append(at, nodes.left[path])
    pieces = pieces_of(len(path))
    of_nodes = (_segments(graph, nodes, path[own], arrived[:-1][own]) for own in pieces)
    closing = ([span.start_ns], [arrived[-1]], [HOST], [_END])
    parts = [_inside(columns, span) for columns in (opening, *of_nodes, closing)]
    starts, ends, kinds, rows = zip(*parts, strict=True)
    begun, ended, of_work = (moved_to_disk(np.concatenate(own)) for own in (starts, ends, rows))
    return Segments(begun, ended, moved_to_disk(Packed.joined(kinds)), of_work, graph)


def _inside(columns: Sequence[Any], span: TimeWindow) -> tuple[Ints, Ints, Packed, Ints]:
    """Return the columns of segments that take time in ``span``."""
    starts, ends, kinds, rows = (np.asarray(own, np.int64) for own in columns)
    starts = np.maximum(starts, span.start_ns)
    kept = ends > starts
    return starts[kept], ends[kept], Packed(kinds[kept]), rows[kept]


def _nodes(graph: Graph, span: TimeWindow) -> _Nodes:
    """Return what of the recording can be on a path through the window."""
    # From the first row that reaches into the window to the first that begins behind it.
    first = int(np.searchsorted(graph.reach, span.start_ns, side="right"))
    last = max(first, int(np.searchsorted(graph.starts, span.end_ns, side="left")))
    first_wait, last_wait = np.searchsorted(
        graph.wait_ends, [span.start_ns, span.end_ns], side="right"
    ).tolist()
    n_rows = last - first
    rows, waits = slice(first, last), slice(first_wait, max(first_wait, last_wait))

    def of_waits(wait: Ints) -> Ints:
        return np.where(wait >= first_wait, n_rows + wait - first_wait, _END)

    before = graph.work_before[rows]
    # Work that ended before the window is none of its path, yet was waited for.
    waits_for_work = (before >= 0) & (graph.ends[before] > span.start_ns)
    launched = graph.launched[rows]
    ahead_ended = np.where(before >= 0, graph.ends[before], launched)
    left = np.where(waits_for_work, graph.starts[rows], np.minimum(launched, ahead_ended))
    following = np.where(waits_for_work, before - first, of_waits(graph.wait_before[rows]))
    released = graph.released_by[waits]
    after_wait = np.where(released >= 0, released - first, of_waits(graph.earlier_wait[waits]))
    left = np.concatenate([left, graph.left[waits]])
    following = np.concatenate([following, after_wait])
    following[left <= span.start_ns] = _END
    return _Nodes(first, first_wait, n_rows, left, following)


def _begin(
    graph: Graph, nodes: _Nodes, span: TimeWindow
) -> tuple[int, int, tuple[Sequence[int], ...]]:
    """Return the last node of the path, when it is left for, and the segments behind it."""
    end = span.end_ns
    none = ((), (), (), ())
    rows = slice(nodes.first_row, nodes.first_row + nodes.n_rows)
    ends = np.minimum(graph.ends[rows], end)
    last = len(ends) - 1 - int(ends[::-1].argmax()) if len(ends) else _END
    if last >= 0 and ends[last] > end - DEPENDS_NS:
        return last, end, none
    # The host may still be waiting: then for the work that ended last since it began to.
    still = np.searchsorted(graph.wait_ends, end, side="left")
    begun = graph.wait_starts[still:]
    begun = begun[begun < end]
    if not len(begun):
        return nodes.of_wait(int(graph.wait_until(end))), end, none
    since = max(int(begun.max()), span.start_ns)
    released = last >= 0 and int(ends[last]) > since
    at = int(ends[last]) if released else min(since, end - 1)
    waiting = ([at], [end], [SYNC], [_END])
    return (last if released else nodes.of_wait(int(graph.wait_until(at)))), at, waiting


def _followed(following: Ints, node: int) -> Ints:
    """Return the nodes from ``node`` to the beginning of the window."""
    path, chain = array("q"), following.data
    while node >= 0:
        path.append(node)
        node = chain[node]
    return np.array(path, np.int64)


def _segments(graph: Graph, nodes: _Nodes, path: Ints, arrived: Ints) -> tuple[Array, ...]:
    """Return start, end, kind and row of the segments of each node of ``path``, latest first.

    Of work: until its end is waited for, itself, and from its launch to its start. Of a wait:
    the host behind it, and from the end of the work to the end of the wait.
    """
    is_row, left = path < nodes.n_rows, nodes.left[path]
    row = np.where(is_row, path + nodes.first_row, _END)
    ended, begun, kind = np.empty_like(path), left.copy(), np.full(len(path), SYNC)
    ended[is_row] = np.minimum(graph.ends[row[is_row]], arrived[is_row])
    ended[~is_row] = graph.wait_ends[path[~is_row] - nodes.n_rows + nodes.first_wait]
    begun[is_row], kind[is_row] = graph.starts[row[is_row]], graph.kinds[row[is_row]].wide()
    behind, none = np.where(is_row, LATENCY, HOST), np.full(len(path), _END)
    of_launch = np.full(len(path), LATENCY)
    return (
        np.stack([ended, begun, left], axis=1).ravel(),
        np.stack([arrived, ended, begun], axis=1).ravel(),
        np.stack([behind, kind, of_launch], axis=1).ravel(),
        np.stack([none, row, none], axis=1).ravel(),
    )
