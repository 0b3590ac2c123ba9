"""Parts of the window in which a device hardly works."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from traceprof.analysis.advice.findings.base import Finding, Rule
from traceprof.analysis.advice.findings.context import Context
from traceprof.model.results import Note

__all__ = ["RULE"]

_CHUNKS: Final = 30
_LOW: Final = 0.5
_LEAST_CHUNKS: Final = 0.3


def _check(context: Context) -> Iterator[Finding]:
    span = context.ranks.span
    edges = np.linspace(span.start_ns, span.end_ns, _CHUNKS + 1).astype(np.int64)
    lengths = np.maximum(np.diff(edges), 1)
    for device in context.devices:
        busy = context.times[device].busy.covered_ns(edges[:-1], edges[1:]) / lengths
        low = np.flatnonzero(busy < _LOW)
        if len(low) < _LEAST_CHUNKS * _CHUNKS:
            continue
        ratio = float((1 - busy[low]).sum() / _CHUNKS)
        worst = int(busy.argmin())
        yield Finding(
            title=Note.of(
                "low utilisation: device {device} works less than {least:ratio} of the time in "
                "{low:count} of {parts:count} parts of the window",
                device=device,
                least=_LOW,
                low=len(low),
                parts=_CHUNKS,
            ),
            saving_ratio=ratio / max(1, len(context.devices)),
            saving_ns=context.saving_ns(ratio / max(1, len(context.devices))),
            evidence=(Note.of("busy {busy:ratio} of the whole window", busy=float(busy.mean())),),
            action="see why with `traceprof show idle`",
            caveat="start-up and shut-down count, too: choose a window of training steps",
            window=context.window_text(int(edges[worst]), int(edges[worst + 1])),
            is_symptom=True,
        )


RULE = Rule(
    name="low_utilisation",
    summary="parts of the window with little device work",
    needs=("kernels", "copies"),
    show="idle",
    check=_check,
)
