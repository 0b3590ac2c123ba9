"""The host runs other code for long while devices have nothing to do."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from traceprof.analysis.advice.findings.base import Finding, Rule
from traceprof.analysis.advice.findings.context import Context
from traceprof.analysis.advice.findings.named_gaps import notes_on_names
from traceprof.facts.gaps import LAUNCH_BOUND_NS
from traceprof.model.results import Note

__all__ = ["RULE"]

_LEAST: Final = 0.03


def _check(context: Context) -> Iterator[Finding]:
    ratio = context.gap_ratio("host_code")
    if ratio < _LEAST:
        return
    gaps = context.gaps[(context.gaps["owner"] == "host_code") & (context.gaps["typical_ns"] > 0)]
    lengths = (gaps["end_ns"] - gaps["start_ns"]).to_numpy()
    named, names = notes_on_names(context, context.gap_times(gaps))
    yield Finding(
        title=Note.of(
            "host code between launches: devices are idle {share:ratio} of the time", share=ratio
        ),
        saving_ratio=ratio,
        saving_ns=context.saving_ns(ratio),
        evidence=(
            context.counted(
                len(gaps),
                "gaps longer than {least:ns} (median {median:ns})",
                least=LAUNCH_BOUND_NS,
                median=float(np.median(lengths)),
            ),
            *named,
        ),
        action=(
            "find the Python code in these gaps (logging, checkpoints, metrics, building batches, "
            "garbage collection, allocation) and move it out of the loop or to another thread"
        ),
        caveat="gaps of a host that merely launches very slowly look the same",
        window=context.longest_gap("host_code"),
        ranges=names,
    )


RULE = Rule(
    name="host_code",
    summary="long gaps in which the host neither launches nor waits",
    needs=("kernels", "api_calls"),
    show="gaps",
    check=_check,
)
