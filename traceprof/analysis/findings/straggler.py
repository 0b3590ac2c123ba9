"""One device arrives late at the collectives, and all others wait for it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
import numpy.typing as npt

from traceprof.analysis.findings.base import Finding, Rule
from traceprof.analysis.findings.context import Context
from traceprof.errors import NotRecordedError
from traceprof.model.activity import Activity
from traceprof.units import format_duration, format_ratio

__all__ = ["RULE", "arrivals", "waiting_ratio"]

_LEAST: Final = 0.03
_ARRIVES_LAST: Final = 0.6


def arrivals(context: Context) -> npt.NDArray[np.int64] | None:
    """Return when each device (row) started each shared collective; None if they cannot be told.

    The nth communication kernel of one device is taken for the nth of the others.
    """
    kernels = context.kernels
    own = kernels[kernels["activity"] == Activity.COMMUNICATION.value]
    starts = [
        own.loc[own["device"] == device, "start_ns"].to_numpy(np.int64)
        for device in context.devices
    ]
    sizes = {len(row) for row in starts}
    if len(starts) < 2 or len(sizes) != 1 or sizes == {0}:
        return None
    return np.stack(starts)


def waiting_ratio(context: Context) -> float:
    """Return the share of the typical time, the mean over devices, spent waiting for the last."""
    starts = arrivals(context)
    if starts is None or _last_arrival(starts)[1] < _ARRIVES_LAST:
        return 0.0
    waits = starts.max(axis=0) - starts
    return float(waits.sum() / len(starts) / context.typical_ns)


def _last_arrival(starts: npt.NDArray[np.int64]) -> tuple[int, float]:
    """Return the row that arrives last most often, and in which share of the collectives."""
    counts = np.bincount(starts.argmax(axis=0), minlength=len(starts))
    return int(counts.argmax()), float(counts.max() / starts.shape[1])


def _check(context: Context) -> Iterator[Finding]:
    if len(context.devices) < 2:
        raise NotRecordedError("the trace has one device: give the traces of all ranks")
    starts = arrivals(context)
    if starts is None:
        raise NotRecordedError("the devices do not share the same number of collectives")
    ratio = waiting_ratio(context)
    if ratio < _LEAST:
        return
    row, share = _last_arrival(starts)
    device = context.devices[row]
    waits = starts.max(axis=0) - starts
    worst = int(waits.max(axis=0).argmax())
    yield Finding(
        rule=RULE.name,
        title=f"straggler: the others wait for device {device}, {format_ratio(ratio)} of the time",
        saving_ratio=ratio,
        saving_ns=context.saving_ns(ratio),
        evidence=(
            f"device {device} arrives last at {format_ratio(share)} of "
            f"{starts.shape[1]} collectives",
            "wait per device: "
            + ", ".join(
                f"{other}: {format_duration(int(total))}"
                for other, total in zip(context.devices, waits.sum(axis=1), strict=True)
            ),
        ),
        action=(
            f"find out why device {device} is late: more work (uneven batches or layers), a slower "
            "or throttled GPU, a busier host, slower storage"
        ),
        caveat="in a pipeline stages wait by design; collectives of several groups may be mixed up",
        window=context.window_text(int(starts[:, worst].min()), int(starts[:, worst].max())),
    )


RULE = Rule(
    name="straggler",
    summary="one device is late at the collectives",
    needs=("kernels",),
    check=_check,
)
