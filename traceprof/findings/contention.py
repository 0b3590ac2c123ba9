"""Rules on kernels that run slower while communication or copies overlap with them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np

from traceprof.errors import NotRecordedError
from traceprof.findings.amounts import COLLECTIVES, TRANSFERS
from traceprof.findings.claims import ClaimKind, Kind, Times, starts_within, union_by_device
from traceprof.findings.context import Context
from traceprof.findings.rules import Finding, rule
from traceprof.measures.device.occupancy import launch_shapes
from traceprof.measures.device.times import device_times
from traceprof.measures.host.launches import launches_of
from traceprof.measures.rows import Bools, Ints, bounds, owner_of, unions_by
from traceprof.measures.steps.find import find_steps
from traceprof.model.activity import Activity
from traceprof.model.grouping import codes_of, groups_of, numbered
from traceprof.model.intervals import Intervals
from traceprof.model.results import Note
from traceprof.model.table import Table
from traceprof.model.tables import ABSENT
from traceprof.model.trace import Trace
from traceprof.names.kernels import SHORT_NS, short_name

_MIN_COST_RATIO: Final = 0.01
_MIN_LAUNCHES: Final = 3
"""Minimum number of launches without, and of launches with communication, for a comparison."""
_MAX_SPREAD_FACTOR: Final = 1.15
"""Launches without communication do the same work if their 90% quantile is at most this factor
times their 10% quantile."""
_MIN_OVERLAP_RATIO: Final = 0.5
_MAX_KERNELS_SHOWN: Final = 2


@dataclass(frozen=True, slots=True)
class _SlowedKernel:
    """One kernel that is slower during communication, with its launches that overlap with it.

    ``count``, ``whole_ns``, and ``median_ns`` describe the overlapping launches. ``alone_ns`` is
    the median duration without communication. ``extra_ns`` is the time that the overlapping
    launches take longer than this median. ``most_ns`` is the time that they take longer than the
    shortest launch without communication.
    """

    name: str
    count: int
    whole_ns: int
    median_ns: float
    alone_ns: float
    extra_ns: int
    most_ns: int


@rule(
    "contention between compute and communication",
    "kernels that slow down during communication",
    "kernels",
    about=COLLECTIVES,
    show="collectives",
)
def contention(context: Context) -> Iterator[Finding]:
    """Find kernels that take longer during communication than without it."""
    found = context.ranks.each(_slowed_by_communication, context.typical)
    if not any(is_known for *_, is_known in found):
        raise NotRecordedError(_NOT_COMPARABLE)
    yield from _finding(
        context,
        found,
        Note(
            "Communication slows overlapped kernels: they take {factor:factor} as long, which "
            "costs {share:ratio} of step time"
        ),
        "communication",
        (),
        (
            "Give communication fewer GPU resources: fewer SMs (`NCCL_MAX_CTAS`, "
            "`NCCL_MAX_NCHANNELS`) or copy engines. Or overlap it with kernels that need less "
            "memory bandwidth.",
            "With fewer resources, communication takes longer, and more of it may be exposed.",
        ),
    )


BESIDE_COPIES: Final = "contention between compute and copies"
"""The subject of the rule on kernels that slow down during copies."""


@rule(
    BESIDE_COPIES,
    "kernels that slow down during copies between CPU and GPU",
    "kernels",
    "copies",
    about=TRANSFERS,
    show="copies",
)
def contention_with_copies(context: Context) -> Iterator[Finding]:
    """Find kernels that take longer during copies between CPU and GPU than without them."""
    if not len(context.steps):
        raise NotRecordedError("no steps are marked")
    found = context.ranks.each(_slowed_by_copies, context.typical)
    if not any(is_known for *_, is_known in found):
        raise NotRecordedError("no kernel runs often enough both alone and during copies")
    yield from _finding(
        context,
        found,
        Note(
            "Copies between CPU and GPU slow overlapped kernels: they take {factor:factor} as "
            "long, which costs {share:ratio} of step time"
        ),
        "copies",
        _notes_on_copies(context),
        (SPREAD_COPIES, "Slower copies of a checkpoint delay the next checkpoint."),
    )


SPREAD_COPIES: Final = (
    "Copy less at a time: spread an asynchronous checkpoint over more steps. Save less often, or "
    "save each shard on one rank only. Use pinned memory, so that a copy engine copies the data."
)
"""Advice on asynchronous copies that slow kernels down."""


def _notes_on_copies(context: Context) -> tuple[Note, ...]:
    """Return notes on the number and bytes of the copies in each direction."""
    copies = context.copies(_are_host_copies)
    return tuple(
        Note.of(
            f"{{n:count}} cop(y|ies) to the {side} ({{moved:bytes}} in total)",
            n=len(rows),
            moved=int(np.maximum(rows["n_bytes"], 0).sum()),
        )
        for way, side in (("d2h", "CPU"), ("h2d", "GPU"))
        if len(rows := copies.take(copies["direction"] == way))
    )


_Slowed: TypeAlias = tuple[list[_SlowedKernel], Times, bool]


def _finding(
    context: Context,
    found: Sequence[_Slowed],
    title: Note,
    what: str,
    more: tuple[Note, ...],
    advice: tuple[str, str],
) -> Iterator[Finding]:
    """Yield the finding on kernels that are slower during ``what``, if they cost enough.

    ``more`` is further evidence, and ``advice`` is an action with its caveat.
    """
    slowed = [kernel for kernels, *_ in found for kernel in kernels]
    whole_ns = sum(kernel.whole_ns for kernel in slowed)
    if not whole_ns:
        return
    saved, max_saved = (
        sum(getattr(kernel, name) for kernel in slowed) / whole_ns
        for name in ("extra_ns", "most_ns")
    )
    times = union_by_device(times for _, times, _ in found)
    claim = context.unclaimed(times, ClaimKind.COMPUTE, saved, (0.0, max_saved))
    share = context.share(claim) * saved
    if share < _MIN_COST_RATIO:
        return
    extra = Counter[str]()
    for kernel in slowed:
        extra[kernel.name] += kernel.extra_ns
    first_of = {kernel.name: kernel for kernel in reversed(slowed)}
    shown = [first_of[name] for name, _ in extra.most_common(_MAX_KERNELS_SHOWN)]
    yield Finding(
        title=Note.of(title.text, factor=1 / (1 - saved), share=share),
        claims=(claim,),
        kind=Kind.ESTIMATED,
        model=Note(
            f"Each kernel takes as long as its median launch without {what}. Upper bound: as its "
            f"shortest one. Lower bound: no saving, if the same GPU resources limit {what}."
        ),
        evidence=(
            context.timed(sum(extra.values()), after=f" longer than without {what}"),
            *(
                Note.of(
                    f"{{name}}: {{alone:ns}} alone, {{beside:ns}} during {what} (medians)",
                    name=short_name(kernel.name),
                    alone=kernel.alone_ns,
                    beside=kernel.median_ns,
                )
                for kernel in shown
            ),
            *more,
        ),
        action=advice[0],
        caveat=advice[1],
        ncu=context.ncu(extra),
    )


_NOT_COMPARABLE: Final = "no kernel runs often enough both alone and during communication"


def _slowed_by_communication(trace: Trace, analyzed: Intervals) -> _Slowed:
    """Return the result of `_find_slowed` for communication."""
    times = {device: time.communication for device, time in device_times(trace).items()}
    return _find_slowed(trace, analyzed, times, np.zeros(len(trace.kernels), np.int64))


def _slowed_by_copies(trace: Trace, analyzed: Intervals) -> _Slowed:
    """Return the result of `_find_slowed` for copies between CPU and GPU.

    Copies often run at the same place in each step, so only kernels at the same place in different
    steps are compared. Other kernels of the same name and shape may do other work.
    """
    kernels, steps = trace.kernels, find_steps(trace.whole).table
    started = launches_of(trace, "kernels").start_ns
    called = np.where(started != ABSENT, started, kernels["start_ns"])
    step = owner_of(steps, kernels["process"], called)
    place = groups_of(kernels["device"], kernels["stream"], codes_of(kernels["name"]), step).earlier
    return _find_slowed(trace, analyzed, host_copies(trace), place)


def host_copies(trace: Trace) -> Times:
    """Return the times of copies between CPU and GPU, by device."""
    return unions_by(trace.copies.take(_are_host_copies(trace.copies)), "device")


def _are_host_copies(copies: Table) -> Bools:
    """Return which copies are between CPU and GPU."""
    return np.asarray(copies["direction"].isin(("h2d", "d2h")), np.bool_)


def _find_slowed(trace: Trace, analyzed: Intervals, times: Times, place: Ints) -> _Slowed:
    """Return the slowed kernels of a trace, their slow launches, and whether any is comparable.

    ``times`` are those of the other work, by device. The slow launches are intervals by device. A
    kernel is comparable if it has enough launches both with and without the other work. Launches
    are grouped by name, launch shape, and ``place``.
    """
    kernels = trace.kernels
    starts, ends = bounds(kernels)
    lengths = ends - starts
    overlap = np.zeros(len(kernels), np.int64)
    for device, time in times.items():
        rows = np.flatnonzero(kernels["device"] == device)
        overlap[rows] = time.covered_ns(starts[rows], ends[rows])
    fits = (kernels["activity"] != Activity.COMMUNICATION.value) & (lengths >= SHORT_NS)
    fits &= starts_within(kernels, analyzed)
    if not (fits & (overlap > 0)).any():
        return [], {}, False
    shape = launch_shapes(trace.whole).of_kernel[trace.rows_in_whole("kernels")]
    group, _ = numbered(codes_of(kernels["name"]), shape, place)
    rows = np.flatnonzero(fits)
    rows = rows[np.argsort(group[rows], kind="stable")]
    borders = np.flatnonzero(np.diff(group[rows])) + 1
    found, slowed, is_known = [], [], False
    for launches in np.split(rows, borders):
        overlapped = launches[overlap[launches] >= _MIN_OVERLAP_RATIO * lengths[launches]]
        alone_ns = lengths[launches[overlap[launches] == 0]]
        if min(len(overlapped), len(alone_ns)) < _MIN_LAUNCHES:
            continue
        is_known = True
        overlapped_ns = lengths[overlapped]
        low, middle, high = np.quantile(alone_ns, (0.1, 0.5, 0.9))
        if high > _MAX_SPREAD_FACTOR * low or np.quantile(overlapped_ns, 0.1) <= high:
            continue
        name = str(kernels["name"][int(launches[0])])
        extra_ns, most_ns = (
            int(np.maximum(overlapped_ns - base, 0).sum()) for base in (middle, alone_ns.min())
        )
        found.append(
            _SlowedKernel(
                name=name,
                count=len(overlapped_ns),
                whole_ns=int(overlapped_ns.sum()),
                median_ns=float(np.median(overlapped_ns)),
                alone_ns=middle,
                extra_ns=extra_ns,
                most_ns=most_ns,
            )
        )
        slowed.append(overlapped)
    if not found:
        return [], {}, is_known
    chosen = kernels.select("start_ns", "end_ns", "device").take(np.concatenate(slowed))
    return found, unions_by(chosen, "device"), True
