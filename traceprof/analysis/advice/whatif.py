"""What at most would be gained if communication were hidden, data free, or links at full speed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import pandas as pd

from traceprof.analysis.advice.critical_path import (
    busy_without,
    device_times,
    find_path,
    processes_of,
)
from traceprof.analysis.base import Analysis
from traceprof.facts.path.walk import DEVICE_KINDS, Segments
from traceprof.facts.steps.find import find_steps
from traceprof.model.links import Link
from traceprof.model.peaks import peak_of
from traceprof.model.trace import Trace
from traceprof.units import format_rate

__all__ = ["ANALYSIS", "WhatIf", "measure_whatif"]

_CASES: Final = (
    ("communication fully hidden", ("communication",), "communication"),
    ("data loading free", ("data",), ""),
    ("launch gaps closed", ("launch", "latency"), ""),
    ("host code free", ("host",), ""),
    ("synchronisation free", ("synchronising",), ""),
)
_COPIES: Final = "copies at link speed"
_BEST_SHARE: Final = 0.9
_LARGE_BYTES: Final = 1_000_000


@dataclass(frozen=True, slots=True, eq=False)
class WhatIf:
    """One row per case, the largest gain first; the mean over processes.

    ``table``: case, gain_ns (at most, per step; of the window where steps are not known),
    gain_ratio (of the window), speedup (that it would give, at most).
    """

    table: pd.DataFrame
    notes: tuple[str, ...] = ()

    def to_frame(self) -> pd.DataFrame:
        """Return the table."""
        return self.table


def measure_whatif(trace: Trace) -> WhatIf:
    """Return upper bounds of what could be gained."""
    window_ns = trace.span.duration_ns
    gains: dict[str, list[float]] = {}
    links: dict[str, float] = _link_speeds(trace)
    for process in processes_of(trace):
        parts, segments = find_path(trace, process)
        devices = device_times(trace, process)
        for case, names, without in _CASES:
            on_path = sum(parts[name].total_ns for name in names)
            floor = max(busy_without(time, without) for time in devices)
            gains.setdefault(case, []).append(min(on_path, window_ns - floor))
        gains.setdefault(_COPIES, []).append(_faster_copies(segments, links))
    mean = {case: float(np.mean(values)) / max(1, window_ns) for case, values in gains.items()}
    step_ns = _step_ns(trace)
    ranked = sorted(mean.items(), key=lambda item: -item[1])
    table = pd.DataFrame(ranked, columns=["case", "gain_ratio"])
    table.insert(1, "gain_ns", table["gain_ratio"] * step_ns)
    table["speedup"] = 1 / (1 - table["gain_ratio"])
    return WhatIf(table, _notes(links))


def _step_ns(trace: Trace) -> float:
    steps = find_steps(trace)
    return float(np.median(steps.durations_ns)) if len(steps) else float(trace.span.duration_ns)


def _link_speeds(trace: Trace) -> dict[str, float]:
    """Return the speed of each direction in bytes per s: the link's peak where it is known.

    Elsewhere what the best large copies of the trace reach.
    """
    copies = trace.whole.copies
    moved = copies["direction"].isin(["h2d", "d2h", "p2p"])
    large = copies[moved & (copies["n_bytes"] >= _LARGE_BYTES)]
    length = (large["end_ns"] - large["start_ns"]).to_numpy(np.float64)
    rate = large["n_bytes"].to_numpy(np.float64) / np.maximum(length, 1) * 1e9
    by_direction = pd.Series(rate).groupby(large["direction"].to_numpy(object))
    reached = {str(name): float(v) for name, v in by_direction.quantile(_BEST_SHARE).items()}
    used = trace.devices.loc[trace.devices["used"] == 1, "device"]
    peaks = [peak_of(trace, int(device), Link.PCIE) for device in used]
    known = [peak.bytes_per_s for peak in peaks if peak is not None]
    if not known or len(known) < len(peaks):
        return reached
    return reached | dict.fromkeys(("h2d", "d2h"), min(known))


def _faster_copies(segments: Segments, links: dict[str, float]) -> float:
    """Return the ns of the path that copies would save at the speed of their link."""
    chosen = segments.kind == DEVICE_KINDS.index("transfer")
    rows = segments.work.iloc[segments.row[chosen]]
    on_path = (segments.end_ns - segments.start_ns)[chosen].astype(np.float64)
    length = (rows["end_ns"] - rows["start_ns"]).to_numpy(np.float64)
    speed = rows["name"].map(links).to_numpy(np.float64)
    ideal = rows["n_bytes"].to_numpy(np.float64) / speed * 1e9
    slack = np.clip(1 - ideal / np.maximum(length, 1), 0, 1)
    return float(np.nansum(on_path * slack))


def _notes(links: dict[str, float]) -> tuple[str, ...]:
    notes = [
        "each gain is an upper bound, and they do not add up: what is taken away may uncover "
        "something else"
    ]
    if links:
        speeds = ", ".join(f"{name} {format_rate(rate)}" for name, rate in links.items())
        notes.append(f"link speed (the peak, or what the best large copies reach): {speeds}")
    return tuple(notes)


ANALYSIS = Analysis(
    name="whatif",
    needs=("kernels", "api_calls"),
    run=measure_whatif,
)
