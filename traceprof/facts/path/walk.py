"""The chain of work and waiting that decides how long a window takes, found backwards.

From the end of the window from each piece of work to what it waited for (`traceprof.facts.path.
graph`). The host goes on by itself until it waits for the device, and then depends on the work
that it waited for.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from traceprof.facts.path.graph import DEPENDS_NS, DEVICE_KINDS, Graph
from traceprof.model.timing import TimeWindow
from traceprof.values import dataclass

__all__ = ["HOST", "LATENCY", "SYNC", "Segments", "walk_back"]

_Int64Array = npt.NDArray[np.int64]

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

    start_ns: _Int64Array
    end_ns: _Int64Array
    kind: npt.NDArray[np.int8]
    row: _Int64Array
    graph: Graph


@dataclass(frozen=True, slots=True, eq=False)
class _Nodes:
    """The work and then the waits of a window: when each is left, and for which; `_END`: none."""

    first_row: int
    first_wait: int
    n_rows: int
    left: _Int64Array
    following: _Int64Array

    def of_wait(self, wait: int) -> int:
        """Return the node of a wait of the recording, `_END` for one before the window."""
        return self.n_rows + wait - self.first_wait if wait >= self.first_wait else _END


def walk_back(graph: Graph, span: TimeWindow) -> Segments:
    """Return the path of a process through the window ``span``."""
    nodes = _nodes(graph, span)
    node, at, opening = _begin(graph, nodes, span)
    path = _followed(nodes.following, node)
    arrived = np.append(at, nodes.left[path])
    of_nodes = _segments(graph, nodes, path, arrived[:-1])
    closing = ([span.start_ns], [arrived[-1]], [HOST], [_END])
    columns = zip(opening, of_nodes, closing, strict=True)
    types = (np.int64, np.int64, np.int8, np.int64)
    starts, ends, kinds, rows = (
        np.concatenate([np.asarray(part, kind) for part in parts])
        for parts, kind in zip(columns, types, strict=True)
    )
    starts = np.maximum(starts, span.start_ns)
    kept = ends > starts
    return Segments(starts[kept], ends[kept], kinds[kept], rows[kept], graph)


def _nodes(graph: Graph, span: TimeWindow) -> _Nodes:
    """Return what of the recording can be on a path through the window."""
    first, last = _slice(graph.reach, graph.starts, span)
    first_wait, last_wait = np.searchsorted(
        graph.wait_ends, [span.start_ns, span.end_ns], side="right"
    ).tolist()
    n_rows = last - first
    rows, waits = slice(first, last), slice(first_wait, max(first_wait, last_wait))

    def of_waits(wait: _Int64Array) -> _Int64Array:
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


def _slice(reach: _Int64Array, starts: _Int64Array, span: TimeWindow) -> tuple[int, int]:
    """Return the first row that reaches into the window, and the first that begins behind it."""
    first = int(np.searchsorted(reach, span.start_ns, side="right"))
    return first, max(first, int(np.searchsorted(starts, span.end_ns, side="left")))


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


def _followed(following: _Int64Array, node: int) -> _Int64Array:
    """Return the nodes from ``node`` to the beginning of the window."""
    path, chain = [], following.tolist()
    while node >= 0:
        path.append(node)
        node = chain[node]
    return np.array(path, np.int64)


def _segments(
    graph: Graph, nodes: _Nodes, path: _Int64Array, arrived: _Int64Array
) -> tuple[npt.NDArray[Any], ...]:
    """Return start, end, kind and row of the segments of each node of ``path``, latest first.

    Of work: until its end is waited for, itself, and from its launch to its start. Of a wait:
    the host behind it, and from the end of the work to the end of the wait.
    """
    is_row, left = path < nodes.n_rows, nodes.left[path]
    row = np.where(is_row, path + nodes.first_row, _END)
    ended, begun, kind = np.empty_like(path), left.copy(), np.full(len(path), SYNC, np.int8)
    ended[is_row] = np.minimum(graph.ends[row[is_row]], arrived[is_row])
    ended[~is_row] = graph.wait_ends[path[~is_row] - nodes.n_rows + nodes.first_wait]
    begun[is_row], kind[is_row] = graph.starts[row[is_row]], graph.kinds[row[is_row]]
    behind, none = np.where(is_row, np.int8(LATENCY), np.int8(HOST)), np.full(len(path), _END)
    of_launch = np.full(len(path), LATENCY, np.int8)
    return (
        np.stack([ended, begun, left], axis=1).ravel(),
        np.stack([arrived, ended, begun], axis=1).ravel(),
        np.stack([behind, kind, of_launch], axis=1).ravel(),
        np.stack([none, row, none], axis=1).ravel(),
    )
