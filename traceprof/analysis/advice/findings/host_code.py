"""The host runs other code for long while devices have nothing to do."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
import pandas as pd

from traceprof.analysis.advice.findings.base import Finding, Rule
from traceprof.analysis.advice.findings.claims import Kind
from traceprof.analysis.advice.findings.context import Context
from traceprof.analysis.advice.findings.named_gaps import notes_on_names
from traceprof.facts.gaps import LAUNCH_BOUND_NS
from traceprof.model.results import Note

__all__ = ["RULE"]

_LEAST: Final = 0.03


def _check(context: Context) -> Iterator[Finding]:
    claim = context.idle_for("host")
    share = context.share(claim)
    if share < _LEAST:
        return
    gaps = context.gaps[(context.gaps["host"] > 0) & (context.gaps["typical_ns"] > 0)]
    named, names = notes_on_names(context, claim.times)
    yield Finding(
        title=Note.of(
            "host code between launches: devices are idle {share:ratio} of the time", share=share
        ),
        claims=(claim,),
        kind=Kind.MEASURED,
        evidence=(
            *_long_ones(context, gaps),
            *named,
        ),
        action=_action(context),
        caveat="gaps of a host that merely launches very slowly look the same",
        window=context.longest_gap("host"),
        ranges=names,
    )


def _long_ones(context: Context, gaps: pd.DataFrame) -> Iterator[Note]:
    lengths = (gaps["end_ns"] - gaps["start_ns"]).to_numpy()
    lengths = lengths[lengths > LAUNCH_BOUND_NS]
    if len(lengths):
        yield context.counted(
            len(lengths),
            "gap(s) longer than {least:ns}",
            " (median {median:ns})",
            least=LAUNCH_BOUND_NS,
            median=float(np.median(lengths)),
        )


def _action(context: Context) -> str:
    what = "Python code" if context.software.has_python else "code of the host"
    return (
        f"find the {what} in these gaps (logging, checkpoints, metrics, building batches, "
        "allocation, files) and move it out of the loop or to another thread"
    )


RULE = Rule(
    name="host_code",
    subject="host code",
    summary="long gaps in which the host neither launches nor waits",
    needs=("kernels", "api_calls"),
    show="gaps",
    check=_check,
)
