"""The host runs other code for long while devices have nothing to do."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
import pandas as pd

from traceprof.analysis.advice.findings.base import Finding, Rule
from traceprof.analysis.advice.findings.claims import Kind
from traceprof.analysis.advice.findings.context import Context
from traceprof.facts.gaps import LAUNCH_BOUND_NS
from traceprof.facts.host.open_ranges import ranges_at
from traceprof.model.results import Note

__all__ = ["RULE"]

_LEAST: Final = 0.03


def _check(context: Context) -> Iterator[Finding]:
    claim = context.idle_for("host")
    share = context.share(claim)
    if share < _LEAST:
        return
    gaps = context.gaps[(context.gaps["host"] > 0) & (context.gaps["typical_ns"] > 0)]
    ranked = _places(context, gaps)
    yield Finding(
        title=Note.of(
            "host code between launches: devices are idle {share:ratio} of the time", share=share
        ),
        claims=(claim,),
        kind=Kind.MEASURED,
        evidence=(
            *_long_ones(context, gaps),
            *(context.timed(ns, after=" of them in {name}", name=name) for ns, name in ranked),
        ),
        action=_action(context),
        caveat="gaps of a host that merely launches very slowly look the same",
        window=context.longest_gap("host"),
        ranges=tuple(name for _, name in ranked),
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


def _places(context: Context, gaps: pd.DataFrame) -> list[tuple[int, str]]:
    """Return the ns of the gaps by the range that was open when they began, the most first."""
    sums: dict[str, int] = {}
    for place, own in gaps.groupby("part"):
        columns = (own[name].to_numpy(np.int64) for name in ("process", "start_ns"))
        names = ranges_at(context.ranks.parts[int(str(place))], *columns)
        lengths = own["host"].tolist()
        for name, length in zip(names, lengths, strict=True):
            sums[name] = sums.get(name, 0) + length
    return sorted(((ns, name) for name, ns in sums.items() if name), reverse=True)[:3]


RULE = Rule(
    name="host_code",
    summary="long gaps in which the host neither launches nor waits",
    needs=("kernels", "api_calls"),
    show="gaps",
    check=_check,
)
