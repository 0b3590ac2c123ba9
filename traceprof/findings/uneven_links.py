"""A rule on GPUs whose copies to and from CPU memory are slower than those of other GPUs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from traceprof.errors import NotRecordedError
from traceprof.findings.amounts import TRANSFERS
from traceprof.findings.claims import ClaimKind, Kind
from traceprof.findings.context import Context
from traceprof.findings.copies import are_large_and_pinned
from traceprof.findings.rules import Finding, rule
from traceprof.measures.rows import lengths_of, rows_by
from traceprof.model.results import Note
from traceprof.model.table import Table

_MIN_SHARE_RATIO: Final = 0.01
_MIN_COPIES: Final = 3
_MAX_SLOW_RATIO: Final = 0.75
_DIRECTIONS: Final = ("h2d", "d2h")


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
        raise NotRecordedError("the trace contains one GPU: pass the traces of all ranks")
    pinned = context.copies(are_large_and_pinned)
    by_direction = {way: pinned.take(pinned["direction"] == way) for way in _DIRECTIONS}
    rates_of = {direction: _rates(copies) for direction, copies in by_direction.items()}
    if max(map(len, rates_of.values())) < 2:
        raise NotRecordedError("no large copies of pinned memory on several GPUs")
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
