"""Add the samples of nvidia-smi, dcgmi, or rocm-smi to the run that they were taken beside."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from traceprof.errors import TraceError, UsageError
from traceprof.logs.machine_samples import GpuSamples, samples_in
from traceprof.measures.device.times import devices_of_processes
from traceprof.model.ranks import Ranks
from traceprof.model.results import Note
from traceprof.model.tables import ABSENT, make_table, stack
from traceprof.model.trace import Trace

_NS: Final = 1_000_000_000
_DAY_S: Final = 86_400
_ZONES_S: Final = tuple(range(-12 * 3600, 14 * 3600 + 1, 900))
"""Time zones differ from UTC by multiples of 15 minutes."""
_YEAR_WITHOUT_DATE_S: Final = 946_684_800
"""Samples that print only the time of day have a date in the year 2000."""
_MIN_COVERED_RATIO: Final = 0.5
_Series: TypeAlias = Mapping[tuple[int, str], tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]]


def with_gpu_samples(ranks: Ranks, path: Path) -> tuple[Ranks, Note]:
    """Return the ranks with the samples in a file, and a note on the clock of the samples.

    The number of the GPU of a sample is the local rank of a process, or else a device number.

    Raises:
        TraceError: the file contains no samples, or their times do not fit the run.
        UsageError: the run has several hosts.
    """
    found = samples_in(path)
    if found is None:
        raise TraceError(
            f"{path}: expected the output of nvidia-smi --query-gpu, nvidia-smi dmon, dcgmi dmon, "
            "or rocm-smi --csv"
        )
    hosts = {host for part in ranks.whole for host in part.processes["host"].tolist() if host}
    if len(hosts) > 1:
        raise UsageError(
            f"--samples {path}: the samples are from one host, but the run has {len(hosts)} hosts"
        )
    zone_s, first_ns = _place(ranks, found, path)
    series = {
        key: (
            np.round((np.asarray(times) - found.first_s) * _NS).astype(np.int64) + first_ns,
            np.asarray(found.values[key]),
        )
        for key, times in found.times.items()
    }
    text = "the times in {path} are read as UTC{sign}{hours:count}"
    sign, hours = "-" if zone_s < 0 else "+", abs(zone_s) / 3600
    return ranks.map(_with_series, series), Note.of(text, path=path.name, sign=sign, hours=hours)


def _place(ranks: Ranks, found: GpuSamples, path: Path) -> tuple[int, int]:
    """Return the time zone of the samples in s, and the time of the first one in the run in ns.

    The zone is UTC or the zone of this machine if the samples then cover the run, or else the only
    zone in which they do.
    """
    epoch_ns, base_s, first_s = ranks.info.utc_epoch_ns, found.clock.base_s, found.first_s
    if epoch_ns is None:
        raise TraceError(f"{path}: the trace has no date, so the samples cannot be placed")
    if base_s is None or not math.isfinite(first_s):
        raise TraceError(f"{path}: the samples have no time stamps (nvidia-smi: add timestamp)")
    last_s = max(times[-1] for times in found.times.values())
    begin_s, end_s = ((epoch_ns + at) / _NS for at in (ranks.span.start_ns, ranks.span.end_ns))
    has_date = base_s >= _YEAR_WITHOUT_DATE_S + 366 * _DAY_S

    def starts_at(zone_s: int) -> float:
        at_s = base_s + first_s - zone_s
        return at_s if has_date else at_s + round((begin_s - at_s) / _DAY_S) * _DAY_S

    fitting = []
    for zone_s in _ZONES_S:
        start_s = starts_at(zone_s)
        covered_s = min(end_s, start_s + last_s - first_s) - max(begin_s, start_s)
        if covered_s >= _MIN_COVERED_RATIO * (end_s - begin_s):
            fitting.append(zone_s)
    here_s = -time.timezone
    chosen = next((zone_s for zone_s in (0, here_s) if zone_s in fitting), None)
    if chosen is None and len(fitting) != 1:
        times = "no time zone" if not fitting else f"{len(fitting)} time zones"
        raise TraceError(
            f"{path}: the samples cover the time of the trace in {times}; print them in UTC "
            "(TZ=UTC nvidia-smi ...), and sample during the whole recording"
        )
    zone_s = fitting[0] if chosen is None else chosen
    return zone_s, round((starts_at(zone_s) - epoch_ns / _NS) * _NS)


def _with_series(part: Trace, series: _Series) -> Trace:
    """Return the trace with the samples of the GPUs that its processes use."""
    processes, ranks = (part.processes[name].tolist() for name in ("process", "local_rank"))
    local = dict(zip(processes, ranks, strict=True))
    rows = [part.samples]
    for process, devices in devices_of_processes(part).items():
        rank = local.get(process, ABSENT)
        for device in devices:
            gpu = rank if rank != ABSENT and len(devices) == 1 else device
            for (number, metric), (times, values) in series.items():
                if number == gpu:
                    names = {"source": np.full(len(times), f"gpu:{device}", object)}
                    names["metric"] = np.full(len(times), metric, object)
                    rows.append(make_table("samples", {"start_ns": times, "value": values} | names))
    return replace(part, samples=stack("samples", rows), recorded=part.recorded | {"samples"})
