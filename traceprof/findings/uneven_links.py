"""Rules on slow copies between CPU and GPU: slower than the link, or than those of other GPUs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from traceprof.findings.amounts import TRANSFERS, AbsentError, NotApplicableError
from traceprof.findings.claims import ClaimKind, Kind
from traceprof.findings.context import Context
from traceprof.findings.copies import (
    HOST_TRANSFERS,
    MIN_LARGE_BYTES,
    REACHED_PEAK_RATIO,
    are_large_and_pinned,
    usual_rate,
)
from traceprof.findings.recurrence import counted
from traceprof.findings.rules import Finding, rule
from traceprof.measures.rows import lengths_of, rows_by
from traceprof.model.results import Note
from traceprof.model.table import Table

_MIN_SHARE_RATIO: Final = 0.01
_MIN_COPIES: Final = 3
_MAX_SLOW_RATIO: Final = 0.75
_MAX_RATE_RATIO: Final = 0.6
"""Copies below this share of the rate of the link are slow."""


@rule(
    "interconnect bandwidth",
    "GPUs whose copies are slower than those of the other GPUs",
    "copies",
    about=TRANSFERS,
    show="copies",
)
def uneven_links(context: Context) -> Iterator[Finding]:
    """Find GPUs whose copies of pinned memory run at a lower rate than on the fastest GPU."""
    if len(context.devices) < 2:
        raise NotApplicableError("the trace contains one GPU: pass the traces of all ranks")
    pinned = context.copies(are_large_and_pinned)
    by_direction = {way: pinned.take(pinned["direction"] == way) for way in HOST_TRANSFERS}
    rates_of = {direction: _rates(copies) for direction, copies in by_direction.items()}
    if max(map(len, rates_of.values())) < 2:
        raise AbsentError("no large copies of pinned memory on several GPUs")
    for direction, rates in rates_of.items():
        copies = by_direction[direction]
        fastest = max(rates.values(), default=0.0)
        slow = sorted(d for d, rate in rates.items() if rate < _MAX_SLOW_RATIO * fastest)
        if not slow:
            continue
        times = context.exposed(copies.take(np.isin(copies["device"], slow)))
        claims = tuple(
            context.unclaimed({device: times[device]}, ClaimKind.LOST, 1 - rates[device] / fastest)
            for device in slow
        )
        saved = sum(context.share(claim) * claim.saved_ratio for claim in claims)
        if saved < _MIN_SHARE_RATIO:
            continue
        others = [rate for device, rate in rates.items() if device not in slow]
        yield Finding(
            title=Note.of(
                f"Slower copies on GPU {{slow}}: {direction} at {{rate:bytes/s}}, on the other "
                "GPUs at {usual:bytes/s}",
                slow=", ".join(map(str, slow)),
                rate=float(np.median([rates[device] for device in slow])),
                usual=float(np.median(others)),
            ),
            claims=claims,
            kind=Kind.BOUNDED,
            evidence=(
                Note.of(
                    "copies of pinned memory, at least 1 MB each: {n:count} on these GPUs",
                    n=int(np.isin(copies["device"], slow).sum()),
                ),
            ),
            action="Run each rank on the CPU socket of its GPU: `nvidia-smi topo -m` shows the "
            "NUMA node, `numactl --cpunodebind=NODE --membind=NODE` selects it. Or check the PCIe "
            "link (`nvidia-smi -q -d PCIE`).",
            caveat="GPUs behind one switch share its link.",
            window=context.longest_row(copies.take(np.isin(copies["device"], slow))),
        )


def _rates(copies: Table) -> dict[int, float]:
    """Return the rate of each device with enough copies, in bytes/s."""
    lengths = lengths_of(copies)
    return {
        device: float(copies["n_bytes"][rows].sum() / max(1, lengths[rows].sum()) * 1e9)
        for device, rows in rows_by(copies, "device").items()
        if len(rows) >= _MIN_COPIES
    }


@rule(
    "interconnect bandwidth",
    "copies of pinned memory below the interconnect bandwidth",
    "copies",
    about=TRANSFERS,
    show="copies",
)
def slow_link(context: Context) -> Iterator[Finding]:
    """Find copies of pinned memory that are much slower than the interconnect."""
    pinned = context.copies(are_large_and_pinned)
    if pinned.empty:
        raise AbsentError("no large copies of pinned memory in the analyzed time")
    usual, why = usual_rate(context)
    for direction in HOST_TRANSFERS:
        copies = pinned.take(pinned["direction"] == direction)
        total_ns = int(lengths_of(copies).sum())
        if not total_ns:
            continue
        rate = int(copies["n_bytes"].sum()) / (total_ns / 1e9)
        factors = (1, _MAX_RATE_RATIO, 1 / REACHED_PEAK_RATIO)
        saved, least, most = (max(0.0, 1 - rate / (usual * factor)) for factor in factors)
        claim = context.unclaimed(context.exposed(copies), ClaimKind.LOST, saved, (least, most))
        share = context.share(claim)
        if rate >= _MAX_RATE_RATIO * usual or share * claim.saved_ratio < _MIN_SHARE_RATIO:
            continue
        words = "cop(y|ies) of at least {least:bytes}"
        yield Finding(
            title=Note.of(
                f"Slow link: {direction} copies of pinned memory run at {{rate:bytes/s}}", rate=rate
            ),
            claims=(claim,),
            kind=Kind.ESTIMATED,
            model=Note.of("The copies reach {why}. Range: 60–125% of this rate.", why=why),
            evidence=(
                counted(context, copies, words, is_of_host=False, least=MIN_LARGE_BYTES),
                Note.of("typical rate: {usual:bytes/s} ({why})", usual=usual, why=why),
                Note.of("{share:ratio} of step time is not overlapped with kernels", share=share),
            ),
            action="Check the PCIe link (`nvidia-smi -q -d PCIE`: generation and width), the slot, "
            "NUMA placement (`numactl`), and other traffic on the same switch.",
            caveat="GPUs behind one switch share its link.",
        )
