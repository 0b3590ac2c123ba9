"""Describe what surrounds the lanes: steps, the analyzed window, processes, and time series."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from traceprof.measures.steps.find import pattern_of_ranks, steps_of_ranks
from traceprof.model.intervals import Int64Array
from traceprof.model.ranks import Ranks
from traceprof.model.table import Table
from traceprof.model.tables import stack
from traceprof.model.timing import TimeWindow
from traceprof.model.trace import Trace
from traceprof.render.escape import plain_text
from traceprof.session.selection import select_default
from traceprof.units import format_count


def describe_steps(trace: Trace | Ranks, window: TimeWindow) -> dict[str, Any]:
    """Return the steps of the process with the most steps, in ns after the start of ``window``.

    ``starts``, ``ends``, and ``labels`` describe the host time of each step. ``device_starts`` and
    ``device_ends`` are the device times, as in the tables; [] if no step has a device time.
    """
    return _steps_head(steps_of_ranks(Ranks.of(trace)).table, window, "step")


def describe_iterations(trace: Trace | Ranks, window: TimeWindow) -> dict[str, Any]:
    """Return the iterations of the kernel pattern in the form of `describe_steps`."""
    return _steps_head(pattern_of_ranks(Ranks.of(trace)).table, window, "iteration")


def _steps_head(table: Table, window: TimeWindow, word: str) -> dict[str, Any]:
    """Return the steps of ``table`` in the JSON form of `describe_steps`.

    ``word`` begins each label.
    """
    if len(table):
        processes, counts = np.unique(table["process"], return_counts=True)
        table = table.take(table["process"] == processes[counts.argmax()])
        table = table.take(
            (table["start_ns"] < window.end_ns) & (table["end_ns"] > window.start_ns)
        )
    on_device = table.get("on_device", np.zeros(0, np.bool_))
    at_devices = table if on_device.any() else table.take(slice(0))
    return {
        "starts": (table["start_ns"] - window.start_ns).tolist(),
        "ends": (table["end_ns"] - window.start_ns).tolist(),
        "device_starts": (at_devices["device_start_ns"] - window.start_ns).tolist(),
        "device_ends": (at_devices["device_end_ns"] - window.start_ns).tolist(),
        "labels": [f"{word} {number}" for number in table["step"].tolist()],
    }


def describe_processes(trace: Trace | Ranks) -> dict[str, dict[str, Any]]:
    """Return the rank (-1: none) and the host of each process, by process number."""
    table = Ranks.of(trace).table("processes")
    return {
        str(process): {"rank": int(rank), "host": plain_text(str(host), 120)}
        for process, rank, host in zip(table["process"], table["rank"], table["host"], strict=True)
    }


def describe_focus(ranks: Ranks, window: TimeWindow) -> dict[str, Any] | None:
    """Return the default window of the analyses; None if it covers the page or is empty."""
    chosen = select_default(ranks)
    inside = chosen.window & window
    if inside == window or inside.duration_ns == 0:
        return None
    label = {"steady": "Steady steps", "active": "GPU activity"}.get(chosen.label, chosen.label)
    return {
        "start": inside.start_ns - window.start_ns,
        "end": inside.end_ns - window.start_ns,
        "label": label,
    }


MAX_METRICS: Final = 6
MAX_SERIES: Final = 16
MAX_POINTS: Final = 60_000
MAX_POINTS_TOGETHER: Final = 240_000
"""Maximum number of points of all series of a page: about 2 MB."""
_CUMULATED_BYTES: Final = re.compile(r"^((?:\w+_)?)bytes_(sent|received)$")


@dataclass(frozen=True, slots=True, eq=False)
class SampleSeries:
    """The values of one metric from one source, sorted by time (ns after the origin).

    A value holds until the next time. Unknown values are NaN.
    """

    metric: str
    source: str
    times: Int64Array
    values: npt.NDArray[np.float64]


def sample_series(
    trace: Trace | Ranks, window: TimeWindow
) -> tuple[Sequence[SampleSeries], list[str]]:
    """Return the time series to draw, and sentences about the series that are left out."""
    samples = stack("samples", Ranks.of(trace).each(_samples_inside, window))
    metrics = [metric for metric, _ in Counter(samples["metric"].counts()).most_common()]
    notes = []
    if (n_more := len(metrics) - MAX_METRICS) > 0:
        metrics = _order_metrics(metrics, samples)
        notes.append(f"{n_more} more sampled metrics are not shown")
    sources_to_draw: list[tuple[str, str, Table]] = []
    n_left_out = 0
    for metric in metrics[:MAX_METRICS]:
        metric_samples = samples.take(samples["metric"] == metric)
        sources = [
            (source, metric_samples.take(metric_samples["source"] == source))
            for source in metric_samples["source"].distinct()
        ]
        n_left_out += max(0, len(sources) - MAX_SERIES)
        sources_to_draw += [(metric, source, rows) for source, rows in sources[:MAX_SERIES]]
    if n_left_out:
        notes.append(f"{n_left_out} more sources of these metrics are not shown")
    max_points = min(MAX_POINTS, MAX_POINTS_TOGETHER // max(1, len(sources_to_draw)))
    if n_thinned := sum(len(rows) > max_points for _, _, rows in sources_to_draw):
        notes.append(
            f"{n_thinned} time series have more than {format_count(max_points)} points; only the "
            "minimum and maximum of each interval are drawn"
        )
    return [_series(*source, window.start_ns, max_points) for source in sources_to_draw], notes


_FIRST_COUNTERS: Final = tuple(
    map(re.compile, (r"SMs? Active", "Tensor", "DRAM", "PCIe|NVLink", "SMs? Issue", "GR Active"))
)
"""The most important GPU counters, by descending importance. A GPU can have many counters."""


def _order_metrics(metrics: Sequence[str], samples: Table) -> list[str]:
    """Sort the metrics: first those with nonzero values, and among these the `_FIRST_COUNTERS`."""
    nonzero = samples.take(np.nan_to_num(samples["value"]) != 0)["metric"].counts()

    def priority(metric: str) -> tuple[bool, int]:
        matches = (i for i, pattern in enumerate(_FIRST_COUNTERS) if pattern.match(metric))
        return metric not in nonzero, next(matches, len(_FIRST_COUNTERS))

    return sorted(metrics, key=priority)


def _samples_inside(trace: Trace, window: TimeWindow) -> Table:
    return trace.samples.take(window.holds(trace.samples["start_ns"]))


def _series(metric: str, source: str, rows: Table, origin_ns: int, max_points: int) -> SampleSeries:
    """Return the series of one source with at most ``max_points`` points.

    Cumulative counters become rates.
    """
    times, values = rows["start_ns"] - origin_ns, rows["value"]
    values = np.where(np.isfinite(values), values, np.nan)
    if rate_name := _rate_name(metric):
        metric, values = rate_name, _rates(times, values)
    kept = thin_out(values, max_points)
    return SampleSeries(plain_text(metric, 60), plain_text(source, 60), times[kept], values[kept])


def _rate_name(metric: str) -> str:
    """Return the name of the rate of a cumulative counter; "" for other metrics."""
    if counter := _CUMULATED_BYTES.match(metric):
        return f"{counter[1]}{counter[2]}_bytes_per_s"
    return "cpu_cores" if metric == "cpu_seconds" else ""


def _rates(times: Int64Array, values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return the rate per second from each sample to the next; NaN after a reset and at the end."""
    seconds, gained = np.diff(times) / 1e9, np.diff(values)
    rates = np.full(len(values), np.nan)
    known = (gained >= 0) & (seconds > 0)
    rates[:-1][known] = gained[known] / seconds[known]
    return rates


def thin_out(values: npt.NDArray[np.float64], max_points: int) -> npt.NDArray[np.int64]:
    """Return at most ``max_points`` indices of ``values``: the extremes of equal intervals."""
    n = len(values)
    if n <= max_points:
        return np.arange(n)
    edges = np.linspace(0, n, max_points // 2 + 1).astype(np.int64)
    unknown = np.isnan(values)
    low, high = np.where(unknown, np.inf, values), np.where(unknown, -np.inf, values)
    extremes = [
        (first + int(low[first:last].argmin()), first + int(high[first:last].argmax()))
        for first, last in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True)
    ]
    return np.unique(np.array(extremes, np.int64))
