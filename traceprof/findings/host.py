"""Rules on a host that waits for the GPU or runs other code while the GPU is idle."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Final

import numpy as np

from traceprof.findings.claims import (
    LATER_LAUNCHES_NOTE,
    Claim,
    Kind,
    Times,
    kind_and_model,
    starts_within,
    union_by_device,
    with_upper_bound,
)
from traceprof.findings.context import Context
from traceprof.findings.gaps import main_function, names_of_gaps, notes_on_names
from traceprof.findings.host_work import (
    _MAIN_RATIO,
    COMPUTING,
    DRIVER,
    FILES,
    ON_FUNCTION,
    OPERATORS,
    WORDS,
    advice_for,
    main_work,
)
from traceprof.findings.recurrence import are_few_steps, counted, steps_with
from traceprof.findings.rules import Finding, rule
from traceprof.measures.device.times import devices_of_processes
from traceprof.measures.host.states import are_waits_of_launching_threads, times_before_forward
from traceprof.measures.idle.gaps import LAUNCH_BOUND_NS, find_gaps
from traceprof.measures.idle.losses import DRAINED, held_up, idle_ns_by_gap, within
from traceprof.measures.idle.waits import READS_A_VALUE, find_waits
from traceprof.measures.rows import are_named, bounds, lengths_of, looked_up, unions_by
from traceprof.measures.steps.between import UNKNOWN, between_steps
from traceprof.model.grouping import grouped_by
from traceprof.model.intervals import Intervals
from traceprof.model.results import Note
from traceprof.model.table import Names, Table
from traceprof.model.tables import ABSENT
from traceprof.model.trace import Trace
from traceprof.names.functions import is_function

_MIN_WAITING_RATIO: Final = 0.02
_MIN_REPORTED_RATIO: Final = 0.001
_MIN_BUSY_RATIO: Final = 0.03
_MIN_BEFORE_FORWARD_RATIO: Final = 0.3
_MIN_DOMINANT_RATIO: Final = 0.5
"""A gap with more than this share of the idle time does not recur, so it is a one-time cost."""


@rule(
    "host synchronization",
    "synchronizing calls in the loop that leave the GPU idle",
    "kernels",
    "api_calls",
    show="sync",
)
def host_sync(context: Context) -> Iterator[Finding]:
    """Find synchronizing calls in the loop that leave devices without work."""
    claim = context.idle_for("synchronizing", DRAINED)
    share = context.share(claim)
    if share < _MIN_WAITING_RATIO:
        return
    waits = context.rows(find_waits)
    waits = waits.take(starts_within(waits, context.typical))
    kinds, groups = grouped_by(waits, "name", "pattern")
    usual = np.argsort(-groups.counts, kind="stable")[:3]
    reads = READS_A_VALUE if context.software.has_pytorch else "a few bytes read back"
    called = [
        f"{row['name']} ({reads if row['pattern'] == READS_A_VALUE else row['pattern']})"
        for row in kinds.take(usual).rows()
    ]
    host_ranges = Counter(waits["host_range"].tolist())
    del host_ranges[""]
    inside = context.share(context.idle_for("synchronizing"))
    n_steps = steps_with(context, waits)
    where = "" if n_steps is not None and are_few_steps(context, n_steps) else " in every step"
    lost = union_by_device(context.ranks.each(_lost_by_waits, context.typical))
    claim = with_upper_bound(claim, within(lost, context.analyzed_by_place))
    kind, model = kind_and_model((claim,), LATER_LAUNCHES_NOTE)
    is_search = _tries_algorithms(context, waits, claim.times)
    if is_search and not len(context.steps):
        kind, model = Kind.ONCE, None
    named, _ = notes_on_names(context, claim.times)
    yield Finding(
        title=Note.of(
            f"Host synchronization{' during algorithm search' if is_search else ''} leaves the GPU "
            "idle for {share:ratio} of step time",
            share=share,
        ),
        claims=(claim,),
        kind=kind,
        model=model,
        one_time_ns=context.one_time_ns(claim) if kind is Kind.ONCE else None,
        evidence=(
            _note_on_idle(inside, share - inside),
            *(
                counted(context, waits.take(groups.rows[row]), "call(s) to {call}", call=call)
                for row, call in zip(usual, called, strict=True)
            ),
            *named,
        ),
        action=_TRIES_ALGORITHMS
        if is_search
        else context.advice(
            pytorch=f"Do not read values back{where} (`.item()`, `.cpu()`, `print(loss)`, `if "
            "tensor:`). Accumulate values on the GPU and read them every N steps. Remove "
            "`torch.cuda.synchronize()`.",
            other="Launch the next work before you wait for the previous work. Wait for events "
            "instead of the whole GPU, and read results back less often.",
        ),
        caveat=(
            "If the wait is there to measure time, or if it hides slow launches, the saving is "
            "smaller."
        ),
        window=context.longest_gap("synchronizing", DRAINED),
        ranges=tuple(name for name, _ in host_ranges.most_common(3)),
    )


_TRIES_ALGORITHMS: Final = (
    "Run all shapes once before you measure, and keep shapes constant from step to step. PyTorch "
    "times convolution algorithms here, once per shape (`torch.backends.cudnn.benchmark`). You can "
    "also switch this search off."
)
_COLLECTS: Final = re.compile(r"(?i)^gc([^a-z]|$)|garbage[ _]?collect")
_OF_EVENTS: Final = re.compile(r"^(cuda|cu|hip)EventSynchronize")
_CONVOLVES: Final = re.compile(r"(?i)conv(olution|[1-3]d|$|[^a-z])")


def _tries_algorithms(context: Context, waits: Table, times: Times) -> bool:
    """Return whether most waits are for events, and most of their idle time is in convolutions.

    cuDNN and MIOpen time candidate algorithms there. User code never waits inside an operator.
    """
    if 2 * are_named(waits["name"], _OF_EVENTS).sum() <= len(waits):
        return False
    charged, _ = names_of_gaps(context, times)
    inside = are_named(Names.of(charged["operator"]), _CONVOLVES)
    inside &= ~np.fromiter(map(is_function, charged["operator"]), np.bool_, len(charged))
    return bool(charged["ns"][inside].sum() > _MAIN_RATIO * charged["ns"].sum())


def _lost_by_waits(trace: Trace, analyzed_time: Intervals) -> Times:
    """Return the idle time after synchronizing calls of a trace, by device."""
    calls = trace.whole.api_calls
    starts, ends = bounds(calls)  # a call may end where the analyzed time begins
    calls = calls.take(
        are_waits_of_launching_threads(calls) & (analyzed_time.covered_ns(starts, ends + 1) > 0)
    )
    return held_up(trace, calls, is_all=True)


def _note_on_idle(inside: float, after: float) -> Note:
    """Return a note on idle time inside and after synchronizing calls; small shares are omitted."""
    until = "idle during the synchronizing calls: {inside:ratio} of step time"
    if after < _MIN_REPORTED_RATIO:
        return Note.of(until, inside=inside)
    if inside < _MIN_REPORTED_RATIO:
        return Note("idle from the return of the synchronizing calls until the next launch")
    text = f"{until}, from their return until the next launch: {{after:ratio}}"
    return Note.of(text, inside=inside, after=after)


@rule(
    "CPU work between launches",
    "long gaps in which the CPU neither launches work nor waits for the GPU",
    "kernels",
    "api_calls",
    show="gaps",
)
def host_code(context: Context) -> Iterator[Finding]:
    """Find other host code that runs for a long time while devices are idle."""
    idle = context.idle_for("host")
    if context.share(idle) < _MIN_BUSY_RATIO:
        return
    rest, nothing, single_gaps = idle, Intervals.empty(), list[Claim]()
    # The rest may have a dominant gap again: a program loads, sets up, and ends, once each.
    while context.share(alone := _claim_on_dominant_gap(context, rest)) >= _MIN_BUSY_RATIO:
        single_gaps.append(alone)
        rest = Claim({d: time - alone.times.get(d, nothing) for d, time in rest.times.items()})
    if context.share(rest) >= _MIN_BUSY_RATIO:
        yield _host_code_finding(context, rest, "")
    for number, claim in enumerate(single_gaps):
        yield _host_code_finding(context, claim, "Another long gap" if number else "One long gap")


def _claim_on_dominant_gap(context: Context, idle: Claim) -> Claim:
    """Return a claim on the gap of each device that has most of the time ``idle``.

    The claim is empty if steps are marked: a gap in one step belongs to the rule on slow steps.
    """
    found: dict[int, Intervals] = {}
    if not len(context.steps):
        least_ns = {d: _MIN_DOMINANT_RATIO * time.total_ns for d, time in idle.times.items()}
        gaps = context.rows(_gaps_longer_than, least_ns)
        for device, time in idle.times.items():
            starts, ends = bounds(gaps.take(gaps["device"] == device))
            ns = time.covered_ns(starts, ends)
            if len(ns) and ns.max() > least_ns[device]:
                longest = int(ns.argmax())
                found[device] = time.clip(int(starts[longest]), int(ends[longest]))
    return Claim(found)


def _gaps_longer_than(trace: Trace, least_ns: Mapping[int, float]) -> Table:
    """Return the gaps of a trace that are longer than the minimum of their device."""
    gaps = find_gaps(trace).select("device", "start_ns", "end_ns")
    min_length_ns = np.full(len(gaps), np.inf)
    for device, ns in least_ns.items():
        min_length_ns[gaps["device"] == device] = ns
    return gaps.take(lengths_of(gaps) > min_length_ns)


def _host_code_finding(context: Context, claim: Claim, alone: str) -> Finding:
    """Return the finding on ``claim``; ``alone`` is its name if it is a single gap, else ""."""
    kind = Kind.ONCE if alone else Kind.MEASURED
    main_kind = main_work(context, claim.times)
    if kind is Kind.MEASURED and main_kind in (OPERATORS, COMPUTING):
        kind = Kind.BOUNDED  # operators get faster, but they remain
    named, names = notes_on_names(context, claim.times)
    function = main_function(context, claim.times) if not main_kind else ""
    main_words = f", mostly {WORDS[main_kind]}" if main_kind in WORDS else ""
    main_words = ", mostly {function}" if function else main_words
    gaps = _gaps_of(context, claim)
    before_forward = tuple(_notes_before_forward(context, claim))
    is_between = kind is not Kind.ONCE and _lies_between_steps(context, claim)
    where = "CPU work between steps" if is_between else "CPU work between launches"
    return Finding(
        title=Note.of(
            (alone or where) + f"{main_words}: the GPU is idle for {{share:ratio}} of step time",
            share=context.share(claim),
            **({"function": function} if function else {}),
        ),
        claims=(claim,),
        kind=kind,
        one_time_ns=context.one_time_ns(claim) if kind is Kind.ONCE else None,
        evidence=(
            *(_notes_on_long_gaps(context, gaps) if kind is not Kind.ONCE else ()),
            *before_forward,
            *named,
            *_notes_on_function(context, claim, function),
            *(_notes_on_wait_before(context, claim) if kind is not Kind.ONCE else ()),
        ),
        action=ON_FUNCTION
        if function
        else _advice_between_steps(context, {*names} - {context.steps.source})
        if is_between and main_kind not in (DRIVER, FILES)
        else advice_for(context, main_kind, alone),
        caveat="A CPU that launches kernels very slowly causes the same gaps.",
        window=context.longest_row(gaps) if len(gaps) else "",
        ranges=names,
        other_subjects=("input pipeline",) if before_forward else (),
    )


def _notes_on_function(context: Context, claim: Claim, function: str) -> Iterator[Note]:
    """Yield a note on all idle time in a function, if another finding has a part of it."""
    in_claim, in_all = (
        charged["ns"][np.asarray(charged["operator"] == function)].sum()
        for charged, _ in (
            names_of_gaps(context, times)
            for times in (claim.times, dict.fromkeys(context.devices, context.typical))
        )
    )
    if function and in_all - in_claim > _MIN_BUSY_RATIO * context.analyzed_ns:
        yield context.timed(
            in_all,
            after=" of idle GPU time in {name}, including time after host synchronization",
            name=function,
        )


def _notes_on_wait_before(context: Context, claim: Claim) -> Iterator[Note]:
    """Yield a note on the part of ``claim`` that a wait for the GPU keeps from overlapping."""
    lost = union_by_device(context.ranks.each(_lost_by_waits, context.typical))
    ns = sum((lost[d] & time).total_ns for d, time in claim.times.items() if d in lost)
    if ns >= _MIN_BUSY_RATIO * context.analyzed_ns:
        yield context.timed(
            ns,
            after=" of it would overlap GPU work without waits",
        )


def _advice_between_steps(context: Context, names: Collection[str]) -> str:
    """Return the advice on idle time between steps, in which the CPU is in ranges ``names``."""
    if any(map(_COLLECTS.search, names)):
        return (
            "Control garbage collection: call `gc.disable()` before the loop, and `gc.collect()` "
            "every N steps, in the same step on all ranks."
        )
    return (
        "Find out whether the loop fetches a batch, evaluates, or logs there: name its parts "
        f"({context.software.recorder.how_to('parts')}). Fetch batches in workers ahead of time, "
        "and evaluate and log less often."
    )


def _lies_between_steps(context: Context, claim: Claim) -> bool:
    """Return whether most of ``claim`` is between the range of a step and the next range.

    The position relative to the loop is known even if nothing was recorded there.
    """
    found = context.ranks.each(_between_unknown)
    between_ns = sum(_overlap_ns(claim, between, devices) for between, devices in found)
    return between_ns > _MAIN_RATIO * claim.total_ns


def _overlap_ns(
    claim: Claim, times: Mapping[int, Intervals], devices_of: Mapping[int, Iterable[int]]
) -> int:
    """Return the ns of ``claim`` that are in the ``times`` of the process of the device."""
    return sum(
        (claim.times[device] & time).total_ns
        for process, time in times.items()
        for device in devices_of.get(process, ())
        if device in claim.times
    )


def _between_unknown(trace: Trace) -> tuple[dict[int, Intervals], Mapping[int, Iterable[int]]]:
    """Return the times between steps with an unknown cause, and the devices, both by process."""
    rows = between_steps(trace)
    return unions_by(rows.take(rows["cause"] == UNKNOWN)), devices_of_processes(trace)


def _gaps_of(context: Context, claim: Claim) -> Table:
    """Return the gaps of the typical time that overlap with ``claim``."""
    gaps = context.rows(_busy_gaps, context.typical)
    chosen = np.zeros(len(gaps), np.bool_)
    for device, time in claim.times.items():
        rows = np.flatnonzero(gaps["device"] == device)
        chosen[rows] = time.covered_ns(*bounds(gaps.take(rows))) > 0
    return gaps.take(chosen)


def _busy_gaps(trace: Trace, typical: Intervals) -> Table:
    """Return device, start_ns, and end_ns of the typical gaps in which the host ran code."""
    gaps = find_gaps(trace).select("device", "start_ns", "end_ns")
    is_typical = typical.covered_ns(*bounds(gaps)) > 0
    return gaps.take((idle_ns_by_gap(trace, "host") > 0) & is_typical)


def _notes_on_long_gaps(context: Context, gaps: Table) -> Iterator[Note]:
    """Yield a note on the number of gaps longer than `LAUNCH_BOUND_NS`, and their median."""
    gaps = gaps.take(lengths_of(gaps) > LAUNCH_BOUND_NS)
    lengths = lengths_of(gaps)
    processes = {device: process for process, device in context.process_devices}
    if len(lengths):
        yield counted(
            context,
            gaps.assign(process=looked_up(gaps["device"], processes, ABSENT)),
            "gap(s) longer than {least:ns}",
            " (median {median:ns})" if len(lengths) > 1 else " ({median:ns})",
            is_of_host=False,
            least=LAUNCH_BOUND_NS,
            median=float(np.median(lengths)),
        )


def _notes_before_forward(context: Context, claim: Claim) -> Iterator[Note]:
    """Yield a note if much of ``claim`` is before forward passes, where batches are fetched."""
    before_ns = sum(
        _overlap_ns(claim, times_before_forward(part), devices_of_processes(part))
        for part in context.ranks
    )
    if before_ns > _MIN_BEFORE_FORWARD_RATIO * claim.total_ns:
        yield Note.of(
            "{share:ratio} of this time is before a forward pass (possibly batch fetching)",
            share=before_ns / claim.total_ns,
        )
