"""Copies of pinned memory that are far slower than any current link."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from traceprof.analysis.findings.base import Finding, Rule
from traceprof.analysis.findings.context import Context
from traceprof.units import format_bytes, format_rate, format_ratio

__all__ = ["RULE"]

_LEAST: Final = 0.01
_LARGE_BYTES: Final = 1_000_000
_USUAL_BYTES_PER_S: Final = 12e9
"""What pinned copies reach on PCIe generation 3 with 16 lanes."""
_SLOW: Final = 0.6


def _check(context: Context) -> Iterator[Finding]:
    copies = context.copies
    pinned = copies[(copies["src_kind"] == "pinned") | (copies["dst_kind"] == "pinned")]
    for direction in ("h2d", "d2h"):
        own = pinned[(pinned["direction"] == direction) & (pinned["n_bytes"] >= _LARGE_BYTES)]
        total_ns = int((own["end_ns"] - own["start_ns"]).sum())
        if not total_ns:
            continue
        rate = int(own["n_bytes"].sum()) / (total_ns / 1e9)
        exposed = context.exposed_ratio(own)
        ratio = exposed * (1 - rate / _USUAL_BYTES_PER_S)
        if rate >= _SLOW * _USUAL_BYTES_PER_S or ratio < _LEAST:
            continue
        yield Finding(
            rule=RULE.name,
            title=f"slow link: {direction} copies of pinned memory run at {format_rate(rate)}",
            saving_ratio=ratio,
            saving_ns=context.saving_ns(ratio),
            evidence=(
                f"{context.per_step(len(own))} copies of at least {format_bytes(_LARGE_BYTES)}; "
                f"PCIe 3.0 x16 reaches about {format_rate(_USUAL_BYTES_PER_S)}",
                f"{format_ratio(exposed)} of the time nothing hides them",
            ),
            action=(
                "check the link (nvidia-smi -q -d PCIE: generation and width now and at most), "
                "the slot, NUMA placement (numactl), and other traffic on the same switch"
            ),
            caveat="many GPUs behind one switch share its link",
        )


RULE = Rule(
    name="slow_link",
    summary="copies of pinned memory below the speed of the link",
    needs=("copies",),
    check=_check,
)
