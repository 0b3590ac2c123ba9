"""The time series of a trace, as charts under the lanes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pandas as pd

from traceprof.model.intervals import Int64Array
from traceprof.model.trace import Trace
from traceprof.model.window import TimeWindow
from traceprof.render.escape import plain_text

__all__ = ["MAX_METRICS", "SampleSeries", "sample_series", "thin_out"]

MAX_METRICS: Final = 6
MAX_SERIES: Final = 16
MAX_POINTS: Final = 60_000


@dataclass(frozen=True, slots=True, eq=False)
class SampleSeries:
    """The values of one metric from one source; times in ns after the origin, sorted."""

    metric: str
    source: str
    times: Int64Array
    values: npt.NDArray[np.float64]


def sample_series(trace: Trace, window: TimeWindow) -> tuple[Sequence[SampleSeries], list[str]]:
    """Return the series to draw, and sentences about what is left out."""
    samples = trace.samples[window.holds(trace.samples["start_ns"].to_numpy())]
    samples = samples[np.isfinite(samples["value"].to_numpy())]
    metrics = samples["metric"].value_counts()
    drawn = metrics[metrics > 0].index[:MAX_METRICS]
    notes = []
    if (metrics > 0).sum() > len(drawn):
        notes.append(f"{(metrics > 0).sum() - len(drawn)} more metrics were sampled: not drawn")
    series: list[SampleSeries] = []
    n_left_out = 0
    for metric in drawn:
        own = samples[samples["metric"] == metric]
        grouped = list(own.groupby("source", observed=True))
        n_left_out += max(0, len(grouped) - MAX_SERIES)
        series += [
            _series(str(metric), str(source), rows, window.start_ns)
            for source, rows in grouped[:MAX_SERIES]
        ]
    if n_left_out:
        notes.append(f"{n_left_out} more sources of these metrics: not drawn")
    return series, notes


def _series(metric: str, source: str, rows: pd.DataFrame, origin_ns: int) -> SampleSeries:
    times = rows["start_ns"].to_numpy() - origin_ns
    kept = thin_out(rows["value"].to_numpy(), MAX_POINTS)
    return SampleSeries(
        plain_text(metric, 60), plain_text(source, 60), times[kept], rows["value"].to_numpy()[kept]
    )


def thin_out(values: npt.NDArray[np.float64], max_points: int) -> npt.NDArray[np.int64]:
    """Return at most ``max_points`` places of ``values``: the extremes of equal stretches."""
    n = len(values)
    if n <= max_points:
        return np.arange(n)
    edges = np.linspace(0, n, max_points // 2 + 1).astype(np.int64)
    found = [
        (first + int(values[first:last].argmin()), first + int(values[first:last].argmax()))
        for first, last in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True)
    ]
    return np.unique(np.array(found, np.int64))
