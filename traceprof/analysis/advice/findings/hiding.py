"""How much of exposed communication compute could hide at most."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from traceprof.analysis.advice.findings.claims import Claim
from traceprof.analysis.advice.findings.context import Context
from traceprof.measures.device.times import devices_of_processes

__all__ = ["hideable"]

_Int64Array = npt.NDArray[np.int64]


def hideable(context: Context, claim: Claim) -> tuple[Claim, ...]:
    """Return the claim on exposed communication, device by device, with what of it can be saved.

    A device cannot do in a step less than its communication, one piece after the other: what is
    exposed can hide behind the compute of the same step that hides none yet, and no more.
    """
    spans = _spans_of_devices(context)
    found = []
    for device, time in claim.times.items():
        starts, ends = spans[device]
        own = context.times[device]
        free = (own.compute - own.communication) & context.judged[device]
        exposed_ns = time.covered_ns(starts, ends)
        saved_ns = int(np.minimum(exposed_ns, free.covered_ns(starts, ends)).sum())
        ratio = min(1.0, saved_ns / max(1, time.total_ns))
        found.append(replace(claim, times={device: time}, saved_ratio=ratio))
    return tuple(found)


def _spans_of_devices(context: Context) -> dict[int, tuple[_Int64Array, _Int64Array]]:
    """Return start and end of the steps of each device; of the window where none are known."""
    table = context.steps.table
    rows_of = table.groupby("process").indices
    starts, ends = (table[name].to_numpy(np.int64) for name in ("device_start_ns", "device_end_ns"))
    span = context.ranks.span
    whole = np.array([span.start_ns]), np.array([span.end_ns])
    found = dict.fromkeys(context.devices, whole)
    for part in context.ranks:
        for process, devices in devices_of_processes(part).items():
            rows = rows_of.get(process)
            if rows is not None:
                found |= dict.fromkeys(devices, (starts[rows], ends[rows]))
    return found
