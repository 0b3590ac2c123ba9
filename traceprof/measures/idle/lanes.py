"""Find what each thread did at every moment: the innermost open name.

Names are names of ranges, host operators, API calls, and Python functions of the program, without
the numbers that differ from one occurrence to the next (`common_categories`). The innermost name is
the one that began last. If several began at the same time, it is the one that ends first. For each
name, the outermost operator around it is also reported, which is the name that user code called. If
there is none, the outermost function that launches no work takes its place.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

import numpy as np

from traceprof.measures.facts import fact
from traceprof.measures.host.samples import sample_interval_ns
from traceprof.measures.host.states import are_full_matches, is_launch, is_synchronization
from traceprof.measures.rows import Bools, Ints, bounds, count_within, ints
from traceprof.model import nesting
from traceprof.model.grouping import pieces_of, places_of, rows_by_value, rows_by_values
from traceprof.model.intervals import Intervals, sorted_distinct
from traceprof.model.names import Texts, shared
from traceprof.model.packed import Packed
from traceprof.model.table import Names, Table
from traceprof.model.trace import Trace
from traceprof.names import functions
from traceprof.names.ranges import CYCLE, WINDOW, are_matched, common_categories

_MAX_ROUNDS: Final = 64
"""Maximum number of steps to outer spans before a slower search with logarithmic cost is used.
Spans rarely nest deeper.
"""
_TABLES: Final = ("ranges", "functions", "host_ops", "api_calls")
"""Tables with names. Of rows that begin and end together, the one of the later table is inside."""

_OS_WAITS: Final = re.compile(
    r"(pthread_(cond_(timed|clock)?wait|(mutex|rwlock)_(timed|clock)?(rd|wr)?lock|barrier_wait"
    r"|join|(timed|clock)join_np|spin_lock)|sem_(timed|clock)?wait|p?poll|epoll_p?wait2?|p?select"
    r"|futex|(__)?wait(pid|id|3|4)?|sig(timed)?wait(info)?|sigsuspend|pause|accept4?"
    r"|mq_(timed)?receive|msgrcv|io_getevents)"
)
_PYTHON_WAITS: Final = re.compile(
    r"^\$\S+ (wait|acquire|join|select|poll|_wait_for_tstate_lock|try_to_block|block_until_ready)"
)
"""Functions as named by the tracer of JAX and TensorFlow: "$api.py:3165 try_to_block"."""
_OS_SLEEPS: Final = re.compile(r"(clock_)?nanosleep|u?sleep|sched_yield")
_PLACE: Final = ("process", "thread", "start_ns")
_FORWARD: Final = ": forward"
_UNNAMED: Final = "(unnamed)"
_OPERATOR: Final = re.compile(r", (seq|op_id) = \d+|^[a-z_]\w*(::\w+)+$|^enumerate\(DataLoader\)#")
"""Names of ranges that are operators: from emit_nvtx (by form), and the fetch of a DataLoader."""
_NOT_AN_OPERATOR: Final = re.compile(
    r"^(ProfilerStep|ProfilerStart|nn\.Module|\[|##)|\.(py|forward)\b"
)
"""Names that older PyTorch versions record as operators: steps, modules, lines of Python."""


class Doing(IntEnum):
    """What a thread does while a name is open."""

    RUNS = 0
    SLEEPS = 1
    WAITS = 2  # for another thread, a device, or the operating system


@dataclass(frozen=True, slots=True, eq=False)
class HostLane:
    """The activity of one thread: disjoint pieces of time, sorted by start.

    ``name`` is the place of each piece's name in `HostLanes.names`. ``operator`` is the place of
    the outermost operator around it, or equal to ``name`` if there is none.
    """

    process: int
    thread: int
    starts: Ints
    ends: Ints
    name: Ints
    operator: Ints


@dataclass(frozen=True, slots=True, eq=False)
class HostLanes:
    """The activity of all threads that have a name open in the requested times.

    ``doing`` is the `Doing` of each of ``names``.
    """

    lanes: tuple[HostLane, ...]
    names: tuple[str, ...]
    doing: Packed


def lanes_within(trace: Trace, times: Mapping[int, Intervals]) -> HostLanes:
    """Return the activity of the threads of each process, at least during its ``times``."""
    wanted = {process: time for process, time in times.items() if len(time)}
    found = [_rows_within(trace, table, wanted) for table in _TABLES]
    names, codes = _shared_names(trace, found)
    rows = Table.stacked(found).assign(name=codes)
    return HostLanes(tuple(_lanes_of(rows)), tuple(names.tolist()), _doings(names))


def _rows_within(trace: Trace, name: str, wanted: Mapping[int, Intervals]) -> Table:
    """Return the rows of a table that overlap the times of their process.

    Columns: process, thread, start_ns, end_ns, name (a code), is_operator, is_function (a function
    of the program that launches no work). Spans are not clipped to the window, because the nesting
    depends on the original start.
    """
    table = trace.whole.table(name)
    columns = table.select("process", "thread", "start_ns", "end_ns", "name")
    within = columns.take(trace.rows_in_whole(name))
    if within.empty or not wanted:
        nothing = within.take(slice(0))
        none = np.empty(0, np.bool_)
        return nothing.assign(name=np.empty(0, np.int64), is_operator=none, is_function=none)
    kept = np.zeros(len(within), np.bool_)
    for piece in pieces_of(len(within)):
        starts, ends, process = ints(within, "start_ns", "end_ns", "process", rows=piece)
        for owner, rows in rows_by_value(process).items():
            if time := wanted.get(owner):
                opens = np.append(time.starts, np.iinfo(np.int64).max)
                opens = opens[np.searchsorted(time.ends, starts[rows], side="right")]
                kept[piece.start + rows] = (opens < ends[rows]) & (starts[rows] < ends[rows])
    # Ranges with these names cover the whole window and describe no activity.
    kept &= ~within["name"].isin((WINDOW, CYCLE))
    if name == "functions":
        return _functions_within(trace, within.take(kept))
    taken, texts = within.take(kept), table["name"].texts
    named = are_matched(texts, _OPERATOR) if name == "ranges" else name == "host_ops"
    is_operator = taken["name"].by_text(named & ~are_matched(texts, _NOT_AN_OPERATOR))
    none = np.zeros(len(taken), np.bool_)
    return taken.assign(name=taken["name"].codes, is_operator=is_operator, is_function=none)


def _functions_within(trace: Trace, calls: Table) -> Table:
    """Return the ``calls`` of functions of the program, and the waits, as `_rows_within` does.

    Time in libraries belongs to the function that called them. The range of a module names its
    forward function.
    """
    names = calls["name"]
    texts = names.texts.tolist()
    is_named = [functions.is_of_program(text) and not text.endswith(_FORWARD) for text in texts]
    is_script = [functions.is_script(text) for text in texts]
    halts = [functions.waits(text) or functions.sleeps(text) for text in texts]
    is_function = names.by_text(np.array(is_named, np.bool_) & ~np.array(is_script, np.bool_))
    none = np.zeros(len(calls), np.bool_)
    rows = calls.assign(
        name=names.codes,
        is_operator=none,
        is_function=is_function & (_count_launches(trace, calls) == 0),
    )
    return rows.take(names.by_text(np.array(is_named, np.bool_) | np.array(halts, np.bool_)))


@fact
def functions_without_launches(trace: Trace) -> frozenset[str]:
    """Return the names of the functions of the program in which no call launches work."""
    calls, names = trace.functions, trace.functions["name"]
    launches = names.packed.wide()[_count_launches(trace, calls) > 0]
    found = np.delete(names.texts, np.unique(launches))
    return frozenset(name for name in found.tolist() if functions.is_of_program(name))


def _count_launches(trace: Trace, calls: Table) -> Ints:
    """Return the number of launches inside each call of a function, on its thread.

    Without recorded launches, operators count. A sampled call ends with the next sample, so the
    launches of its last interval may come after it and do not count.
    """
    launches = trace.whole.api_calls
    launches = launches.take(is_launch(launches["name"])).select(*_PLACE)
    launches = launches if len(launches) else trace.whole.host_ops.select(*_PLACE)
    found, uncertain_ns = np.zeros(len(calls), np.int64), sample_interval_ns(trace.whole)
    lanes = rows_by_values(launches["process"], launches["thread"])
    for lane, rows in rows_by_values(calls["process"], calls["thread"]).items():
        starts = launches["start_ns"][lanes.get(lane, slice(0))]
        first, last = bounds(calls.take(rows))
        found[rows] = count_within(starts, first, np.maximum(first, last - uncertain_ns))
    return found


def _shared_names(trace: Trace, found: list[Table]) -> tuple[Texts, Ints]:
    """Return the distinct names of the rows ``found``, and the place of the name of each row."""
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
    """Return the `Doing` of each name."""
    rows = Names(np.arange(len(names)), names)
    waits = is_synchronization(rows)
    waits |= are_full_matches(rows, _OS_WAITS) | are_full_matches(rows, _PYTHON_WAITS)
    waits |= np.fromiter(map(functions.waits, names), np.bool_, len(names))
    sleeps = are_full_matches(rows, _OS_SLEEPS)
    sleeps |= np.fromiter(map(functions.sleeps, names), np.bool_, len(names))
    return Packed(np.where(waits, Doing.WAITS, np.where(sleeps, Doing.SLEEPS, Doing.RUNS)))


def _lanes_of(rows: Table) -> Iterator[HostLane]:
    """Yield the activity of each thread."""
    process, thread, starts, ends, name = ints(
        rows, "process", "thread", "start_ns", "end_ns", "name"
    )
    is_operator, is_function = rows["is_operator"], rows["is_function"]
    for (process_id, thread_id), rows_of_thread in rows_by_values(process, thread).items():
        ordered = rows_of_thread[np.lexsort((-ends[rows_of_thread], starts[rows_of_thread]))]
        first, last, owner = innermost_pieces(starts[ordered], ends[ordered])
        outer = find_outermost_ancestors(ends[ordered], is_operator[ordered])[owner]
        if is_function[ordered].any():
            caller = find_outermost_ancestors(ends[ordered], is_function[ordered])[owner]
            outer = np.where(outer < 0, caller, outer)
        codes = name[ordered]
        operator = codes[np.where(outer < 0, owner, outer)]
        yield HostLane(process_id, thread_id, first, last, codes[owner], operator)


def innermost_pieces(starts: Ints, ends: Ints) -> tuple[Ints, Ints, Ints]:
    """Return disjoint pieces of time (starts, ends) and the innermost span in each piece.

    The spans must be sorted by start. Of spans that begin together, the inner one must be last. The
    spans need not nest: if two spans overlap only in part, the span that began later counts as
    inside.
    """
    parents = _find_parents(ends)
    edges = sorted_distinct(np.concatenate((starts, ends)))
    owner = np.searchsorted(starts, edges, side="right") - 1
    open_at = np.flatnonzero(owner >= 0)
    for _ in range(_MAX_ROUNDS):
        open_at = open_at[ends[owner[open_at]] <= edges[open_at]]
        if not len(open_at):
            break
        owner[open_at] = parents[owner[open_at]]
        open_at = open_at[owner[open_at] >= 0]
    open_at = open_at[ends[owner[open_at]] <= edges[open_at]]
    owner[open_at] = _first_ending_after(parents, ends, owner[open_at], edges[open_at])
    kept = np.flatnonzero(owner >= 0)
    return edges[kept], edges[kept + 1], owner[kept]


def find_outermost_ancestors(ends: Ints, is_candidate: Bools) -> Ints:
    """Return, for each span, the outermost span with ``is_candidate`` that contains it; -1: none.

    A span contains itself. The spans must be sorted as for `innermost_pieces`. A span contains a
    later span that ends at the same time.
    """
    return nesting.find_outermost_ancestors(_find_parents(ends, holds_equal=True), is_candidate)


def _first_ending_after(parents: Ints, ends: Ints, spans: Ints, instants: Ints) -> Ints:
    """Return the first span outside each of ``spans`` that ends after the instant; -1: none.

    Ends increase from a span to its parent, so a search in jumps of 2ᵏ parents, longest jump first,
    finds it.
    """
    if not len(spans):
        return spans
    jumps = [parents]
    while (jumps[-1] >= 0).any():
        last = jumps[-1]
        jumps.append(np.where(last >= 0, last[last], -1))
    for jump in reversed(jumps):
        outer = jump[spans]
        spans = np.where((outer >= 0) & (ends[outer] <= instants), outer, spans)
    return parents[spans]


def _find_parents(ends: Ints, *, holds_equal: bool = False) -> Ints:
    """Return, for each span, the last earlier span that ends later; -1 if there is none.

    With ``holds_equal``, an earlier span that ends at the same time also counts.
    """
    closes = np.less if holds_equal else np.less_equal
    parents = np.arange(-1, len(ends) - 1)
    rows = np.flatnonzero(parents >= 0)
    while len(rows := rows[closes(ends[parents[rows]], ends[rows])]):
        # Pointer jumping: each round replaces a parent by its parent and halves the chains.
        parents[rows] = parents[parents[rows]]
        rows = rows[parents[rows] >= 0]
    return parents
