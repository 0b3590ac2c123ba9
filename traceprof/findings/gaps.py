"""Rules on idle time that no other rule explains, and notes on what the CPU does in idle time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
import numpy.typing as npt

from traceprof.findings.claims import Claim, Kind, Times
from traceprof.findings.context import Context
from traceprof.findings.kernel_times import summed
from traceprof.findings.recurrence import occurs_once
from traceprof.findings.rules import Finding, rule
from traceprof.measures import shown_by
from traceprof.measures.device.times import used_devices
from traceprof.measures.host.samples import count_samples
from traceprof.measures.idle.charges import NOTHING, find_charges, find_host_charges, time_by_name
from traceprof.measures.idle.gaps import find_gaps
from traceprof.measures.idle.lanes import functions_without_launches
from traceprof.measures.idle.losses import idle_ns_by_gap
from traceprof.measures.rows import bounds, lengths_of, overlaps, rows_by, unions_by
from traceprof.model.grouping import beside
from traceprof.model.intervals import Intervals
from traceprof.model.results import Note
from traceprof.model.table import Table, objects
from traceprof.model.trace import Trace
from traceprof.names.functions import is_function
from traceprof.names.kernels import short_name

_MAX_NAMES_SHOWN: Final = 3
_MAIN_RATIO: Final = 0.5
_MIN_NAMED_RATIO: Final = 0.05
"""Evidence omits names below this share of the idle time."""
_IN_WORDS: Final = {
    "launching": " while the CPU is in {name}{mostly}",
    "other": " while a thread that does not launch work is in {name}{mostly}",
    "": " without recorded CPU activity",
}
_IN_NO_OPERATOR: Final = " while the CPU is in {name}, outside any operator"
"""Words for idle time in the step range of torch.profiler."""
_MIN_LONG_NS: Final = 500_000_000
_MIN_LONG_RATIO: Final = 0.01

_MIN_IDLE_RATIO: Final = 0.1
_RECORDED_TABLES: Final = ("kernels", "copies", "api_calls", "ranges")
_WORDS: Final = {
    "queued": "launched work waits for another stream, or for the pause between two kernels",
    "peer": "the next work waits for another GPU",
    "edge": "before the first or after the last work on the GPU",
    "unknown": "the trace contains no launch call of the next work",
}
_TITLES: Final = {
    "queued": "Idle while launched work waits",
    "peer": "Idle while waiting for another GPU",
    "edge": "No work before the first or after the last kernel",
    "unknown": "Idle for an unknown reason",
}
_ACTIONS: Final = {
    "unknown": "Check what the program does between these kernels: "
    f"`{shown_by('gaps')}` lists the gaps, and `traceprof timeline` shows them.",
    "edge": "Check when each GPU works (`traceprof timeline`). Give it work from the beginning, or "
    "analyze the time in which all GPUs work (`--window`).",
}


def notes_on_names(context: Context, times: Times) -> tuple[tuple[Note, ...], tuple[str, ...]]:
    """Return notes on what the CPU does during the idle ``times`` of devices, and the names.

    At most three notes name what the idle time is charged to, the longest first. One more note
    names what other threads ran. Names are those of the outermost operators. The innermost name
    follows in parentheses if it has most of the operator's time.
    """
    charged, other_threads = names_of_gaps(context, times)
    if charged.empty:
        return (), ()
    min_ns = _MIN_NAMED_RATIO * charged["ns"].sum()
    ranked = sums_by_operator(charged)
    shown = ranked.take(ranked["ns"] >= min_ns).head(_MAX_NAMES_SHOWN).rows()
    step = context.steps.source
    notes = [
        context.timed(
            row["ns"],
            after=_IN_NO_OPERATOR if row["operator"] == step else _IN_WORDS[row["by"]],
            name=row["operator"],
            mostly=row["mostly"],
        )
        for row in shown
    ]
    charged_names = {*charged["name"], *charged["operator"]}
    notes += [
        context.timed(ns, before="other threads at the same time: ", after=" in {name}", name=name)
        for name, ns in list(other_threads.items())[:1]
        if ns >= min_ns and name not in charged_names
    ]
    if any(is_function(row["operator"]) for row in shown):
        notes += note_on_samples(context)
    return tuple(notes), tuple(row["operator"] for row in shown if row["operator"] != NOTHING)


def note_on_samples(context: Context) -> list[Note]:
    """Return the note on functions that come from sampled stacks; [] if calls were recorded."""
    n_samples = sum(context.ranks.each(count_samples))
    text = "functions estimated from {n:count} samples of the Python stacks"
    return [Note.of(text, n=n_samples)] if n_samples else []


def sums_by_operator(charged: Table) -> Table:
    """Return operator, by, ns, and mostly, the longest first.

    ``mostly`` contains the words for the innermost name with most of the operator's time, or "".
    """
    keys = tuple(name for name in ("operator", "by") if name in charged)
    sums = summed(charged, charged["ns"], *keys)
    sums = sums.select(*keys).assign(whole=sums["ns"])
    both = beside(sums, charged.in_order("-ns"), *keys)
    names = objects(f" (mostly {name})" for name in both["name"])
    is_mostly_inner = (both["ns"] > _MAIN_RATIO * both["whole"]) & (
        both["name"] != both["operator"]
    )
    found = both.select(*keys).assign(ns=both["whole"], mostly=np.where(is_mostly_inner, names, ""))
    return found.in_order("-ns")


def main_function(context: Context, times: Times) -> str:
    """Return the function with most of the idle ``times``; "" if there is none.

    The function belongs to the program and launches no work, so the program can move it.
    """
    charged, _ = names_of_gaps(context, times)
    sums = summed(charged, charged["ns"], "operator").in_order("-ns").head(1).rows()
    found = [row["operator"] for row in sums if row["ns"] > _MAIN_RATIO * charged["ns"].sum()]
    movable = frozenset[str]().union(*context.ranks.each(functions_without_launches))
    return found[0] if found and found[0] in movable else ""


def names_of_gaps(context: Context, times: Times) -> tuple[Table, dict[str, int]]:
    """Return what the idle ``times`` of devices are charged to, and what other threads ran.

    The table has name, operator, by, and ns, the longest first. The sum of ns is the part of
    ``times`` in which the host blocked the devices. The dictionary has the ns by name of threads
    that do not launch work.
    """
    keys = ("name", "operator", "by")
    charged: list[Table] = []
    other_threads: dict[str, int] = {}
    for part in context.ranks:
        blocked = _within(find_host_charges(part), times)
        charged.append(blocked.select(*keys, "ns"))
        others = find_charges(part).running
        running = _within(others.take(others["by"] == "other"), times)
        for name, ns in time_by_name(running).items():
            other_threads[name] = other_threads.get(name, 0) + ns
    table = Table.stacked(charged)
    ranked = summed(table, table["ns"], *keys).in_order("-ns")
    return ranked, dict(sorted(other_threads.items(), key=lambda item: -item[1]))


def _within(rows: Table, times: Times) -> Table:
    """Return the parts of ``rows`` that are inside the ``times`` of their device, with their ns."""
    starts, ends = bounds(rows)
    found: list[npt.NDArray[np.int64]] = [np.empty((3, 0), np.int64)]
    for device, device_rows in rows_by(rows, "device").items():
        time = times.get(device, Intervals.empty())
        row, _, first, last = overlaps(
            starts[device_rows], ends[device_rows], time.starts, time.ends
        )
        found.append(np.stack((device_rows[row], first, last)))
    row, first, last = np.concatenate(found, axis=1)
    return rows.take(row).assign(start_ns=first, end_ns=last, ns=last - first)


@rule(
    "idle time",
    "gaps of 0.5 s or more without a known cause",
    "kernels",
    "copies",
    "api_calls",
    show="gaps",
)
def gpu_gaps(context: Context) -> Iterator[Finding]:
    """Find gaps longer than 0.5 s that no other rule explains."""
    gaps = long_gaps(context)
    free = context.unclaimed(unions_by(gaps, "device")).times
    is_free = [
        free[device].covered_ns([start], [end])[0] > (end - start) / 2 if device in free else False
        for device, start, end in zip(gaps["device"].tolist(), *bounds(gaps), strict=True)
    ]
    # A gap of which other rules claimed half or more has a known cause.
    unexplained = gaps.take(is_free)
    claim = context.unclaimed(unions_by(unexplained, "device"))
    share = context.share(claim)
    if share < _MIN_LONG_RATIO:
        return
    worst = unexplained.row(int(lengths_of(unexplained).argmax()))
    is_once = not len(context.steps) and occurs_once(context, unexplained)
    named, names = notes_on_names(context, claim.times)
    yield Finding(
        title=Note.of(
            ("One gap" if len(unexplained) == 1 else "{n:count} gaps")
            + " longer than {least:ns} without a recorded cause: {share:ratio} of step time",
            n=len(unexplained),
            least=_MIN_LONG_NS,
            share=share,
        ),
        claims=(claim,),
        kind=Kind.ONCE if is_once else Kind.BOUNDED,
        one_time_ns=context.one_time_ns(claim) if is_once else None,
        evidence=(
            Note.of(
                "longest gap: GPU {device}, {longest:ns}",
                device=int(worst["device"]),
                longest=int(worst["end_ns"] - worst["start_ns"]),
            ),
            *named,
        ),
        action=f"Check what the CPU does in these gaps: `{shown_by('gaps')}`, `traceprof "
        "timeline`.",
        caveat="Loading a model or a checkpoint causes such a gap once.",
        window=context.longest_row(unexplained),
        ranges=names,
    )


def long_gaps(context: Context) -> Table:
    """Return the gaps between work that are longer than 0.5 s without the profiler's time."""
    return context.rows(_long_gaps_of_rank)


def _long_gaps_of_rank(trace: Trace) -> Table:
    """Return the same as `long_gaps` for one trace."""
    gaps = find_gaps(trace)
    lengths = lengths_of(gaps) - idle_ns_by_gap(trace, "profiler")
    return gaps.take((lengths > _MIN_LONG_NS) & (idle_ns_by_gap(trace, "edge") == 0))


@rule("idle time", "idle GPUs without a known cause", "kernels", "copies", show="idle")
def low_utilization(context: Context) -> Iterator[Finding]:
    """Find idle devices without a known cause."""
    unexplained = context.unclaimed(
        {
            device: recorded - context.times[device].busy
            for part, recorded in zip(context.ranks, context.ranks.each(recorded_span), strict=True)
            for device in used_devices(part)
        }
    )
    least_ns = _MIN_IDLE_RATIO * max(1, context.typical.total_ns)
    low = {device: time for device, time in unexplained.times.items() if time.total_ns >= least_ns}
    claim = Claim(low)
    if not low:
        return
    worst = max(low, key=lambda device: low[device].total_ns)
    causes = _causes(context, claim)
    main_cause = causes[0][1] if causes and causes[0][0] > _MAIN_RATIO else ""
    # The title is about the devices that it names; the saving is a mean over all devices.
    base = "their analyzed time" if len(low) > 1 else "its analyzed time"
    base = "step time" if len(low) == len(context.devices) else base
    yield Finding(
        title=Note.of(
            f"{_TITLES.get(main_cause, 'Idle for several reasons')}: {{who}}, "
            f"{{share:ratio}} of {base}",
            who=_listed(list(low), len(context.devices)),
            share=context.share(claim) * len(context.places) / len(low),
        ),
        claims=(claim,),
        kind=Kind.NONE if main_cause == "edge" else Kind.BOUNDED,
        evidence=_notes_on_edges(context, claim)
        if main_cause == "edge"
        else (
            *(
                Note.of("{share:ratio} of this time: {words}", share=share, words=_WORDS[cause])
                for share, cause in causes
            ),
            *(_notes_on_neighbors(context, low) if main_cause == "unknown" else ()),
        ),
        action=_action(context, main_cause),
        caveat="Start-up and shutdown count as idle time. Choose a window inside the loop "
        "(`--window`).",
        window=context.longest_of(low[worst].starts, low[worst].ends),
    )


def _action(context: Context, main_cause: str) -> str:
    """Return the advice on idle time with this main cause.

    Launch calls help only if none were recorded and the recorder can record them.
    """
    how = context.software.recorder.how_to("launches")
    if main_cause == "unknown" and how and "api_calls" not in context.ranks.recorded:
        return f"Find out whether the CPU launches these kernels late: {how}."
    return _ACTIONS.get(main_cause, f"Check what runs in these gaps: `{shown_by('gaps')}`.")


def _notes_on_neighbors(context: Context, times: Times) -> Iterator[Note]:
    """Yield notes on the work before and after the idle ``times``, at most two, the longest first.

    Without launch calls, the position in the program is all that the trace shows.
    """
    gaps = _within(context.rows(find_gaps), times)
    gaps = gaps.take((gaps["before"] != "") & (gaps["after"] != ""))
    for row in summed(gaps, gaps["ns"], "before", "after").in_order("-ns").head(2).rows():
        names = {"first": short_name(row["before"]), "second": short_name(row["after"])}
        yield context.timed(row["ns"], after=" between {first} and {second}", **names)


def recorded_span(part: Trace) -> Intervals:
    """Return the span from the first to the last recorded row of a trace."""
    filled = [table for name in _RECORDED_TABLES if len(table := part.table(name))]
    starts = [int(table["start_ns"][0]) for table in filled]
    ends = [int(table["end_ns"].max()) for table in filled]
    return Intervals.single(min(starts), max(ends)) if filled else Intervals.empty()


def _listed(devices: list[int], n_all: int) -> str:
    """Return the words for a list of devices."""
    if len(devices) == n_all and n_all > 1:
        return f"all {n_all} GPUs"
    numbers = ", ".join(map(str, devices))
    return f"GPU {numbers}" if len(devices) == 1 else f"GPUs {numbers}"


def _notes_on_edges(context: Context, claim: Claim) -> tuple[Note, ...]:
    """Return notes on devices that start late in the window or stop early, at most three."""
    notes = []
    for device in claim.times:
        busy, span = context.times[device].busy, context.ranks.span
        if not len(busy):
            notes.append(Note.of("GPU {device} has no work in this window", device=device))
            continue
        late_ns = int(busy.starts[0]) - span.start_ns
        early_ns = span.end_ns - int(busy.ends[-1])
        least_ns = _MIN_IDLE_RATIO * span.duration_ns
        late_ns, early_ns = (ns if ns >= least_ns else 0 for ns in (late_ns, early_ns))
        begins = "starts {late:ns} after the start of the window" if late_ns else ""
        stops = "stops {early:ns} before its end" if early_ns and late_ns else ""
        stops = stops or ("stops {early:ns} before the end of the window" if early_ns else "")
        both = " and ".join(filter(None, (begins, stops)))
        if both:
            text = f"GPU {{device}} {both}"
            notes.append(Note.of(text, device=device, late=late_ns, early=early_ns))
    return tuple(notes[:3])


def _causes(context: Context, claim: Claim) -> list[tuple[float, str]]:
    """Return the share and name of each cause of the idle time in ``claim``, the largest first."""
    found = []
    for cause in _WORDS:
        idle = context.idle_for(cause).times
        total = sum((idle[d] & time).total_ns for d, time in claim.times.items() if d in idle)
        found.append((total / max(1, claim.total_ns), cause))
    return [item for item in sorted(found, reverse=True) if item[0] >= _MIN_IDLE_RATIO]
