"""Copies of pinned memory that are far slower than any current link."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import pandas as pd

from traceprof.analysis.advice.findings.base import Finding, Rule
from traceprof.analysis.advice.findings.claims import Kind
from traceprof.analysis.advice.findings.context import Context
from traceprof.hardware.catalogue import Link
from traceprof.measures.device.peaks import peak_of
from traceprof.measures.device.times import part_of_device
from traceprof.model.results import Note

__all__ = ["RULE"]

_LEAST: Final = 0.01
_LARGE_BYTES: Final = 1_000_000
_USUAL_BYTES_PER_S: Final = 12e9
"""What pinned copies reach on PCIe 3.0 x16, where nobody knows the link."""
_USUAL_SHARE: Final = 0.8
"""The share of a link's peak that large pinned copies reach."""
_SLOW: Final = 0.6
_DIRECTIONS: Final = ("h2d", "d2h")


def _usual_rate(context: Context) -> tuple[float, str]:
    """Return the rate that large copies should reach, in bytes per s, and why."""
    peaks = [
        peak_of(part_of_device(context.ranks, device), device, Link.PCIE)
        for device in context.devices
    ]
    known = [peak for peak in peaks if peak is not None]
    if not known:
        return _USUAL_BYTES_PER_S, "what PCIe 3.0 x16 reaches, for want of knowing the link"
    slowest = min(known, key=lambda peak: peak.bytes_per_s)
    return _USUAL_SHARE * slowest.bytes_per_s, f"80 % of {slowest}"


def _check(context: Context) -> Iterator[Finding]:
    pinned = context.copies(_large_of_pinned_memory)
    usual, why = _usual_rate(context)
    for direction in _DIRECTIONS:
        own = pinned[pinned["direction"] == direction]
        total_ns = int((own["end_ns"] - own["start_ns"]).sum())
        if not total_ns:
            continue
        rate = int(own["n_bytes"].sum()) / (total_ns / 1e9)
        claim = context.left(context.exposed(own), saved_ratio=max(0.0, 1 - rate / usual))
        share = context.share(claim)
        if rate >= _SLOW * usual or share * claim.saved_ratio < _LEAST:
            continue
        yield Finding(
            title=Note.of(
                f"slow link: {direction} copies of pinned memory run at {{rate:bytes/s}}", rate=rate
            ),
            claims=(claim,),
            kind=Kind.ESTIMATED,
            model=Note.of("{why} would be reached", why=why),
            evidence=(
                context.counted(
                    len(own), "cop(y|ies) of at least {least:bytes}", least=_LARGE_BYTES
                ),
                Note.of("{usual:bytes/s} are usual ({why})", usual=usual, why=why),
                Note.of("{share:ratio} of the time nothing hides them", share=share),
            ),
            action=context.worded(
                "check the link (nvidia-smi -q -d PCIE: generation and width now and at most), "
                "the slot, NUMA placement (numactl), and other traffic on the same switch"
            ),
            caveat="many GPUs behind one switch share its link",
        )


def _large_of_pinned_memory(copies: pd.DataFrame) -> pd.DataFrame:
    is_pinned = (copies["src_kind"] == "pinned") | (copies["dst_kind"] == "pinned")
    is_moved = copies["direction"].isin(_DIRECTIONS)
    return copies[is_pinned & is_moved & (copies["n_bytes"] >= _LARGE_BYTES)]


RULE = Rule(
    name="slow_link",
    subject="links",
    summary="copies of pinned memory below the speed of the link",
    needs=("copies",),
    show="copies",
    check=_check,
)
