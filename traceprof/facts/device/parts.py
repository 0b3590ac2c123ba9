"""The five parts of each device in the window, with what is hidden of communication and copies."""

from __future__ import annotations

import numpy as np
import pandas as pd

from traceprof.facts.cache import of_window
from traceprof.facts.device.times import device_time, recorded_window, used_devices
from traceprof.model.trace import Trace

__all__ = ["device_parts"]


@of_window
def device_parts(trace: Trace) -> pd.DataFrame:
    """Return one row per device that worked anywhere in the recording.

    Columns: device, name, duration_ns (of the window, as far as it was recorded), the five parts
    (``compute_ns`` …, see `traceprof.model.activity`), communication_ns and transfer_ns (hidden or
    not), their overlaps (what compute, or any kernel, hides), kernel_ns (when any kernel ran).
    """
    rows = [_measure(trace, device, name) for device, name in used_devices(trace).items()]
    return pd.DataFrame(rows)


def _measure(trace: Trace, device: int, name: str) -> dict[str, int | str]:
    time = device_time(trace, device)
    span = recorded_window(trace, device)
    parts = time.parts_within(np.array([span.start_ns]), np.array([span.end_ns]))
    ns = {f"{part}_ns": int(values[0]) for part, values in parts.items()}
    communication_ns, transfer_ns = time.communication.total_ns, time.transfer.total_ns
    return {
        "device": device,
        "name": name,
        "duration_ns": span.duration_ns,
        **ns,
        "communication_ns": communication_ns,
        "transfer_ns": transfer_ns,
        "communication_overlap_ns": communication_ns - ns["exposed_communication_ns"],
        "transfer_overlap_ns": transfer_ns - ns["exposed_transfer_ns"],
        "kernel_ns": time.kernel.total_ns,
    }
