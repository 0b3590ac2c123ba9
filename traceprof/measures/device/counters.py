"""What counters of the GPUs measured, in per cent: SMs, tensor cores, DRAM, links.

Nsight Systems samples them (``--gpu-metrics-devices``), of a whole GPU, whoever works on it. A
value is the mean over the time since the sample before.
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
from traceprof.model.trace import Trace

SMS_ACTIVE: Final = re.compile(r"SMs? Active\b")
"""The counter that says in which share of the time an SM had work, on average over all SMs."""
_LINK: Final = re.compile(r"(?P<link>PCIe|NVLink) (?P<way>RX|TX)\b")
_WAYS: Final = {"RX": "received", "TX": "sent"}
_UNIT: Final = re.compile(r"\[(?P<unit>[^\[\]]*)\]$")
_NO_SHARE: Final = re.compile(r"frequency|clock|\bcount\b|bytes", re.IGNORECASE)
_SOURCE: Final = "gpu:"
_TOO_LONG: Final = 10
"""A sample so many times as late as usual follows a pause, of which nothing is known."""


def samples_named(ranks: Ranks, pattern: re.Pattern[str]) -> Table:
    """Return the samples of the whole recording whose metric ``pattern`` finds, rank by rank."""
    return Table.stacked(ranks.whole.each(_samples_named, pattern))


def _samples_named(trace: Trace, pattern: re.Pattern[str]) -> Table:
    samples = trace.samples
    return samples.take(are_named(samples["metric"], pattern))


@dataclass(frozen=True, slots=True)
class CounterSeries:
    """One counter of one GPU in the window: ``shares`` (0 to 1) of spans, which touch or do not."""

    device: int
    counter: str
    starts_ns: Ints
    ends_ns: Ints
    shares: Floats

    @property
    def lengths_ns(self) -> Ints:
        """How long each span is."""
        return self.ends_ns - self.starts_ns

    @property
    def active_ns(self) -> float:
        """The sum of shares times lengths."""
        return float((self.shares * self.lengths_ns).sum())

    def kernel_ns(self, kernels: Intervals) -> int:
        """Return how much of the spans ``kernels`` cover."""
        return int(kernels.covered_ns(self.starts_ns, self.ends_ns).sum())


@of_window
def counters_of(trace: Trace) -> list[CounterSeries]:
    """Return the counters of GPUs that a trace has in per cent, by GPU and in their order."""
    samples = trace.whole.samples
    metrics, sources = samples["metric"], samples["source"]
    is_share = metrics.by_text(np.array([_is_share(name) for name in metrics.texts], np.bool_))
    is_gpu = sources.by_text(np.array([_is_gpu(name) for name in sources.texts], np.bool_))
    own = samples.take(is_share & is_gpu)
    found, rows_of = [], rows_by_values(own["source"].packed, own["metric"].packed)
    for (source, metric), rows in rows_of.items():
        device = int(own["source"].texts[source].removeprefix(_SOURCE))
        series = _series(device, own["metric"].texts[metric], own.take(rows), trace)
        if len(series.shares):
            found.append(series)
    return sorted(found, key=lambda one: (one.device, one.counter))


def _is_gpu(source: str) -> bool:
    return source.startswith(_SOURCE) and source.removeprefix(_SOURCE).isdecimal()


def _is_share(metric: str) -> bool:
    """Return whether a counter of nsys is in per cent: its name says it since 2023."""
    if metric != metric.strip() or not metric[:1].isupper():  # ours are in lower case
        return False
    unit = _UNIT.search(metric)
    return "%" in unit["unit"] if unit else not _NO_SHARE.search(metric)


def _series(device: int, counter: str, rows: Table, trace: Trace) -> CounterSeries:
    at, shares = rows["start_ns"], rows["value"] / 100
    lengths = np.diff(at)
    usual = np.median(lengths) if len(lengths) else 0
    span = trace.span
    starts, ends = np.maximum(at[:-1], span.start_ns), np.minimum(at[1:], span.end_ns)
    kept = (ends > starts) & (lengths <= _TOO_LONG * usual) & np.isfinite(shares[1:])
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
_NO_COUNTERS: Final = (
    "the trace contains no GPU counters; record with `traceprof record --with nsys --gpu-metrics`, "
    "which needs root or NVreg_RestrictProfilingToAdminUsers=0"
)


def measure_counters(ranks: Ranks) -> Result:
    """Return the counters of every GPU of the run; of one that several sampled the first's."""
    rows: dict[tuple[int, str], dict[str, Any]] = {}
    for row in chain.from_iterable(ranks.each(_rows_of_one)):
        rows.setdefault((row["device"], row["counter"]), row)
    table = SPEC.tables[0].of_rows(list(rows.values()))
    result = Result("counters", SPEC, {"counters": table})
    return result.with_notes(*_notes(ranks)) if rows else result.lacking(_NO_COUNTERS)


def _rows_of_one(trace: Trace) -> list[dict[str, Any]]:
    rows = []
    for series in counters_of(trace):
        covered_ns = int(series.lengths_ns.sum())
        # Copies move links, kernels the rest.
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
    """What a counter says of the SMs of a device: the share of the sampled time that they worked.

    ``recorded_ratio`` is the share of that time in which kernels were recorded.
    """

    device: int
    active_ratio: float
    recorded_ratio: float

    @property
    def of_kernels(self) -> float:
        """The share of the SMs that work while kernels run; at most 1."""
        return min(1.0, self.active_ratio / self.recorded_ratio) if self.recorded_ratio else 1.0


@of_window
def active_sms(trace: Trace) -> list[ActiveSms]:
    """Return what counters say of the SMs of each device that worked, where they were sampled."""
    found = []
    for series in counters_of(trace):
        if series.device in used_devices(trace.whole) and SMS_ACTIVE.match(series.counter):
            covered_ns = int(series.lengths_ns.sum())
            kernel_ns = series.kernel_ns(device_time(trace, series.device).kernel)
            found.append(
                ActiveSms(series.device, series.active_ns / covered_ns, kernel_ns / covered_ns)
            )
    return found


_UNRECORDED: Final = 1.2
_LEAST: Final = 0.02


def _notes(ranks: Ranks) -> Iterator[Note]:
    for own in chain.from_iterable(ranks.each(active_sms)):
        if own.active_ratio > _UNRECORDED * own.recorded_ratio + _LEAST:
            yield Note.of(
                "GPU {device:number}: the SMs were active for {active:ratio} of the time, but the "
                "trace contains kernels for only {recorded:ratio}. Another program used this GPU, "
                "or kernels are missing from the trace.",
                device=own.device,
                active=own.active_ratio,
                recorded=own.recorded_ratio,
            )


def measured_links(trace: Trace) -> list[dict[str, Any]]:
    """Return what the GPUs measured of their links: a row for each device, link and direction.

    Several counters of one link (requests and responses, data and protocol) add up, where they were
    sampled together.
    """
    links: dict[tuple[int, str, str], list[CounterSeries]] = {}
    for series in counters_of(trace):
        if found := _LINK.match(series.counter):
            key = series.device, found["link"].lower(), _WAYS[found["way"]]
            links.setdefault(key, []).append(series)
    rows = []
    for (device, link, way), own in sorted(links.items()):
        first = own[0]
        together = [one for one in own if np.array_equal(one.starts_ns, first.starts_ns)]
        shares = np.sum([one.shares for one in together], axis=0)
        rows.append(
            {
                "source": f"{_SOURCE}{device}",
                "link": link,
                "direction": way,
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
