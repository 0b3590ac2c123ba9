"""Words about steps: why a slow one was slow, and how steady all of them are."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
import numpy.typing as npt
import pandas as pd

from traceprof.facts.host.phase_names import PHASES
from traceprof.facts.steps.steadiness import Steadiness
from traceprof.model.steps import Steps
from traceprof.units import format_duration, format_ratio

__all__ = ["PROFILER", "remark_on", "sentences_about"]

_PART_NAMES: Final = {
    "compute_ns": "compute",
    "exposed_communication_ns": "exposed communication",
    "exposed_transfer_ns": "exposed transfers",
    "device_memory_ns": "copies inside the device",
    "idle_ns": "idle devices",
}
PROFILER: Final = "the profiler itself"
_PHASE_NAMES: Final = {f"{phase}_ns": phase for phase in PHASES} | {"profiler_ns": PROFILER}
_EXPLAINS: Final = 0.5


def remark_on(table: pd.DataFrame, outliers: npt.NDArray[np.int64]) -> list[str]:
    """Return, for each outlier, by how much it differs and which part grew; "" for the others.

    ``outliers`` is 1 for slow rows of ``table``, -1 for fast ones, else 0.
    """
    remarks = [""] * len(table)
    for rows in table.groupby("process").indices.values():
        mine = table.iloc[rows]
        typical = mine[~mine["is_warmup"] & (outliers[rows] == 0)]
        typical = typical if len(typical) else mine
        for row in rows[outliers[rows] != 0]:
            remarks[row] = _remark(table.iloc[row], typical)
    return remarks


def _remark(row: pd.Series, typical: pd.DataFrame) -> str:
    excess = float(row["duration_ns"] - typical["duration_ns"].median())
    word = "slow" if excess > 0 else "fast"
    reasons = [
        text
        for names in (_PART_NAMES, _PHASE_NAMES)
        for text in [_largest(row, typical, names, excess)]
        if text
    ]
    why = ", ".join(reasons) or "no part of it stands out"
    return f"{word} by {format_duration(abs(excess))}: {why}"


def _largest(row: pd.Series, typical: pd.DataFrame, names: dict[str, str], excess: float) -> str:
    """Return the part that explains the most of ``excess``, if it explains half of it."""
    changes = {
        name: float(row[column] - typical[column].median())
        for column, name in names.items()
        if column in row.index and not np.isnan(row[column])
    }
    if not changes:
        return ""
    name = max(changes, key=lambda key: changes[key] / excess)
    change = changes[name]
    sign = "+" if change > 0 else "-"
    return f"{name} {sign}{format_duration(abs(change))}" if change / excess >= _EXPLAINS else ""


def sentences_about(
    steps: Steps, table: pd.DataFrame, steadiness: Steadiness | None, samples_per_s: float | None
) -> tuple[str, ...]:
    """Return where the steps come from, how long and steady they are, and what was dropped."""
    return tuple(_sentences(steps, table, steadiness, samples_per_s))


def _sentences(
    steps: Steps, table: pd.DataFrame, steadiness: Steadiness | None, samples_per_s: float | None
) -> Iterator[str]:
    origin = f"steps are from: {steps.source}"
    if steps.is_inferred:
        origin += f" ({format_ratio(steps.confidence_ratio)} of it repeats); times are the device's"
    yield origin
    dropped = table[table["is_warmup"]]
    if len(dropped):
        first = dropped[dropped["process"] == dropped["process"].iloc[0]]
        lost = format_duration(int(first["duration_ns"].sum()))
        yield f"{len(first)} leading step(s), {lost}, are warm-up and not in the statistics"
    if steadiness is None:
        yield "only warm-up steps are in this window"
        return
    yield (
        f"{steadiness.count} steady steps: median {format_duration(steadiness.median_ns)}, "
        f"mean {format_duration(steadiness.mean_ns)}, "
        f"p10 {format_duration(steadiness.p10_ns)}, p90 {format_duration(steadiness.p90_ns)}, "
        f"spread {format_ratio(steadiness.spread_ratio)}"
    )
    if abs(steadiness.drift_ratio) > 0.05 and steadiness.count >= 8:
        word = "longer" if steadiness.trend_ns > 0 else "shorter"
        yield f"steps get {word}: {format_ratio(abs(steadiness.drift_ratio))} from first to last"
    if samples_per_s is not None:
        yield f"throughput: {samples_per_s:.4g} samples/s"
