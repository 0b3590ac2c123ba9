"""The host runs other code for long while devices have nothing to do."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

import numpy as np
import pandas as pd

from traceprof.analysis.advice.findings.base import Finding, Rule
from traceprof.analysis.advice.findings.claims import Claim, Kind
from traceprof.analysis.advice.findings.context import Context
from traceprof.analysis.advice.findings.host_work import main_work
from traceprof.analysis.advice.findings.named_gaps import notes_on_names
from traceprof.measures.device.times import devices_of_processes
from traceprof.measures.host.states import before_forward
from traceprof.measures.idle.gaps import LAUNCH_BOUND_NS, find_gaps
from traceprof.measures.idle.losses import lost_in_gaps
from traceprof.model.intervals import Intervals
from traceprof.model.results import Note
from traceprof.model.trace import Trace

__all__ = ["RULE"]

_LEAST: Final = 0.03
_NOTABLE: Final = 0.3
_DOMINANT: Final = 0.5
"""A gap that is more than this of all of them does not recur: nothing is saved by each step."""


def _check(context: Context) -> Iterator[Finding]:
    whole = context.idle_for("host")
    if context.share(whole) < _LEAST:
        return
    alone = _gap_alone(context, whole)
    for claim, kind in ((_without(whole, alone), Kind.MEASURED), (alone, Kind.ONCE)):
        if context.share(claim) >= _LEAST:
            yield _finding(context, claim, kind)


def _gap_alone(context: Context, whole: Claim) -> Claim:
    """Return the claim on the one gap of each device that is most of ``whole``.

    Nothing where steps are named: what is slow in one of them is a matter of slow steps.
    """
    found: dict[int, Intervals] = {}
    if not len(context.steps):
        least_ns = {d: _DOMINANT * time.total_ns for d, time in whole.times.items()}
        gaps = pd.concat(context.ranks.each(_gaps_longer_than, least_ns), ignore_index=True)
        for device, time in whole.times.items():
            own = gaps[gaps["device"] == device]
            starts, ends = (own[name].to_numpy(np.int64) for name in ("start_ns", "end_ns"))
            ns = time.covered_ns(starts, ends)
            if len(ns) and ns.max() > least_ns[device]:
                place = int(ns.argmax())
                found[device] = time.clip(int(starts[place]), int(ends[place]))
    return Claim(found)


def _gaps_longer_than(part: Trace, least_ns: Mapping[int, float]) -> pd.DataFrame:
    gaps = find_gaps(part)[["device", "start_ns", "end_ns"]]
    least = gaps["device"].map(dict(least_ns)).fillna(np.inf)
    return gaps[gaps["end_ns"] - gaps["start_ns"] > least]


def _without(whole: Claim, part: Claim) -> Claim:
    nothing = Intervals.empty()
    return Claim({d: time - part.times.get(d, nothing) for d, time in whole.times.items()})


def _finding(context: Context, claim: Claim, kind: Kind) -> Finding:
    work = main_work(context, claim.times)
    share = context.share(claim)
    named, names = notes_on_names(context, claim.times)
    what = f", mostly {work.what}" if work.what else ""
    own = _gaps_of(context, claim)
    return Finding(
        title=Note.of(
            ("one long gap" if kind is Kind.ONCE else "host code between launches")
            + f"{what}: devices are idle {{share:ratio}} of the time",
            share=share,
        ),
        claims=(claim,),
        kind=kind,
        once_ns=round(claim.total_ns / max(1, len(context.places))) if kind is Kind.ONCE else None,
        evidence=(
            *(_long_ones(context, own) if kind is not Kind.ONCE else ()),
            *_before_forward(context, claim),
            *named,
        ),
        action=work.action,
        caveat="gaps of a host that merely launches very slowly look the same",
        window=context.longest_row(own) if len(own) else "",
        ranges=names,
    )


def _gaps_of(context: Context, claim: Claim) -> pd.DataFrame:
    """Return the gaps of the typical time that ``claim`` has a part of."""
    found = context.ranks.each(_busy_gaps, context.typical)
    gaps = pd.concat([own for own in found if len(own)] or found[:1], ignore_index=True)
    chosen = np.zeros(len(gaps), np.bool_)
    for device, time in claim.times.items():
        rows = np.flatnonzero((gaps["device"] == device).to_numpy())
        own = gaps.iloc[rows]
        chosen[rows] = time.covered_ns(own["start_ns"], own["end_ns"]) > 0
    return gaps[chosen]


def _busy_gaps(part: Trace, typical: Intervals) -> pd.DataFrame:
    """Return the gaps of the typical time in which the host ran code: device, start_ns, end_ns."""
    gaps = find_gaps(part)[["device", "start_ns", "end_ns"]]
    is_typical = typical.covered_ns(gaps["start_ns"], gaps["end_ns"]) > 0
    return gaps[(lost_in_gaps(part, "host") > 0) & is_typical]


def _long_ones(context: Context, gaps: pd.DataFrame) -> Iterator[Note]:
    lengths = (gaps["end_ns"] - gaps["start_ns"]).to_numpy()
    lengths = lengths[lengths > LAUNCH_BOUND_NS]
    if len(lengths):
        yield context.counted(
            len(lengths),
            "gap(s) longer than {least:ns}",
            " (median {median:ns})" if len(lengths) > 1 else " ({median:ns})",
            least=LAUNCH_BOUND_NS,
            median=float(np.median(lengths)),
        )


def _before_forward(context: Context, claim: Claim) -> Iterator[Note]:
    """Tell how much of ``claim`` lies before forward passes: a batch is fetched or made there."""
    before_ns = 0
    for part in context.ranks:
        times = before_forward(part)
        for process, devices in devices_of_processes(part).items():
            time = times.get(process, Intervals.empty())
            before_ns += sum((claim.times[d] & time).total_ns for d in devices if d in claim.times)
    if before_ns > _NOTABLE * claim.total_ns:
        yield Note.of(
            "{share:ratio} of it before a forward pass begins: is a batch fetched or made there?",
            share=before_ns / claim.total_ns,
        )


RULE = Rule(
    name="host_code",
    subject="host code",
    summary="long gaps in which the host neither launches nor waits",
    needs=("kernels", "api_calls"),
    show="gaps",
    check=_check,
)
