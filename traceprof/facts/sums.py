"""Whether the numbers of a run can be added up in 64 bits, as all analyses do."""

from __future__ import annotations

from typing import Final

import numpy as np

from traceprof.errors import TraceError
from traceprof.facts.cache import fact
from traceprof.model.ranks import Ranks
from traceprof.model.tables import TABLES
from traceprof.model.trace import Trace

__all__ = ["check_sums"]

_MOST: Final = 1 << 62
_YEAR_NS: Final = 365 * 86_400 * 10**9


def check_sums(ranks: Ranks) -> None:
    """Check that no sum over a run leaves 64 bits: of durations, of sizes, of devices' time.

    Raises:
        TraceError: one would, which no recording comes near to: its times or sizes are wrong.
    """
    totals: dict[str, int] = {}
    for part in ranks:
        for what, total in _totals(part.whole).items():
            totals[what] = totals.get(what, 0) + total
    for what, total in totals.items():
        if total >= _MOST:
            of_bytes = what.startswith("sizes")
            told = f"{total / 2**60:.0f} EiB" if of_bytes else f"{total / _YEAR_NS:.0f} years"
            raise TraceError(
                f"{ranks.info.path}: the {what} add up to {told}: they cannot be right; "
                "export the trace again, or record it again"
            )


@fact
def _totals(trace: Trace) -> dict[str, int]:
    """Return what the tables add up to, at most, in ns and bytes."""
    n_devices = max(int(trace.devices["used"].sum()), 1)
    totals = {"times of its devices": trace.span.duration_ns * n_devices}
    for name, table in TABLES.items():
        frame = trace.table(name)
        if frame.empty:
            continue
        if table.has_spans:
            starts, ends = frame["start_ns"].to_numpy(), frame["end_ns"].to_numpy()
            most = len(frame) * (int(ends.max()) - int(starts[0]))
            if most >= _MOST >> 10:
                most = int((ends - starts).sum(dtype=np.float64))
            totals[f"durations of its {name}"] = most
        if "n_bytes" in frame:
            sizes = frame["n_bytes"].to_numpy()
            totals[f"sizes of its {name}"] = int(sizes.clip(0).sum(dtype=np.float64))
    return totals
