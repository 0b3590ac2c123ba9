"""What each thread was in at every moment: the innermost of the names that it had open.

Names are those of ranges, host operators and API calls, without what tells one time from the next
(`common_categories`). Innermost is what began last; of what began together, what ends first.
Beside it stands the outermost operator around it, the name that user code called.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

import numpy as np

from traceprof.measures.host.states import is_synchronization
from traceprof.measures.rows import Bools, Ints, ints
from traceprof.model import nesting
from traceprof.model.grouping import pieces_of, places_of, rows_by_value, rows_by_values
from traceprof.model.intervals import Intervals, sorted_distinct
from traceprof.model.names import Texts, shared
from traceprof.model.packed import Packed
from traceprof.model.table import Names, Table
from traceprof.model.trace import Trace
from traceprof.names.ranges import CYCLE, WINDOW, are_matched, common_categories

_FEW_ROUNDS: Final = 64
"""Spans seldom nest deeper; up to here one look at the next outer one after the other is quick."""
_TABLES: Final = ("ranges", "host_ops", "api_calls")
"""Where names come from; of rows that begin and end together, the later one is inside."""

_OS_WAITS: Final = re.compile(
    r"(pthread_(cond_(timed|clock)?wait|(mutex|rwlock)_(timed|clock)?(rd|wr)?lock|barrier_wait"
    r"|join|(timed|clock)join_np|spin_lock)|sem_(timed|clock)?wait|p?poll|epoll_p?wait2?|p?select"
    r"|futex|(__)?wait(pid|id|3|4)?|sig(timed)?wait(info)?|sigsuspend|pause|accept4?"
    r"|mq_(timed)?receive|msgrcv|io_getevents)"
)
_PYTHON_WAITS: Final = re.compile(
    r"^\$\S+ (wait|acquire|join|select|poll|_wait_for_tstate_lock|try_to_block|block_until_ready)"
)
"""Functions as the tracer of JAX and TensorFlow names them: "$api.py:3165 try_to_block"."""
_OS_SLEEPS: Final = re.compile(r"(clock_)?nanosleep|u?sleep|sched_yield")
_UNNAMED: Final = "(unnamed)"
_OPERATOR: Final = re.compile(r", (seq|op_id) = \d+|^[a-z_]\w*(::\w+)+$|^enumerate\(DataLoader\)#")
"""Ranges that are operators: of emit_nvtx, by their look, and the fetching of a DataLoader."""
_NO_OPERATOR: Final = re.compile(r"^(ProfilerStep|ProfilerStart|nn\.Module|\[|##)|\.(py|forward)\b")
"""What older versions record as operators and is none: steps, modules, lines of Python."""


class Doing(IntEnum):
    """What a name says that a thread does."""

    RUNS = 0
    SLEEPS = 1
    WAITS = 2  # for another thread, a device, or the operating system


@dataclass(frozen=True, slots=True, eq=False)
class HostLane:
    """One thread: disjoint pieces of time, sorted, and the place in `Lanes.names` of each.

    ``operator`` is the place of the outermost operator around it, of ``name`` where none is.
    """

    process: int
    thread: int
    starts: Ints
    ends: Ints
    name: Ints
    operator: Ints


@dataclass(frozen=True, slots=True, eq=False)
class HostLanes:
    """The threads that have any name open in the times asked about.

    ``doing`` is the place in `Doing` of each of ``names``.
    """

    lanes: tuple[HostLane, ...]
    names: tuple[str, ...]
    doing: Packed


def lanes_within(trace: Trace, times: Mapping[int, Intervals]) -> HostLanes:
    """Return what the threads of each process were in, at least during its ``times``."""
    asked = {process: time for process, time in times.items() if len(time)}
    found = [_rows_within(trace, table, asked) for table in _TABLES]
    names, codes = _named(trace, found)
    rows = Table.stacked(found).assign(name=codes)
    return HostLanes(tuple(_lanes_of(rows)), tuple(names.tolist()), _doings(names))


def _rows_within(trace: Trace, name: str, asked: Mapping[int, Intervals]) -> Table:
    """Return process, thread, start, end and code of the name of the rows in the times asked.

    Their times are not cut by the window: what began first is around the others there, too.
    """
    table = trace.whole.table(name)
    columns = table.select("process", "thread", "start_ns", "end_ns", "name")
    within = columns.take(trace.rows_in_whole(name))
    if within.empty or not asked:
        nothing = within.take(slice(0))
        return nothing.assign(name=np.empty(0, np.int64), is_operator=np.empty(0, np.bool_))
    kept = np.zeros(len(within), np.bool_)
    for piece in pieces_of(len(within)):
        starts, ends, process = ints(within, "start_ns", "end_ns", "process", rows=piece)
        for owner, rows in rows_by_value(process).items():
            if time := asked.get(owner):
                opens = np.append(time.starts, np.iinfo(np.int64).max)
                opens = opens[np.searchsorted(time.ends, starts[rows], side="right")]
                kept[piece.start + rows] = (opens < ends[rows]) & (starts[rows] < ends[rows])
    kept &= ~within["name"].isin((WINDOW, CYCLE))  # around it all, no name of what is done
    taken, texts = within.take(kept), table["name"].texts
    named = are_matched(texts, _OPERATOR) if name == "ranges" else name == "host_ops"
    is_operator = taken["name"].by_text(named & ~are_matched(texts, _NO_OPERATOR))
    return taken.assign(name=taken["name"].codes, is_operator=is_operator)


def _named(trace: Trace, found: list[Table]) -> tuple[Texts, Ints]:
    """Return the distinct names of the rows ``found``, and the place among them of each row."""
    texts, places, n_before = [], [], 0
    for table, rows in zip(_TABLES, found, strict=True):
        place, distinct = places_of(rows["name"])
        known = trace.whole.table(table)["name"].texts[np.array(distinct, np.int64)]
        texts.append(np.where(known == "", _UNNAMED, known))
        places.append(place.wide() + n_before)
        n_before += len(distinct)
    names, codes = common_categories(shared(np.concatenate(texts).tolist()))
    return names, codes[np.concatenate(places)]


def _doings(names: Texts) -> Packed:
    waits = is_synchronization(Names(np.arange(len(names)), names))
    waits |= _are(names, _OS_WAITS) | _are(names, _PYTHON_WAITS)
    sleeps = _are(names, _OS_SLEEPS)
    return Packed(np.where(waits, Doing.WAITS, np.where(sleeps, Doing.SLEEPS, Doing.RUNS)))


def _are(names: Texts, pattern: re.Pattern[str]) -> Bools:
    return np.array([pattern.fullmatch(str(name)) is not None for name in names], np.bool_)


def _lanes_of(rows: Table) -> Iterator[HostLane]:
    process, thread, starts, ends, name = ints(
        rows, "process", "thread", "start_ns", "end_ns", "name"
    )
    is_operator = rows["is_operator"]
    for (number, of), own in rows_by_values(process, thread).items():
        mine = own[np.lexsort((-ends[own], starts[own]))]
        first, last, owner = innermost_pieces(starts[mine], ends[mine])
        outer = find_outermost_ancestors(ends[mine], is_operator[mine])[owner]
        codes = name[mine]
        operator = codes[np.where(outer < 0, owner, outer)]
        yield HostLane(number, of, first, last, codes[owner], operator)


def innermost_pieces(starts: Ints, ends: Ints) -> tuple[Ints, Ints, Ints]:
    """Return disjoint pieces of time (starts, ends) and which span is the innermost in each.

    The spans must be sorted by start, and of those that begin together the inner one is the last;
    they need not nest: where two overlap otherwise, the one that began later counts as inside.
    """
    around = _spans_around(ends)
    edges = sorted_distinct(np.concatenate((starts, ends)))
    owner = np.searchsorted(starts, edges, side="right") - 1
    open_at = np.flatnonzero(owner >= 0)
    for _ in range(_FEW_ROUNDS):
        open_at = open_at[ends[owner[open_at]] <= edges[open_at]]
        if not len(open_at):
            break
        owner[open_at] = around[owner[open_at]]
        open_at = open_at[owner[open_at] >= 0]
    open_at = open_at[ends[owner[open_at]] <= edges[open_at]]
    owner[open_at] = _first_after(around, ends, owner[open_at], edges[open_at])
    kept = np.flatnonzero(owner >= 0)
    return edges[kept], edges[kept + 1], owner[kept]


def find_outermost_ancestors(ends: Ints, is_asked: Bools) -> Ints:
    """Return, of each span, the outermost that is asked for of those that hold it and itself.

    -1 where none is. The spans are sorted as for `innermost_pieces`; what ends together with a
    later one holds it.
    """
    return nesting.find_outermost_ancestors(_spans_around(ends, holds_equal=True), is_asked)


def _first_after(around: Ints, ends: Ints, spans: Ints, instants: Ints) -> Ints:
    """Return the first span around each of ``spans`` that ends after the instant; -1: none.

    Their ends grow outwards: jumps of 2ᵏ, the longest first, find it.
    """
    if not len(spans):
        return spans
    jumps = [around]
    while (jumps[-1] >= 0).any():
        last = jumps[-1]
        jumps.append(np.where(last >= 0, last[last], -1))
    for jump in reversed(jumps):
        outer = jump[spans]
        spans = np.where((outer >= 0) & (ends[outer] <= instants), outer, spans)
    return around[spans]


def _spans_around(ends: Ints, *, holds_equal: bool = False) -> Ints:
    """Return the last span before each that ends later than it, -1 where none does.

    What lies between the two ends no later: a span that is closed leads to the one still open.
    With ``holds_equal`` one that ends together with it will do.
    """
    closes = np.less if holds_equal else np.less_equal
    around = np.arange(-1, len(ends) - 1)
    rows = np.flatnonzero(around >= 0)
    while len(rows := rows[closes(ends[around[rows]], ends[rows])]):
        # A jump over what another span jumps over: chains get shorter by half in each round.
        around[rows] = around[around[rows]]
        rows = rows[around[rows] >= 0]
    return around
