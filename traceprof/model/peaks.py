"""The peaks of the devices of a trace: what the user said, what the trace says, what is known."""

from __future__ import annotations

from traceprof.model.hardware import built_in_hardware
from traceprof.model.links import Link, Peak
from traceprof.model.tables import ABSENT
from traceprof.model.trace import Trace

__all__ = ["peak_of"]


def peak_of(trace: Trace, device: int, link: Link) -> Peak | None:
    """Return the peak of ``link`` of ``device`` in one direction; None where nobody knows it.

    A link that the user gave wins, then what the trace says, then the table of hardware.
    """
    hardware = trace.hardware or built_in_hardware()
    if link in hardware.links:
        return hardware.links[link]
    rows = trace.devices[trace.devices["device"] == device]
    if rows.empty:
        return hardware.peak(link, "")
    row = rows.iloc[0]
    measured = int(row["memory_bytes_per_s"])
    if link is Link.MEMORY and measured not in (ABSENT, 0):
        return Peak(float(measured), "memory", "the trace")
    return hardware.peak(link, str(row["name"]))
