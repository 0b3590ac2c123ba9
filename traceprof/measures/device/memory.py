"""Device memory over time, if it was sampled: peaks by series and phase."""

from __future__ import annotations

import re
from typing import Final

import numpy as np
import numpy.typing as npt

from traceprof.measures.analyses import Analysis
from traceprof.measures.host.states import HostPhases, find_host_phases
from traceprof.measures.rows import Floats, Texts, grouped, ratio_of, sums_at
from traceprof.model.grouping import codes_of, groups_of
from traceprof.model.ranks import Ranks
from traceprof.model.results import Note, Result, ResultSpec
from traceprof.model.table import Names, Table
from traceprof.model.tables import stack
from traceprof.model.trace import WITHOUT_GPU, Trace
from traceprof.names.ranges import UNCLAIMED

_MEMORY_METRIC: Final = re.compile(
    r"alloc|reserved|\b(?>\w*?mem)(\w*(used|usage)|\w*+[\s./-][\s_./-]*+(used|usage))"
    r"|used[\s_]*+mem",
    re.IGNORECASE,
)
_UNITS: Final = (
    (re.compile(r"gib", re.IGNORECASE), 1 << 30),
    (re.compile(r"mib", re.IGNORECASE), 1 << 20),
    (re.compile(r"kib", re.IGNORECASE), 1 << 10),
    (re.compile(r"\bgb\b|_gb", re.IGNORECASE), 10**9),
    (re.compile(r"\bmb\b|_mb", re.IGNORECASE), 10**6),
    (re.compile(r"byte|\bb\b", re.IGNORECASE), 1),
)

_NO_SAMPLES: Final = "the trace contains no memory samples"
_HOW_TO_SAMPLE: Final = (
    f"{_NO_SAMPLES}; record with `traceprof record`, or call "
    'traceprof.metric("memory_allocated_bytes", torch.cuda.memory_allocated())'
)


SPEC: Final = ResultSpec.of("""
    table memory: one row per source, metric, and phase, by peak
    key source: GPU or process that was sampled
    key metric: name of the metric in the trace
    key phase: phase of the training loop at the time of the samples; "" if no process, or more than
        one process, has phases
    total count: number of samples
    largest peak_bytes: largest sample
    mean(count) mean_bytes: mean of the samples
    same last_bytes: last sample
    """)


def _memory_samples(trace: Trace) -> Table:
    """Return the memory samples: those whose metric name contains a memory term and a unit."""
    return trace.samples.take(np.isfinite(_bytes_per_unit(trace.samples)))


def _bytes_per_unit(samples: Table) -> Floats:
    """Return the bytes per unit of each sample's metric; NaN if it is not a memory metric."""
    metrics: Names = samples["metric"]
    return metrics.by_text(np.array([_parse_unit(metric) for metric in metrics.texts], np.float64))


def _parse_unit(metric: str) -> float:
    """Return the bytes per unit of a memory metric; NaN for other metrics."""
    if not _MEMORY_METRIC.search(metric):
        return float("nan")
    return next((size for unit, size in _UNITS if unit.search(metric)), float("nan"))


def measure_memory(ranks: Ranks) -> Result:
    """Return the peak, mean, and last size of each series of memory samples, by phase."""
    samples = stack("samples", ranks.each(_memory_samples))
    hosts = [host for part in ranks for host in find_host_phases(part)]
    phases = _phases_at(hosts[0], samples) if len(hosts) == 1 else np.full(len(samples), "", object)
    groups, labels = grouped(
        {"source": samples["source"], "metric": samples["metric"], "phase": Names.of(phases)}
    )
    sizes = samples["value"] * _bytes_per_unit(samples)
    known = np.flatnonzero(~np.isnan(sizes))
    last = np.full(len(groups.keys), np.nan)
    last[groups.number[known]] = sizes[known]
    columns = {
        "count": groups.counts,
        "peak_bytes": groups.reduced(np.fmax, sizes),
        "mean_bytes": ratio_of(
            groups.reduced(np.add, np.nan_to_num(sizes)),
            sums_at(groups.number[known], 1, len(last)),
        ),
        "last_bytes": last,
    }
    result = Result("memory", SPEC, {"memory": Table(labels | columns).in_order("-peak_bytes")})
    if len(samples):
        return result
    has_others = any(ranks.each(_has_memory_samples))
    if has_others:
        return result.with_notes(_NONE_IN_WINDOW)
    is_without_gpu = all(part.info.is_without_gpu for part in ranks)
    return result.lacking(f"{_NO_SAMPLES}: {WITHOUT_GPU}" if is_without_gpu else _HOW_TO_SAMPLE)


def _has_memory_samples(trace: Trace) -> bool:
    """Return whether the whole recording has memory samples."""
    return len(_memory_samples(trace.whole)) > 0


def memory_over_time(ranks: Ranks, limit: int) -> Table:
    """Return the memory samples, at most ``limit`` per series.

    Columns: source, metric, start_ns, size_bytes. A longer series is divided into ``limit`` equal
    parts, and the largest sample of each part is kept.
    """
    samples = stack("samples", ranks.each(_memory_samples))
    samples = samples.assign(size_bytes=samples["value"] * _bytes_per_unit(samples))
    samples = samples.select("source", "metric", "start_ns", "size_bytes").known("size_bytes")
    series = groups_of(codes_of(samples["source"]), codes_of(samples["metric"]))
    kept = [rows[_rows_of_peaks(samples["size_bytes"][rows], limit)] for rows in series.rows]
    return samples.take(np.sort(np.concatenate([np.empty(0, np.int64), *kept])))


def _rows_of_peaks(values: Floats, limit: int) -> npt.NDArray[np.int64]:
    """Return the indices of the largest value in each of ``limit`` equal parts; of all if fewer."""
    if len(values) <= limit:
        return np.arange(len(values))
    edges = np.linspace(0, len(values), limit + 1).astype(np.int64)
    pairs = zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True)
    return np.array([first + int(values[first:last].argmax()) for first, last in pairs])


def _phases_at(host: HostPhases, samples: Table) -> Texts:
    """Return the phase of the process at the time of each sample."""
    at = samples["start_ns"]
    phases = np.full(len(at), UNCLAIMED, object)
    for phase, time in host.times.items():
        phases[time.covered_ns(at, at + 1) > 0] = phase
    return phases


_NONE_IN_WINDOW: Final = Note("The trace has no memory samples in this window.")
MEMORY = Analysis(
    "memory",
    SPEC,
    needs=("samples",),
    whole=("samples",),
    uses=("ranges",),
    of_ranks=measure_memory,
)
