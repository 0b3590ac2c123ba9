"""Detects launched GPU work that is missing from the recording.

Profilers lose work: buffers overflow, another tool uses CUPTI, or the profiler is older than the
driver and does not understand all records. Three signs show it: launches without work although the
work of later launches was recorded; forward and backward passes without launches; steps with far
fewer launches than other steps of the same duration (`traceprof.measures.steps.thin`). The work of
the last launches of a process, or of a window of the embedded recorder, may have been pending when
the recording ended, so its absence is not suspicious.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from traceprof.measures.device.times import recorded_windows
from traceprof.measures.facts import fact, of_window
from traceprof.measures.host.launches import captures, launches_of
from traceprof.measures.rows import Bools, Ints, are_named, bounds, count_within, rows_by
from traceprof.measures.steps.find import find_steps, rows_of_steps
from traceprof.measures.steps.thin import (
    LAUNCHING,
    LAUNCHING_GRAPHS,
    are_thin,
    gaps_in_graphs,
    recorded_host_times,
)
from traceprof.model.grouping import is_in, pieces_of, places_of, rows_by_value, rows_by_values
from traceprof.model.intervals import Intervals
from traceprof.model.packed import Packed
from traceprof.model.ranks import Ranks
from traceprof.model.table import Names, Table
from traceprof.model.tables import ABSENT
from traceprof.model.trace import DEVICE_TABLES, Trace
from traceprof.names.ranges import PHASES, are_matched, phases_of_ranges

KINDS: Final = ("kernel", "graph", "copy", "memset")
_PATTERNS: Final = (
    re.compile(r"^(cuda|cu|hip)(Ext|Module|ExtModule)?Launch(?!Host)"),
    LAUNCHING_GRAPHS,
    re.compile(r"^(cuda|cu|hip)Memcpy"),
    re.compile(r"^(cuda|cu|hip)Memset"),
)
_MEMSET: Final = 3
_COPIES: Final = (2, _MEMSET)
"""Some copies without work are normal: they copy zero bytes, or from host to host."""
_MIN_LOST_COPIES_RATIO: Final = 0.1
_PASSES: Final = ("forward", "backward")
_MIN_LOST_COUNT: Final = 3
_MIN_PASS_LAUNCHES: Final = 8
"""A pass with at least this many launches uses a device."""
_MIN_LENGTH_RATIO: Final = 0.5
_PENDING_FACTOR: Final = 2
WHOLE: Final = 0
LACKS_WORK: Final = 1
"""The step launched work that is missing from the recording."""
BEGINS_UNKNOWN: Final = 2
"""The previous step lacks work, so the start of this step on the devices is unknown."""
_NO_ROWS: Final = np.empty(0, np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class Completeness:
    """Work that is missing from one recording, in a window.

    ``n_lost``: by kind of launch (of `KINDS`), the number of calls without work. ``n_passes``: by
    phase, the number of forward and backward passes while devices were recorded. ``n_silent``:
    passes without launches although other passes of similar length have many. ``n_empty``: passes
    without launches where no pass has many. ``n_steps``: number of steps. ``n_thin``: steps that
    lack launches and kernels (`are_thin`). ``has_work``: the recording contains device work.
    ``signs``: signs that calls or the work of graphs are missing, {} if there are none: the columns
    of `_find_signs`.
    """

    n_lost: Mapping[str, int]
    n_passes: Mapping[str, int]
    n_silent: Mapping[str, int]
    n_empty: Mapping[str, int]
    n_steps: int
    n_thin: int
    has_work: bool
    signs: Mapping[str, int] = field(default_factory=dict)


@of_window
def completeness(trace: Trace) -> Completeness:
    """Return what is missing in the window; nothing if calls or devices were not recorded."""
    passes, lost = passes_with_launches(trace), lost_launches(trace)
    of_phase = {name: passes["phase"] == PHASES.index(name) for name in _PASSES}
    is_silent, is_empty = passes["is_silent"], passes["is_empty"]
    whole = trace.whole
    last_ns = whole.api_calls["start_ns"].max(initial=0)
    may_lack_calls = (
        (whole.kernels["graph_node"] != ABSENT).any()
        or (launches_of(whole, "kernels").call < 0).any()
        or are_named(whole.api_calls["name"], LAUNCHING_GRAPHS).any()
        or (whole.ranges["start_ns"] > last_ns).sum() >= _MIN_LOST_COUNT
        or not len(whole.copies)
    )
    return Completeness(
        _by_kind(trace, lost) if len(lost) else dict.fromkeys(KINDS, 0),
        {name: int(is_phase.sum()) for name, is_phase in of_phase.items()},
        {name: int((is_phase & is_silent).sum()) for name, is_phase in of_phase.items()},
        {name: int((is_phase & is_empty).sum()) for name, is_phase in of_phase.items()},
        len(find_steps(trace.whole)),
        int(are_thin(trace).sum()),
        any(len(trace.whole.table(name)) for name in DEVICE_TABLES),
        _find_signs(whole, int(last_ns)) if may_lack_calls else {},
    )


def _find_signs(trace: Trace, last_ns: int) -> dict[str, int]:
    """Return the signs that calls or the work of graphs are missing.

    kernels: all kernels; unlaunched: those whose launch call is missing although earlier calls were
    recorded. late_ranges: ranges after the last call, at ``last_ns``, if all earlier ranges of the
    same name launched work. without_copies: ranges around copies to the GPU, if there is no copy.
    graph_gap_ns: idle time inside launches of graphs, at the same place in most launches.
    device_ns: recorded time of all devices.
    """
    kernels, ranges = trace.kernels, trace.ranges
    if trace.info.is_part or trace.info.has_some_devices_only or not len(kernels):
        return {}
    found = {
        "kernels": len(kernels),
        "graph_gap_ns": gaps_in_graphs(trace),
        "device_ns": trace.span.duration_ns * len(places_of(kernels["device"])[1]),
        **dict.fromkeys(("unlaunched", "late_ranges", "without_copies"), 0),
    }
    if recorded_windows(trace) or not len(trace.api_calls):
        return found
    is_late = ranges["start_ns"] > last_ns
    found["unlaunched"] = _count_unlaunched(trace, launches_of(trace, "kernels").is_known)
    found["late_ranges"] = _count_late_ranges(trace, is_late)
    if "copies" in trace.recorded and trace.copies.empty:
        is_copying = phases_of_ranges(ranges) == PHASES.index("h2d")
        found["without_copies"] = int((is_copying & ~is_late).sum())
    return found


def _count_unlaunched(trace: Trace, is_known: Bools) -> int:
    """Return the number of kernels without a launch call that follow a kernel with such a call.

    Kernels of a stream run in the order of their launches, so the calls were recorded. The first
    kernels of a recording may have been launched before it began.
    """
    kernels, found = trace.kernels, 0
    is_linked = kernels["correlation"] != ABSENT
    for rows in rows_by_values(kernels["process"], kernels["device"], kernels["stream"]).values():
        known = is_known[rows]
        later = rows[int(known.argmax()) :] if known.any() else _NO_ROWS
        found += int((~is_known[later] & is_linked[later]).sum())
    return found


def _count_late_ranges(trace: Trace, is_late: Bools) -> int:
    """Return the number of late ranges with a name of which all earlier ranges launched work."""
    ranges = trace.ranges
    names, found = ranges["name"], 0
    is_launch = are_named(trace.api_calls["name"], LAUNCHING)
    calls_of = rows_by(trace.api_calls, "process")
    for process, rows in rows_by(ranges, "process").items():
        calls = calls_of.get(process, _NO_ROWS)
        launched = trace.api_calls["start_ns"][calls[is_launch[calls]]]
        counts = count_within(launched, *(column[rows] for column in bounds(ranges)))
        late = is_late[rows]
        for of_name in rows_by_value(names.packed[rows]).values():
            early = of_name[~late[of_name]]
            if len(early) >= _MIN_LOST_COUNT and (counts[early] > 0).all():
                found += int(late[of_name].sum())
    return found


def launches_by_kind(trace: Trace) -> Mapping[str, int]:
    """Return the number of calls of each kind (of `KINDS`) that launched work in the window."""
    return _by_kind(trace, _launched_work(trace))


def _by_kind(trace: Trace, launches: Table) -> Mapping[str, int]:
    """Return the number of launches in the window, by kind."""
    span, start = trace.span, launches["start_ns"]
    kind = launches["kind"][(start >= span.start_ns) & (start <= span.end_ns)]
    return dict(zip(KINDS, np.bincount(kind, minlength=len(KINDS)).tolist(), strict=True))


@of_window
def wholeness_of_steps(trace: Trace) -> Ints:
    """Return the wholeness of each of `find_steps`: `WHOLE`, `LACKS_WORK`, or `BEGINS_UNKNOWN`."""
    return _wholeness(trace)[rows_of_steps(trace)]


@of_window
def wholeness_of_ranks(ranks: Ranks) -> Ints:
    """Return the wholeness of the steps of all ranks, in the order of `steps_of_ranks`."""
    return np.concatenate(ranks.each(wholeness_of_steps))[_order_of_ranks(ranks)]


def _order_of_ranks(ranks: Ranks) -> Ints:
    """Return the order that sorts the concatenated steps of all ranks as in `steps_of_ranks`."""
    steps = Table.stacked([find_steps(part).table for part in ranks])
    return steps.order("process", "start_ns") if len(ranks) > 1 else np.arange(len(steps))


@fact
def lost_launches(trace: Trace) -> Table:
    """Return the launches whose work is missing for another reason than the end of the recording.

    Columns: row (in the calls), process, start_ns, kind (index in `KINDS`). Empty if calls or work
    were not recorded, or if the recording does not link work to launches.
    """
    names = ("row", "process", "start_ns", "kind")
    if trace.info.has_some_devices_only or _have_work(trace, _launching(trace)[0]).all():
        return Table(dict.fromkeys(names, _NO_ROWS))
    launches = _launched_work(trace)
    return launches.select(*names).take(_are_lost(trace, launches))


@fact
def _launched_work(trace: Trace) -> Table:
    """Return all calls that launch work: the columns of `lost_launches` and has_work."""
    rows, kind = _launching(trace)
    calls = trace.api_calls.select("process", "thread", "start_ns", "end_ns").take_on_disk(rows)
    outer, worked = _outermost(calls), np.zeros(len(calls), np.bool_)
    worked[outer[_have_work(trace, rows)]] = True
    kept = np.flatnonzero(outer == np.arange(len(calls)))
    found = calls.select("process", "start_ns").take(kept)
    return found.assign(row=rows[kept], kind=kind[kept], has_work=worked[kept])


@fact
def _launching(trace: Trace) -> tuple[Ints, Ints]:
    """Return the rows of all calls that launch work, and their kinds; without stream captures."""
    calls = trace.api_calls
    names: Names = calls["name"]
    kind_of = np.full(len(names.texts), ABSENT)
    for place, pattern in enumerate(_PATTERNS):
        kind_of[are_matched(names.texts, pattern)] = place
    kind = names.by_text(kind_of)
    is_recorded = {"api_calls", *DEVICE_TABLES} <= trace.recorded
    rows = np.flatnonzero((kind >= 0) & (calls["correlation"] != ABSENT) & is_recorded)
    times = captures(trace)
    if len(times):
        rows = rows[~_are_captured(calls, rows, times)]
    return rows, kind[rows]


def _are_captured(calls: Table, rows: Ints, times: Table) -> Bools:
    """Return which calls were captured into a graph by a stream; they launch no work directly."""
    found = np.zeros(len(rows), np.bool_)
    threads = rows_by_values(calls["process"][rows], calls["thread"][rows])
    for thread, at in rows_by_values(times["process"], times["thread"]).items():
        if thread in threads:
            thread_rows = threads[thread]
            time = Intervals.union_of(*(times[name][at] for name in ("start_ns", "end_ns")))
            starts = calls["start_ns"][rows[thread_rows]]
            found[thread_rows] = time.covered_ns(starts, starts + 1) > 0
    return found


def _have_work(trace: Trace, calls: Ints) -> Bools:
    """Return which calls have a kernel or copy of their process with the same correlation."""
    correlations, found = trace.api_calls["correlation"][calls], np.zeros(len(calls), np.bool_)
    work = [
        (trace.table(name)["correlation"], rows_by(trace.table(name), "process"))
        for name in DEVICE_TABLES
    ]
    for process, rows in rows_by_value(trace.api_calls["process"][calls]).items():
        for numbers, rows_of_process in work:
            found[rows] |= is_in(
                correlations[rows], numbers[rows_of_process.get(process, _NO_ROWS)]
            )
    return found


def _outermost(calls: Table) -> Ints:
    """Return the row of the outermost launch around each call: runtime calls call the driver."""
    found = np.empty(len(calls), np.int64)
    starts, ends = bounds(calls)
    for rows in rows_by_values(calls["process"], calls["thread"]).values():
        last, reach_ns = 0, int(starts[rows[0]])  # of the previous pieces
        for piece in pieces_of(len(rows)):
            members = rows[piece]
            before = np.maximum.accumulate(np.append(reach_ns, ends[members]))
            outer = np.where(starts[members] < before[:-1], 0, np.arange(piece.start, piece.stop))
            outer = np.maximum.accumulate(np.maximum(outer, last))
            found[members] = rows[outer]
            last, reach_ns = int(outer[-1]), int(before[-1])
    return found


def _are_lost(trace: Trace, launches: Table) -> Bools:
    """Return which launches lack their work for another reason than the end of the recording.

    If kernels or graphs are lost in the middle, those of the last launches may be lost too.
    """
    kind, start, worked = launches["kind"], launches["start_ns"], launches["has_work"]
    lost: Bools = ~worked
    delay_ns, until_ns = _work_of_calls(trace, launches["row"])
    windows = recorded_windows(trace)
    unlinked = trace.kernels["process"][~launches_of(trace, "kernels").is_known]
    for process, rows in rows_by(launches, "process").items():
        if 0 < lost[rows].sum() <= np.count_nonzero(unlinked == process):
            lost[rows] = False  # the file does not link work to its launch
            continue
        window = np.searchsorted(
            windows.get(process, Intervals.empty()).starts, start[rows], side="right"
        )
        for number in places_of(window)[1]:
            group = rows[window == number]
            if not worked[group].any():
                lost[group] &= not (worked[rows].any() or trace.info.is_part)
                continue
            # Streams run out of order, so other launches may wait as long as the slowest, and the
            # last work runs until the recording ends. A part ends without synchronization, so more
            # launches are pending at its end.
            max_delay_ns = delay_ns[group].max() * (_PENDING_FACTOR if trace.info.is_part else 1)
            pending_since_ns = until_ns[group].max() - max_delay_ns
            last_start = start[group[np.flatnonzero(worked[group])[-1]]]
            lost[group] &= start[group] < min(last_start, pending_since_ns)
        kernel_rows = rows[~np.isin(kind[rows], _COPIES)]
        lost[kernel_rows] = ~worked[kernel_rows] & (lost[kernel_rows].sum() >= _MIN_LOST_COUNT)
        for copy_kind in _COPIES:
            group = rows[kind[rows] == copy_kind]
            is_rare = not worked[group].any() or lost[group].mean() < _MIN_LOST_COPIES_RATIO
            # cuDNN and other libraries often memset zero bytes, which creates no work.
            if is_rare or (copy_kind == _MEMSET and worked[kernel_rows].all()):
                lost[group] = False
    return lost


def _work_of_calls(trace: Trace, rows: Ints) -> tuple[Ints, Ints]:
    """Return the launch delay of the work of each call (0 without work), and its end, in ns."""
    began = trace.api_calls["start_ns"]
    # The last place is for work without a call.
    places = np.full(len(began) + 1, -1)
    places[rows] = np.arange(len(rows))
    place = Packed.below(len(began) + 1, places)
    delay_ns, until_ns = (np.zeros(len(rows), np.int64) for _ in range(2))
    for name in DEVICE_TABLES:
        starts, ends = bounds(trace.table(name))
        call = launches_of(trace, name).call
        for piece in pieces_of(len(call)):
            linked = np.flatnonzero(place[call[piece]] != -1) + piece.start
            np.maximum.at(
                delay_ns, place[call[linked]].wide(), starts[linked] - began[call[linked]]
            )
            np.maximum.at(until_ns, place[call[linked]].wide(), ends[linked])
    return delay_ns, until_ns


@fact
def passes_with_launches(trace: Trace) -> Table:
    """Return the forward and backward passes that lie in the recorded time of the devices.

    Columns: process, start_ns, end_ns, phase (index in `PHASES`), n_launches, is_silent (no
    launches, although other passes of similar length have many), and is_empty (no launches, and no
    pass has many).
    """
    ranges = trace.ranges.select("process", "start_ns", "end_ns", "name", "domain")
    ranges = ranges.take(trace.ranges["kind"] == "push_pop")
    phase = phases_of_ranges(ranges)
    rows = np.flatnonzero(is_in(phase, [PHASES.index(name) for name in _PASSES]))
    passes = ranges.select("process", "start_ns", "end_ns").take(rows).assign(phase=phase[rows])
    n_launches, is_seen = np.zeros(len(passes), np.int64), np.zeros(len(passes), np.bool_)
    starts, ends = bounds(passes)
    launching = are_named(trace.api_calls["name"], LAUNCHING)
    calls_of = rows_by(trace.api_calls, "process")
    host_times = recorded_host_times(trace, calls_of)
    working = set(places_of(trace.kernels["process"])[1])
    for process, pass_rows in rows_by(passes, "process").items():
        if process not in host_times or process not in working:
            continue
        calls = calls_of[process]
        launched = trace.api_calls["start_ns"][calls[launching[calls]]]
        begins, finishes = starts[pass_rows], ends[pass_rows]
        covered_ns = host_times[process].covered_ns(begins, finishes)
        is_seen[pass_rows] = covered_ns == finishes - begins
        n_launches[pass_rows] = count_within(launched, begins, finishes)
    found = passes.assign(n_launches=n_launches).take(is_seen & (ends > starts))
    return found.assign(**_silent_and_empty(found))


def _silent_and_empty(passes: Table) -> Mapping[str, Bools]:
    """Return the columns is_silent and is_empty of `passes_with_launches`."""
    silent, empty = (np.zeros(len(passes), np.bool_) for _ in range(2))
    n, lengths = passes["n_launches"], passes["end_ns"] - passes["start_ns"]
    for pass_rows in rows_by_values(passes["process"], passes["phase"]).values():
        full, without = pass_rows[n[pass_rows] >= _MIN_PASS_LAUNCHES], pass_rows[n[pass_rows] == 0]
        if len(full):
            without = without[lengths[without] >= _MIN_LENGTH_RATIO * np.median(lengths[full])]
        if len(without) >= _MIN_LOST_COUNT:
            (silent if len(full) else empty)[without] = True
    return {"is_silent": silent, "is_empty": empty}


@fact
def _wholeness(trace: Trace) -> Ints:
    """Return the wholeness of all steps of the recording."""
    steps, launches = find_steps(trace).table, lost_launches(trace)
    found = np.full(len(steps), WHOLE)
    of_process, thin = rows_by(launches, "process"), are_thin(trace)
    for process, rows in rows_by(steps, "process").items():
        # Work launched between two steps belongs to the second step.
        lost = launches["start_ns"][of_process.get(process, _NO_ROWS)]
        step_places = np.searchsorted(steps["end_ns"][rows], lost, side="right")
        step_places = np.append(step_places, np.flatnonzero(thin[rows]))
        after = step_places[step_places + 1 < len(rows)] + 1
        found[rows[after]] = BEGINS_UNKNOWN
        found[rows[step_places[step_places < len(rows)]]] = LACKS_WORK
    return found
