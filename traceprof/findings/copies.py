"""Rules on copies and memsets that block the host, are staged, are slow, or are exposed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

import numpy as np

from traceprof.findings.amounts import COPIES, TRANSFERS
from traceprof.findings.claims import (
    LATER_LAUNCHES_NOTE,
    Claim,
    Kind,
    Times,
    kind_and_model,
    union_by_device,
    with_upper_bound,
)
from traceprof.findings.context import Context, CopyFilter
from traceprof.findings.recurrence import counted, size_in_words
from traceprof.findings.rules import Finding, rule
from traceprof.hardware.catalogue import Link
from traceprof.measures.device.peaks import peak_of
from traceprof.measures.device.times import trace_of_device
from traceprof.measures.host.launches import are_migrations, launches_of
from traceprof.measures.idle.gaps import LAUNCH_BOUND_NS
from traceprof.measures.idle.losses import held_up, within
from traceprof.measures.rows import Bools, are_named, lengths_of
from traceprof.measures.traffic.copies import copies_with_calls
from traceprof.model.intervals import Intervals
from traceprof.model.results import Note
from traceprof.model.table import Table
from traceprof.model.trace import Trace

_MIN_SHARE_RATIO: Final = 0.02
_MIN_PAGEABLE_RATIO: Final = 0.01
_MIN_RETURNS: Final = 10
_MIN_RETURNED_RATIO: Final = 0.9
_MIN_REPORTED_RATIO: Final = 0.001
_TRANSFERS: Final = ("h2d", "d2h", "p2p")
HOST_TRANSFERS: Final = ("h2d", "d2h")
_MAX_STAGED_BYTES: Final = 64_000
"""The CUDA runtime stages host-to-device copies up to this size and returns immediately."""
MIN_LARGE_BYTES: Final = 1_000_000
_DEFAULT_BYTES_PER_S: Final = 12e9
"""The rate of pinned copies on PCIe 3.0 x16, which is assumed if the link is unknown."""
REACHED_PEAK_RATIO: Final = 0.8
"""The share of a link's peak that large pinned copies reach."""


def _is_blocking(copies: Table, calls: str) -> Bools:
    """Return which copies a synchronous runtime call with the prefix ``calls`` made."""
    pattern = re.compile(rf"^(cuda|hip|cu){calls}")
    return are_named(copies["api"], pattern) & ~are_asynchronous(copies)


def are_asynchronous(copies: Table) -> Bools:
    """Return which copies an asynchronous call made; with pageable memory, they still block."""
    return are_named(copies["api"], re.compile("Async"))


def _count_and_rate(context: Context, copies: Table, words: str) -> Note:
    """Return a note on the number of copies, their bytes, and their rate."""
    total_ns = int(lengths_of(copies).sum())
    n_bytes = int(np.maximum(copies["n_bytes"], 0).sum())
    rate = n_bytes / (total_ns / 1e9) if total_ns else None
    size, moved = size_in_words(context, n_bytes, len(copies))
    suffix = f" ({size} at {{rate:bytes/s}})"
    return counted(context, copies, words, suffix, is_of_host=False, moved=moved, rate=rate)


def _call_time(context: Context, copies: Table) -> Note:
    """Return a note on the CPU time in the calls that made the copies."""
    return context.timed(int(copies["call_ns"].sum()), "CPU time in these calls: ")


def are_blocking_copies(copies: Table) -> Bools:
    """Return which copies ``cudaMemcpy`` and similar calls made; ``api`` is the name of the call.

    Small host-to-device copies and copies within a device do not block, so they are excluded.
    """
    moved = copies["direction"].isin((*_TRANSFERS, "h2h"))
    staged = (copies["direction"] == "h2d") & (copies["n_bytes"] <= _MAX_STAGED_BYTES)
    return np.asarray(_is_blocking(copies, "Mem") & moved & ~staged, np.bool_)


@rule(
    "blocking copies",
    "copies that block the CPU",
    "copies",
    "api_calls",
    about=TRANSFERS,
    show="copies",
)
def blocking_copies(context: Context) -> Iterator[Finding]:
    """Find copies whose call returns only when the copy is done."""
    # Another rule covers copies of pageable memory.
    pinned = context.copies(_are_blocking_and_pinned)
    claim = _claim_of_calls(context, pinned, _are_blocking_and_pinned)
    share = context.share(claim)
    if pinned.empty or share < _MIN_SHARE_RATIO:
        return
    kind, model = kind_and_model((claim,), LATER_LAUNCHES_NOTE)
    calls = ", ".join(sorted(pinned["api"].distinct()))
    yield Finding(
        title=Note.of(
            "Blocking copies take {share:ratio} of step time: no kernel runs, or the GPU waits for "
            "launches that they delay",
            share=share,
        ),
        claims=(claim,),
        kind=kind,
        model=model,
        evidence=(
            counted(context, pinned, "cop(y|ies) by {calls}", is_of_host=False, calls=calls),
            _call_time(context, pinned),
        ),
        action=context.advice(
            pytorch="Copy with `non_blocking=True` (`cudaMemcpyAsync`) on a separate stream.",
            other="Copy with `cudaMemcpyAsync` on a separate stream.",
        ),
        caveat="The CPU must still wait for data that it needs immediately.",
        window=context.longest_row(pinned),
    )


def _are_blocking_and_pinned(copies: Table) -> Bools:
    return are_blocking_copies(copies) & ~_touches(copies, "pageable")


def are_blocking_memsets(copies: Table) -> Bools:
    """Return which rows are memsets of pinned or managed memory by a synchronous call."""
    waited_for = copies["dst_kind"].isin(("pinned", "managed"))
    is_memset = copies["direction"] == "memset"
    return np.asarray(_is_blocking(copies, "Memset") & waited_for & is_memset, np.bool_)


@rule(
    "blocking copies",
    "memsets that block the CPU",
    "copies",
    "api_calls",
    about=COPIES,
    show="copies",
)
def blocking_memsets(context: Context) -> Iterator[Finding]:
    """Find memsets whose call returns only when the memset is done."""
    memsets = context.copies(are_blocking_memsets)
    claim = _claim_of_calls(context, memsets, are_blocking_memsets)
    share = context.share(claim)
    if memsets.empty or share < _MIN_SHARE_RATIO:
        return
    yield Finding(
        title=Note.of("Blocking memsets take {share:ratio} of step time", share=share),
        claims=(claim,),
        kind=Kind.BOUNDED,
        evidence=(
            counted(context, memsets, "memset(s) of pinned or managed memory", is_of_host=False),
        ),
        action="Use `cudaMemsetAsync`, or skip the memset if the memory is overwritten anyway.",
        caveat="The first access to managed memory takes time in any case.",
    )


def are_pageable(copies: Table) -> Bools:
    """Return which copies are to or from pageable host memory."""
    moved = copies["direction"].isin(HOST_TRANSFERS)
    return np.asarray(_touches(copies, "pageable") & moved, np.bool_)


def _touches(copies: Table, kind: str) -> Bools:
    """Return which copies have a source or destination of a memory kind."""
    return np.asarray((copies["src_kind"] == kind) | (copies["dst_kind"] == kind), np.bool_)


@rule(
    "pinned memory",
    "asynchronous copies from or to pageable memory",
    "copies",
    "api_calls",
    about=TRANSFERS,
    show="copies",
)
def pageable_copies(context: Context) -> Iterator[Finding]:
    """Find asynchronous copies of pageable memory, which are staged and block the host."""
    yield from _pageable_finding(context, "Asynchronous", _are_pageable_and_asynchronous)


@rule(
    "pinned memory",
    "blocking copies from or to pageable memory",
    "copies",
    about=TRANSFERS,
    show="copies",
)
def unpinned_memory(context: Context) -> Iterator[Finding]:
    """Find blocking copies of pageable memory."""
    yield from _pageable_finding(context, "Blocking", _are_pageable_and_blocking)


def _pageable_finding(context: Context, manner: str, choose: CopyFilter) -> Iterator[Finding]:
    """Yield the finding on the copies that ``choose`` selects."""
    copies = context.copies(choose)
    claim = _claim_of_calls(context, copies, choose)
    share = context.share(claim)
    late = share - context.share(context.unclaimed(context.exposed(copies)))
    if copies.empty or share < _MIN_PAGEABLE_RATIO:
        return
    kind, model = kind_and_model((claim,), LATER_LAUNCHES_NOTE)
    returned = tuple(_return_notes(copies))
    yield Finding(
        title=Note.of(
            f"{manner} copies of pageable memory: {{share:ratio}} of step time is exposed transfers"
            + (" and waits for launches that they delay" if late >= _MIN_REPORTED_RATIO else ""),
            share=share,
        ),
        claims=(claim,),
        kind=kind,
        model=model,
        evidence=(
            _count_and_rate(context, copies, "cop(y|ies) of pageable memory"),
            _call_time(context, copies),
            *_late_notes(late),
            *returned,
        ),
        action=(_KEEP_ON_GPU if returned and not context.software.has_pytorch else "")
        + context.advice(
            pytorch="Pin the memory (`DataLoader(pin_memory=True)`, `tensor.pin_memory()`), and "
            "copy with `non_blocking=True` on a separate stream.",
            other="Pin the memory (`cudaMallocHost`, `cudaHostRegister`), and copy with "
            "`cudaMemcpyAsync` on a separate stream.",
        ),
        caveat="Pinned memory cannot be swapped and is slow to allocate. Reuse it.",
        window=context.longest_row(copies),
        other_subjects=("transfers", "blocking copies"),
    )


_KEEP_ON_GPU: Final = (
    "Keep data that is copied back and forth on the GPU (OpenMP: `target data`, OpenACC: `data`, "
    "otherwise: memory that is allocated once), and copy it once at the end. For other data: "
)


def _return_notes(copies: Table) -> Iterator[Note]:
    """Yield a note if the GPU sends back as much data as it receives, in many copies."""
    sent, returned = (copies["n_bytes"][copies["direction"] == side] for side in ("h2d", "d2h"))
    smaller, larger = sorted((int(sent.sum()), int(returned.sum())))
    if min(len(sent), len(returned)) >= _MIN_RETURNS and smaller >= _MIN_RETURNED_RATIO * larger:
        text = "the GPU sends back as much data ({back:bytes}) as it receives ({to:bytes})"
        yield Note.of(text, back=int(returned.sum()), to=int(sent.sum()))


def _late_notes(late: float) -> Iterator[Note]:
    """Yield a note on idle time due to late launches if its share ``late`` is large enough."""
    if late >= _MIN_REPORTED_RATIO:
        text = "the GPU waits {late:ratio} of step time for launches that are late because the CPU "
        yield Note.of(f"{text}is blocked in these calls", late=late)


def _are_pageable_and_asynchronous(copies: Table) -> Bools:
    return are_pageable(copies) & are_asynchronous(copies)


def _are_pageable_and_blocking(copies: Table) -> Bools:
    return are_pageable(copies) & ~are_asynchronous(copies)


def _claim_of_calls(context: Context, copies: Table, choose: CopyFilter) -> Claim:
    """Return a claim on blocking ``copies`` and late launches, with its range."""
    if copies.empty:
        return context.unclaimed({})
    idle = (context.ranks.each(_held_up_by, context.typical, choose, i) for i in (False, True))
    exposed, (late, lost) = context.exposed(copies), map(union_by_device, idle)
    return with_upper_bound(
        context.unclaimed(union_by_device((exposed, late))), within(lost, context.analyzed_by_place)
    )


def _held_up_by(trace: Trace, analyzed_time: Intervals, choose: CopyFilter, is_all: bool) -> Times:
    """Return the idle times that begin in calls which make the chosen copies, by device.

    Copies of at most `_MAX_STAGED_BYTES` are excluded. Such host-to-device copies return
    immediately. For other small copies, the host waits for the data and not for the copy.
    """
    copies = copies_with_calls(trace)
    chosen = choose(copies) & (copies["n_bytes"] > _MAX_STAGED_BYTES)
    launches = launches_of(trace, "copies")
    chosen &= launches.is_known & (analyzed_time.covered_ns(launches.start_ns, launches.end_ns) > 0)
    names = ("process", "start_ns", "end_ns")
    calls = Table({name: getattr(launches, name)[chosen] for name in names})
    # The call returns when the last piece is staged, before that piece is copied.
    return held_up(trace, calls, LAUNCH_BOUND_NS, is_all=is_all)


@rule(
    "transfers",
    "asynchronous copies that are not overlapped with compute",
    "copies",
    about=TRANSFERS,
    show="copies",
)
def exposed_copies(context: Context) -> Iterator[Finding]:
    """Find asynchronous copies of pinned memory that are not overlapped with compute."""
    copies = context.copies(_are_other_asynchronous)
    claim = context.unclaimed(context.exposed(copies))
    # Copies could overlap with kernels during which no copy runs yet.
    free = ((time.kernel - time.transfer) & context.typical for time in context.times.values())
    free_ns = sum(time.total_ns for time in free)
    claim = Claim(claim.times, claim.claim_kind, min(1.0, free_ns / max(1, claim.total_ns)))
    share = context.share(claim)
    if share < _MIN_SHARE_RATIO:
        return
    # If too few kernels could overlap, only moving less data helps, by an unknown amount.
    is_hideable = share * claim.saved_ratio >= _MIN_SHARE_RATIO
    yield Finding(
        title=Note.of(
            "Exposed copies take {share:ratio} of step time (asynchronous, not overlapped with "
            "kernels)",
            share=share,
        ),
        claims=(claim,),
        kind=Kind.BOUNDED if is_hideable else Kind.NONE,
        evidence=(
            _count_and_rate(context, copies, "cop(y|ies)"),
            *_direction_notes(context, copies),
            *_hideable_notes(claim.saved_ratio),
        ),
        action=_overlap_advice(context, copies)
        if is_hideable
        else "Move less data: keep reused data on the GPU, and prepare data there.",
        caveat="A copy cannot overlap with the kernel that needs its data.",
        window=context.longest_row(copies),
    )


_PREFETCH: Final = (
    "Copy the next batch during the current step: prefetch it on a separate stream with "
    "`non_blocking=True`. Or move less data: use smaller dtypes, or prepare data on the GPU."
)
_STREAM: Final = (
    "Copy the weights and states that the next layers need during the current layer: prefetch them "
    "on a separate stream with `non_blocking=True`. Or keep more of them on the GPU (fewer bits)."
)
_TWO_BUFFERS: Final = (
    "Copy on a separate stream while the GPU computes on the previous data (two buffers), or move "
    "less data."
)
_RETURN: Final = (
    "Copy results to pinned memory on a separate stream during the next GPU work "
    "(`non_blocking=True`). Or copy less: reduce or select the values on the GPU."
)
_MAX_COPIES_PER_BATCH: Final = 8


def _overlap_advice(context: Context, copies: Table) -> str:
    """Return the advice for results, for streamed weights (many large copies), or for batches."""
    if not context.software.has_pytorch:
        return _TWO_BUFFERS
    is_sent, is_returned = (copies["direction"] == way for way in HOST_TRANSFERS)
    sent_ns, returned_ns = (
        sum(time.total_ns for time in context.exposed(copies.take(chosen)).values())
        for chosen in (is_sent, is_returned)
    )
    if returned_ns > sent_ns:
        return _RETURN
    n_large = int((is_sent & (copies["n_bytes"] >= MIN_LARGE_BYTES)).sum())
    each = n_large / context.n_steps / max(1, len(context.devices))
    is_many = each > _MAX_COPIES_PER_BATCH if len(context.steps) else not context.is_training
    return _STREAM if is_many else _PREFETCH


def _are_other_asynchronous(copies: Table) -> Bools:
    """Return which copies are asynchronous and not covered by other rules."""
    migrated = are_migrations(copies, copies["api"] != "")
    is_other = are_blocking_copies(copies) | are_pageable(copies) | migrated
    return np.asarray(copies["direction"].isin(_TRANSFERS) & ~is_other, np.bool_)


def _hideable_notes(ratio: float) -> Iterator[Note]:
    """Yield a note if kernels can hide only a part of the copies; ``ratio`` is that part."""
    if ratio < _MIN_REPORTED_RATIO:
        yield Note("no kernels run that could hide these copies")
    elif ratio < 1:
        text = "kernels can hide at most {hidden:ratio} of this time; only moving less data saves"
        yield Note.of(f"{text} the rest", hidden=ratio)


def _direction_notes(context: Context, copies: Table) -> Iterator[Note]:
    """Yield the exposed time of each copy direction, the longest first."""
    directions = copies["direction"]
    exposed = {
        direction: context.unclaimed(context.exposed(copies.take(directions == direction))).total_ns
        for direction in directions.distinct()
    }
    for direction, ns in sorted(exposed.items(), key=lambda item: -item[1]):
        if ns:
            yield context.timed(ns, "{direction}: ", direction=direction)


def are_large_and_pinned(copies: Table) -> Bools:
    """Return which copies are large, between CPU and GPU, and of pinned memory."""
    is_moved = copies["direction"].isin(HOST_TRANSFERS) & (copies["n_bytes"] >= MIN_LARGE_BYTES)
    return np.asarray(_touches(copies, "pinned") & is_moved, np.bool_)


def usual_rate(context: Context) -> tuple[float, str]:
    """Return the expected rate of large copies in bytes per s, and its origin in words."""
    ranks, devices = context.ranks, context.devices
    peaks = [peak_of(trace_of_device(ranks, device), device, Link.PCIE) for device in devices]
    known_peaks = [peak for peak in peaks if peak is not None]
    if not known_peaks:
        return _DEFAULT_BYTES_PER_S, "the rate of PCIe 3.0 x16, because the link is unknown"
    slowest = min(known_peaks, key=lambda peak: peak.bytes_per_s)
    return REACHED_PEAK_RATIO * slowest.bytes_per_s, f"80% of {slowest}"
