"""Device memory over time, where it was sampled: peaks, and in which phase they occurred."""

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
from traceprof.model.results import Result, ResultSpec
from traceprof.model.table import Names, Table
from traceprof.model.tables import stack
from traceprof.model.trace import Trace
from traceprof.names.ranges import UNCLAIMED

_MEMORY: Final = re.compile(
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

_NONE: Final = (
    "the trace contains no memory samples; record with `traceprof record`, or call "
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


def _of_memory(trace: Trace) -> Table:
    """Return those samples that are of memory: of metrics whose names say it, and the unit."""
    return trace.samples.take(np.isfinite(_factors(trace.samples)))


def _factors(samples: Table) -> Floats:
    metrics: Names = samples["metric"]
    return metrics.by_text(np.array([_factor(metric) for metric in metrics.texts], np.float64))


def _factor(metric: str) -> float:
    if not _MEMORY.search(metric):
        return float("nan")
    return next((size for unit, size in _UNITS if unit.search(metric)), float("nan"))


def measure_memory(ranks: Ranks) -> Result:
    """Return the peaks of every series of memory samples."""
    samples = stack("samples", ranks.each(_of_memory))
    hosts = [host for part in ranks for host in find_host_phases(part)]
    phases = _phases_at(hosts[0], samples) if len(hosts) == 1 else np.full(len(samples), "", object)
    keys = {"source": samples["source"], "metric": samples["metric"], "phase": Names.of(phases)}
    groups, labels = grouped(keys)
    sizes = samples["value"] * _factors(samples)
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
    table = Table(labels | columns)
    return Result("memory", SPEC, {"memory": table.in_order("-peak_bytes")})


def memory_over_time(ranks: Ranks, most: int) -> Table:
    """Return the samples of memory, at most so many of each series: source, metric, start, bytes.

    Of longer ones the largest of equal stretches are kept.
    """
    samples = stack("samples", ranks.each(_of_memory))
    samples = samples.assign(size_bytes=samples["value"] * _factors(samples))
    samples = samples.select("source", "metric", "start_ns", "size_bytes").known("size_bytes")
    series = groups_of(codes_of(samples["source"]), codes_of(samples["metric"]))
    kept = [rows[_largest(samples["size_bytes"][rows], most)] for rows in series.rows]
    return samples.take(np.sort(np.concatenate([np.empty(0, np.int64), *kept])))


def _largest(values: Floats, most: int) -> npt.NDArray[np.int64]:
    if len(values) <= most:
        return np.arange(len(values))
    edges = np.linspace(0, len(values), most + 1).astype(np.int64)
    pairs = zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True)
    return np.array([first + int(values[first:last].argmax()) for first, last in pairs])


def _phases_at(host: HostPhases, samples: Table) -> Texts:
    at = samples["start_ns"]
    phases = np.full(len(at), UNCLAIMED, object)
    for phase, time in host.times.items():
        phases[time.covered_ns(at, at + 1) > 0] = phase
    return phases


def _finish(result: Result) -> Result:
    return result.lacking(_NONE) if result.table.empty else result


MEMORY = Analysis(
    "memory", SPEC, needs=("samples",), uses=("ranges",), of_ranks=measure_memory, finish=_finish
)
