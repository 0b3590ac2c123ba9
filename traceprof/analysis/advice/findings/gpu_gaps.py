"""Very long gaps of a device."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import pandas as pd

from traceprof.analysis.advice.findings.base import Finding, Rule
from traceprof.analysis.advice.findings.context import Context
from traceprof.analysis.advice.findings.named_gaps import notes_on_names
from traceprof.model.intervals import Intervals
from traceprof.model.results import Note

__all__ = ["RULE", "long_gaps"]

_LONG_NS: Final = 500_000_000


def long_gaps(context: Context) -> pd.DataFrame:
    """Return the gaps between work that last half a second, the profiler's time not counted."""
    gaps = context.gaps
    lengths = gaps["end_ns"] - gaps["start_ns"] - gaps["profiler"]
    return gaps[(lengths > _LONG_NS) & (gaps["edge"] == 0)]


def _check(context: Context) -> Iterator[Finding]:
    own = long_gaps(context)
    if own.empty:
        return
    total = int((own["end_ns"] - own["start_ns"]).sum())
    span_ns = context.window_ns
    ratio = total / span_ns / max(1, len(context.devices))
    worst = own.iloc[int((own["end_ns"] - own["start_ns"]).to_numpy().argmax())]
    times = {
        int(str(device)): Intervals.union_of(rows["start_ns"], rows["end_ns"])
        for device, rows in own.groupby("device")
    }
    named, names = notes_on_names(context, times)
    yield Finding(
        title=Note.of(
            "{n:count} gap(s) longer than {least:ns}: {share:ratio} of the time",
            n=len(own),
            least=_LONG_NS,
            share=ratio,
        ),
        saving_ratio=ratio,
        saving_ns=round(ratio * span_ns),
        evidence=(
            Note.of(
                "the longest: device {device}, {longest:ns}",
                device=int(worst["device"]),
                longest=int(worst["end_ns"] - worst["start_ns"]),
            ),
            *named,
        ),
        action="see what the host does there: `traceprof show gaps`, `traceprof timeline`",
        caveat="loading a model or a checkpoint takes its time once",
        window=context.window_text(int(worst["start_ns"]), int(worst["end_ns"])),
        ranges=names,
        is_symptom=True,
    )


RULE = Rule(
    name="gpu_gaps",
    summary="gaps of half a second and more",
    needs=("kernels", "copies", "api_calls"),
    show="gaps",
    check=_check,
)
