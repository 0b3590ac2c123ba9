"""Device memory over time, where it was sampled: peaks, and in which phase they occurred."""

from __future__ import annotations

import re
from typing import Final

import numpy as np
import pandas as pd

from traceprof.measures.analyses import Analysis
from traceprof.measures.host.states import HostPhases, find_host_phases
from traceprof.measures.rows import Floats, Ints, Texts, in_order
from traceprof.model.ranks import Ranks
from traceprof.model.results import Note, Result, ResultSpec
from traceprof.model.tables import stack
from traceprof.model.trace import Trace
from traceprof.names.ranges import UNCLAIMED

_MEMORY: Final = re.compile(
    r"alloc|reserved|mem\w*[\s_./-]*(used|usage)|used[\s_]*mem", re.IGNORECASE
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
    "no memory was sampled: record with `traceprof record`, or call "
    'traceprof.metric("memory_allocated_bytes", torch.cuda.memory_allocated())'
)


SPEC: Final = ResultSpec.of("""
    table memory: one row per source, metric and phase, by peak
    key source: what was sampled: a device, a process
    key metric: what it is called there
    key phase: what the host did at the time of the samples; "" where no process or several name
        phases
    total count: how many samples
    largest peak_bytes: the largest of them
    mean(count) mean_bytes: their mean
    same last_bytes: the last of them
    """)


def _memory_samples(samples: pd.DataFrame) -> pd.DataFrame:
    """Return those that are of memory, with their value in bytes as ``size_bytes``.

    Metrics are known by their names, which must say the unit.
    """
    factor = _factors(samples)
    chosen = samples.assign(size_bytes=samples["value"] * factor)
    return chosen.iloc[np.flatnonzero(np.isfinite(factor))].reset_index(drop=True)


def _of_memory(trace: Trace) -> pd.DataFrame:
    return trace.samples.to_frame().iloc[
        np.flatnonzero(np.isfinite(_factors(trace.samples.to_frame())))
    ]


def _factors(samples: pd.DataFrame) -> Floats:
    factors = [_factor(str(metric)) for metric in samples["metric"].cat.categories]
    found: Floats = np.array([*factors, np.nan])[samples["metric"].cat.codes]
    return found


def _factor(metric: str) -> float:
    if not _MEMORY.search(metric):
        return float("nan")
    return next((size for unit, size in _UNITS if unit.search(metric)), float("nan"))


def measure_memory(ranks: Ranks) -> Result:
    """Return the peaks of every series of memory samples."""
    samples = _memory_samples(stack("samples", ranks.each(_of_memory)))
    hosts = [host for part in ranks for host in find_host_phases(part)]
    phases = _phases_at(hosts[0], samples) if len(hosts) == 1 else ""
    table = in_order(
        samples.assign(phase=phases)
        .groupby(["source", "metric", "phase"], observed=True)["size_bytes"]
        .agg(count="size", peak_bytes="max", mean_bytes="mean", last_bytes="last")
        .reset_index()
        .astype({"source": object, "metric": object, "phase": object}),
        "-peak_bytes",
    )
    return Result("memory", SPEC, {"memory": table})


def _phases_at(host: HostPhases, samples: pd.DataFrame) -> Texts:
    at: Ints = samples["start_ns"].to_numpy(np.int64)
    phases = np.full(len(at), UNCLAIMED, object)
    for phase, time in host.times.items():
        phases[time.covered_ns(at, at + 1) > 0] = phase
    return phases


def _finish(result: Result) -> Result:
    return result.with_notes(Note(_NONE)) if result.to_frame().empty else result


MEMORY = Analysis(
    "memory", SPEC, needs=("samples",), uses=("ranges",), of_ranks=measure_memory, finish=_finish
)
