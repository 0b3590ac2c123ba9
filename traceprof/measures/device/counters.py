"""Hardware counters of GPUs in percent: SMs, tensor cores, DRAM, links.

Nsight Systems samples them (``--gpu-metrics-devices``) for a whole GPU, including the work of other
programs. A value is the mean since the previous sample.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final

import numpy as np

from traceprof.measures.analyses import Analysis
from traceprof.measures.device.times import device_time, used_devices
from traceprof.measures.facts import of_window
from traceprof.measures.rows import Floats, Ints, are_named
from traceprof.model.grouping import rows_by_values
from traceprof.model.intervals import Intervals
from traceprof.model.ranks import Ranks
from traceprof.model.results import Note, Result, ResultSpec
from traceprof.model.table import Table
from traceprof.model.trace import WITHOUT_GPU, Trace

SMS_ACTIVE: Final = re.compile(r"SMs? Active\b")
"""Counter of the share of time in which an SM had work, as a mean over all SMs."""
_LINK: Final = re.compile(r"(?P<link>PCIe|NVLink) (?P<way>RX|TX)\b")
_DIRECTIONS: Final = {"RX": "received", "TX": "sent"}
_UNIT: Final = re.compile(r"\[(?P<unit>[^\[\]]*)\]$")
_NOT_PERCENT: Final = re.compile(r"frequency|clock|\bcount\b|bytes", re.IGNORECASE)
_SOURCE: Final = "gpu:"
_MAX_SAMPLE_PERIODS: Final = 10
"""A sample that covers more than this many median periods follows a pause and is ignored."""


def samples_named(ranks: Ranks, pattern: re.Pattern[str]) -> Table:
    """Return the samples of the whole recording whose metric matches ``pattern``, rank by rank."""
    return Table.stacked(ranks.whole.each(_samples_named, pattern))


def _samples_named(trace: Trace, pattern: re.Pattern[str]) -> Table:
    samples = trace.samples
    return samples.take(are_named(samples["metric"], pattern))


@dataclass(frozen=True, slots=True)
class CounterSeries:
    """One counter of one GPU in the window: ``shares`` (0 to 1), one per span between two samples.

    There can be gaps between the spans.
    """

    device: int
    counter: str
    starts_ns: Ints
    ends_ns: Ints
    shares: Floats

    @property
    def lengths_ns(self) -> Ints:
        """Length of each span."""
        return self.ends_ns - self.starts_ns

    @property
    def active_ns(self) -> float:
        """Sum of shares multiplied by lengths."""
        return float((self.shares * self.lengths_ns).sum())

    def kernel_ns(self, kernels: Intervals) -> int:
        """Return the part of the spans that ``kernels`` cover."""
        return int(kernels.covered_ns(self.starts_ns, self.ends_ns).sum())


@of_window
def counters_of(trace: Trace) -> list[CounterSeries]:
    """Return the percentage counters of the GPUs in a trace, by GPU and counter name."""
    samples = trace.whole.samples
    metrics, sources = samples["metric"], samples["source"]
    is_share = metrics.by_text(np.array([_is_percent(name) for name in metrics.texts], np.bool_))
    is_gpu = sources.by_text(np.array([_is_gpu(name) for name in sources.texts], np.bool_))
    selected = samples.take(is_share & is_gpu)
    found, rows_of = [], rows_by_values(selected["source"], selected["metric"])
    for (source, metric), rows in rows_of.items():
        device = int(selected["source"].texts[source].removeprefix(_SOURCE))
        series = _series(device, selected["metric"].texts[metric], selected.take(rows), trace)
        if len(series.shares):
            found.append(series)
    return sorted(found, key=lambda item: (item.device, item.counter))


def _is_gpu(source: str) -> bool:
    return source.startswith(_SOURCE) and source.removeprefix(_SOURCE).isdecimal()


def _is_percent(metric: str) -> bool:
    """Return whether an nsys counter is in percent; names contain the unit since 2023."""
    if metric != metric.strip() or not metric[:1].isupper():  # traceprof's metrics are lower case
        return False
    unit = _UNIT.search(metric)
    return "%" in unit["unit"] if unit else not _NOT_PERCENT.search(metric)


def _series(device: int, counter: str, rows: Table, trace: Trace) -> CounterSeries:
    """Return the spans of one counter that overlap the window, without pauses in the sampling."""
    times, shares = rows["start_ns"], rows["value"] / 100
    lengths = np.diff(times)
    period = np.median(lengths) if len(lengths) else 0
    span = trace.span
    starts, ends = np.maximum(times[:-1], span.start_ns), np.minimum(times[1:], span.end_ns)
    kept = (ends > starts) & (lengths <= _MAX_SAMPLE_PERIODS * period) & np.isfinite(shares[1:])
    return CounterSeries(device, counter, starts[kept], ends[kept], shares[1:][kept])


SPEC: Final = ResultSpec.of("""
    table counters: one row per GPU and hardware counter, as a share of the counter's maximum
    key device: GPU index in the run
    key counter: counter name in nsys
    total count: number of samples
    total duration_ns: part of the window that the samples cover
    derived mean_ratio: mean over duration_ns
    derived kernel_ratio: mean over the time in which kernels ran, assuming that only kernels use
        the unit; empty for PCIe and NVLink, which copies use
    largest top_ratio: largest sample
    """)
_NO_COUNTERS: Final = "the trace contains no GPU counters"
_HOW_TO_COUNT: Final = (
    f"{_NO_COUNTERS}; record with `traceprof record --with nsys --gpu-metrics`, "
    "which needs root or NVreg_RestrictProfilingToAdminUsers=0"
)


def measure_counters(ranks: Ranks) -> Result:
    """Return the counters of each GPU of the run.

    If several traces sampled the same GPU, the first trace counts.
    """
    rows: dict[tuple[int, str], dict[str, Any]] = {}
    for row in chain.from_iterable(ranks.each(_rows_of_trace)):
        rows.setdefault((row["device"], row["counter"]), row)
    result = Result("counters", SPEC, {"counters": SPEC.tables[0].of_rows(list(rows.values()))})
    if rows:
        return result.with_notes(*_notes(ranks))
    is_without_gpu = all(part.info.is_without_gpu for part in ranks)
    return result.lacking(f"{_NO_COUNTERS}: {WITHOUT_GPU}" if is_without_gpu else _HOW_TO_COUNT)


def _rows_of_trace(trace: Trace) -> list[dict[str, Any]]:
    """Return one row per GPU and counter of a trace."""
    rows = []
    for series in counters_of(trace):
        covered_ns = int(series.lengths_ns.sum())
        # Copies use the links, kernels use all other units.
        kernels = device_time(trace, series.device).kernel
        kernel_ns = 0 if _LINK.match(series.counter) else series.kernel_ns(kernels)
        rows.append(
            {
                "device": series.device,
                "counter": series.counter,
                "count": len(series.shares),
                "duration_ns": covered_ns,
                "mean_ratio": series.active_ns / covered_ns,
                "kernel_ratio": series.active_ns / kernel_ns if kernel_ns else float("nan"),
                "top_ratio": float(series.shares.max()),
            }
        )
    return rows


@dataclass(frozen=True, slots=True)
class ActiveSms:
    """SM activity of a device: the share of sampled time in which its SMs were active.

    ``recorded_ratio`` is the share of the same time in which the trace contains kernels.
    """

    device: int
    active_ratio: float
    recorded_ratio: float

    @property
    def of_kernels(self) -> float:
        """Share of the SMs that are active while kernels run; at most 1."""
        return min(1.0, self.active_ratio / self.recorded_ratio) if self.recorded_ratio else 1.0


@of_window
def active_sms(trace: Trace) -> list[ActiveSms]:
    """Return the SM activity of each used device, if it was sampled."""
    found = []
    for series in counters_of(trace):
        if series.device in used_devices(trace.whole) and SMS_ACTIVE.match(series.counter):
            covered_ns = int(series.lengths_ns.sum())
            kernel_ns = series.kernel_ns(device_time(trace, series.device).kernel)
            found.append(
                ActiveSms(series.device, series.active_ns / covered_ns, kernel_ns / covered_ns)
            )
    return found


_MIN_UNRECORDED_FACTOR: Final = 1.2
_MIN_UNRECORDED_RATIO: Final = 0.02


def _notes(ranks: Ranks) -> Iterator[Note]:
    """Yield the GPUs whose SMs were active for longer than the trace contains kernels."""
    for sms in chain.from_iterable(ranks.each(active_sms)):
        if sms.active_ratio > _MIN_UNRECORDED_FACTOR * sms.recorded_ratio + _MIN_UNRECORDED_RATIO:
            yield Note.of(
                "GPU {device:number}: the SMs were active for {active:ratio} of the time, but the "
                "trace contains kernels for only {recorded:ratio}. Another program used this GPU, "
                "or kernels are missing from the trace.",
                device=sms.device,
                active=sms.active_ratio,
                recorded=sms.recorded_ratio,
            )


def measure_link_utilization(trace: Trace) -> list[dict[str, Any]]:
    """Return the sampled utilization of GPU links, one row per device, link, and direction.

    Several counters of one link (requests and responses, data and protocol) are added up if their
    sample times are equal.
    """
    links: dict[tuple[int, str, str], list[CounterSeries]] = {}
    for series in counters_of(trace):
        if match := _LINK.match(series.counter):
            key = series.device, match["link"].lower(), _DIRECTIONS[match["way"]]
            links.setdefault(key, []).append(series)
    rows = []
    for (device, link, direction), group in sorted(links.items()):
        first = group[0]
        together = [
            counter for counter in group if np.array_equal(counter.starts_ns, first.starts_ns)
        ]
        shares = np.sum([counter.shares for counter in together], axis=0)
        rows.append(
            {
                "source": f"{_SOURCE}{device}",
                "link": link,
                "direction": direction,
                "duration_ns": int(first.lengths_ns.sum()),
                "mean_ratio": float(np.average(shares, weights=first.lengths_ns)),
                "top_ratio": float(shares.max()),
            }
        )
    return rows


COUNTERS: Final = Analysis(
    "counters",
    SPEC,
    needs=("samples",),
    uses=("kernels", "copies", "devices"),
    whole=("samples",),
    of_ranks=measure_counters,
)
