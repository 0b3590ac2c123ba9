"""A rule on managed memory whose pages migrate on access, without a launch call."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from traceprof.findings.amounts import COPIES, AbsentError
from traceprof.findings.claims import ClaimKind, Kind, Times, starts_within, union_by_device
from traceprof.findings.context import Context
from traceprof.findings.copies import usual_rate
from traceprof.findings.recurrence import size_in_words
from traceprof.findings.rules import Finding, rule
from traceprof.measures.host.launches import are_migrations
from traceprof.measures.idle.gaps import LAUNCH_BOUND_NS
from traceprof.measures.rows import bounds, lengths_of, unions_by
from traceprof.measures.traffic.copies import copies_with_calls
from traceprof.model.intervals import Intervals
from traceprof.model.results import Note
from traceprof.model.table import Table
from traceprof.model.trace import Trace

_MIN_SHARE_RATIO: Final = 0.02


@rule(
    "managed memory",
    "pages of managed memory that migrate on access",
    "copies",
    about=COPIES,
    show="copies",
)
def managed_memory(context: Context) -> Iterator[Finding]:
    """Find page migrations that devices wait for, between kernels or during kernels."""
    moved = context.rows(_migrations, context.typical)
    if moved.empty:
        raise AbsentError("no page of managed memory migrated in the analyzed time")
    bursts = union_by_device(context.ranks.each(_bursts, context.typical))
    kernels = {device: context.times[device].compute for device in bursts}
    n_bytes = int(np.maximum(moved["n_bytes"], 0).sum())
    rate, why = usual_rate(context)
    waiting = context.unclaimed({device: time - kernels[device] for device, time in bursts.items()})
    stalled_times = {device: time & kernels[device] for device, time in bursts.items()}
    stalled = context.unclaimed(stalled_times, ClaimKind.COMPUTE, between=(0.0, 1.0))
    # Lower bound: all pages move at the usual rate, without overlap.
    min_ratio = 1 - n_bytes / rate * 1e9 / max(1, waiting.total_ns)
    waiting = context.unclaimed(waiting.times, between=(max(0.0, min_ratio), 1.0))
    share = context.share(waiting) + context.share(stalled)
    if share < _MIN_SHARE_RATIO:
        return
    copied_ns = int(lengths_of(moved).sum())
    size, n_moved = size_in_words(context, n_bytes, len(moved))
    by_direction = {
        name: int((moved["direction"] == name).sum()) for name in moved["direction"].distinct()
    }
    yield Finding(
        title=Note.of(
            "Managed memory: the GPU waits for page migrations for {share:ratio} of step time",
            share=share,
        ),
        claims=(waiting, stalled),
        kind=Kind.ESTIMATED,
        model=Note.of(
            "Pages migrate ahead of time, overlapped with kernels. Lower bound: pages migrate at "
            "{rate:bytes/s} ({why}) without overlap, and kernels do not wait for pages today.",
            rate=rate,
            why=why,
        ),
        evidence=(
            context.counted(
                len(moved),
                "page migration(s)",
                f" without a launch call ({size} at {{rate:bytes/s}})",
                moved=n_moved,
                rate=n_bytes / (copied_ns / 1e9) if copied_ns else None,
            ),
            *(
                context.counted(n, "{direction} migration(s)", direction=direction)
                for direction, n in sorted(by_direction.items())
            ),
            Note.of(
                "between kernels: {idle:ratio} of step time, during kernels: {inside:ratio}",
                idle=context.share(waiting),
                inside=context.share(stalled),
            ),
        ),
        action="Move pages before they are needed (`cudaMemPrefetchAsync`), give usage hints "
        "(`cudaMemAdvise`), or use GPU memory with explicit copies from pinned memory.",
        caveat="Data larger than the GPU memory migrates in any case. Tracing slows page faults "
        "down.",
        window=context.longest_of(*_ends(bursts)),
    )


def _ends(bursts: Times) -> tuple[np.ndarray, np.ndarray]:
    """Return the start times and the end times of all intervals in ``bursts``."""
    times = list(bursts.values())
    return (
        np.concatenate([time.starts for time in times]),
        np.concatenate([time.ends for time in times]),
    )


def _migrations(trace: Trace, analyzed_time: Intervals) -> Table:
    """Return the page migrations of a trace in the analyzed time."""
    copies = copies_with_calls(trace)
    chosen = starts_within(copies, analyzed_time) & are_migrations(copies, copies["api"] != "")
    return copies.select("start_ns", "end_ns", "device", "direction", "n_bytes").take(chosen)


def _bursts(trace: Trace, analyzed_time: Intervals) -> dict[int, Intervals]:
    """Return the times of page migrations by device, including short pauses between page faults."""
    moved = _migrations(trace, analyzed_time)
    closed = unions_by(moved.assign(end_ns=bounds(moved)[1] + LAUNCH_BOUND_NS), "device")
    # Remove the pause that was added after the last migration of each burst.
    return {
        device: Intervals(time.starts, time.ends - LAUNCH_BOUND_NS)
        for device, time in closed.items()
    }
