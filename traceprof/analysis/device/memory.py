"""Device memory over time, where it was sampled: peaks, and in which phase they occurred."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pandas as pd

from traceprof.analysis.base import Analysis
from traceprof.facts.host.phase_names import UNCLAIMED
from traceprof.facts.host.phases import HostPhases, find_host_phases
from traceprof.model.trace import Trace

__all__ = ["ANALYSIS", "Memory", "measure_memory", "memory_samples"]

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


@dataclass(frozen=True, slots=True, eq=False)
class Memory:
    """One row per source, metric and phase, by peak.

    ``table``: source, metric, phase (of the host at the time of the sample; "" where no process
    or several name phases), count, peak_bytes, mean_bytes, last_bytes.
    """

    table: pd.DataFrame
    notes: tuple[str, ...] = ()

    def to_frame(self) -> pd.DataFrame:
        """Return the table."""
        return self.table


def memory_samples(trace: Trace) -> pd.DataFrame:
    """Return the samples of memory, with their value in bytes as ``size_bytes``.

    Metrics are known by their names, which must say the unit.
    """
    samples = trace.samples
    factors = [_factor(str(metric)) for metric in samples["metric"].cat.categories]
    factor = np.array([*factors, np.nan])[samples["metric"].cat.codes]
    chosen = samples.assign(size_bytes=samples["value"] * factor)
    return chosen.iloc[np.flatnonzero(np.isfinite(factor))].reset_index(drop=True)


def _factor(metric: str) -> float:
    if not _MEMORY.search(metric):
        return float("nan")
    return next((size for unit, size in _UNITS if unit.search(metric)), float("nan"))


def measure_memory(trace: Trace) -> Memory:
    """Return the peaks of every series of memory samples."""
    samples = memory_samples(trace)
    hosts = find_host_phases(trace)
    phases = _phases_at(hosts[0], samples) if len(hosts) == 1 else [""] * len(samples)
    table = (
        samples.assign(phase=phases)
        .groupby(["source", "metric", "phase"], observed=True)["size_bytes"]
        .agg(count="size", peak_bytes="max", mean_bytes="mean", last_bytes="last")
        .reset_index()
        .astype({"source": object, "metric": object})
        .sort_values("peak_bytes", ascending=False, kind="stable", ignore_index=True)
    )
    return Memory(table, () if len(table) else (_NONE,))


def _phases_at(host: HostPhases, samples: pd.DataFrame) -> list[str]:
    at: npt.NDArray[np.int64] = samples["start_ns"].to_numpy(np.int64)
    phases = np.full(len(at), UNCLAIMED, object)
    for phase, time in host.times.items():
        phases[time.covered_ns(at, at + 1) > 0] = phase
    return [str(phase) for phase in phases]


ANALYSIS = Analysis(
    name="memory",
    needs=("samples",),
    run=measure_memory,
)
