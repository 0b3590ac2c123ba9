"""A rule on load imbalance: the rank with the most work changes from step to step."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from traceprof.errors import NotRecordedError
from traceprof.findings.amounts import RANKS, AbsentError
from traceprof.findings.claims import Claim, Kind
from traceprof.findings.context import Context
from traceprof.findings.members import (
    attributed,
    devices_of_members,
    require_ranks,
    require_waiting,
)
from traceprof.findings.rules import Finding, rule
from traceprof.findings.slow_ranks import BALANCE_EXPERTS, claims_on_waiting
from traceprof.measures import shown_by
from traceprof.measures.collectives.waits import waiting_of_members
from traceprof.measures.ranks.groups import find_late_host_or_rack
from traceprof.measures.ranks.imbalance import (
    MIN_STEPS,
    ImbalanceCause,
    cause_of_imbalance,
    describe_turns,
    find_imbalance,
    notable_steps,
)
from traceprof.measures.ranks.pipeline import find_stages
from traceprof.measures.ranks.stragglers import lateness_of_ranks
from traceprof.model.results import Note
from traceprof.model.table import Table

_MIN_SHARE_RATIO: Final = 0.05
_MIN_CAUSE_RATIO: Final = 0.5
_MORE, _SLOWER, _OTHER = "more work", "the same work takes longer", "no compute"
_EXPERTS: Final = "experts with more tokens"
_MIN_SAME_RATIO: Final = 0.9
_QUERY: Final = "`nvidia-smi --query-gpu=clocks.sm,power.draw,temperature.gpu --format=csv -l 1`"
_WHY: Final = {_MORE: " (uneven batches)", _EXPERTS: " (uneven load of experts)"}
_ACTIONS: Final = {
    _EXPERTS: BALANCE_EXPERTS,
    _MORE: "Balance the work of the ranks in each step: sort or bucket the samples by length, give "
    "each rank the same number of tokens instead of samples, or pack sequences.",
    _SLOWER: "The ranks have the same work, but their GPUs take turns being slow. Check clocks, "
    "power limits, temperatures, and other jobs on the GPUs "
    f"({_QUERY}).",
    _OTHER: "Find what the late ranks wait for: data loading, garbage collection, logging, or "
    f"copies (`{shown_by('rank-steps')}`).",
}


@rule(
    "load balance across ranks",
    "load imbalance: the rank with the most work changes from step to step",
    about=RANKS,
    show="rank-steps",
)
def load_imbalance(context: Context) -> Iterator[Finding]:
    """Find steps in which ranks wait for the rank with the most work, if that rank changes.

    The saving is the work of that rank minus the mean of the ranks, summed over the steps. Steps
    count only if no earlier finding names their late rank.
    """
    require_ranks(context)
    require_waiting(context)
    if find_stages(context.ranks):
        raise AbsentError("pipeline stages have different work by design")
    steps = find_imbalance(context.ranks)
    spans = steps["start_ns"], steps["end_ns"]
    steps = steps.take(2 * context.typical.covered_ns(*spans) >= spans[1] - spans[0])
    if len(steps) < MIN_STEPS:
        raise NotRecordedError(f"all ranks recorded fewer than {MIN_STEPS} usual steps")
    unnamed = steps.take(~np.isin(steps["member"], _named(context)))
    claims = _claims(context, int(unnamed["excess_ns"].sum()))
    share = sum(map(context.saving_ratio, claims))
    late = notable_steps(unnamed)
    if share < _MIN_SHARE_RATIO or late.empty:
        return
    cause = cause_of_imbalance(context.ranks, late)
    kind = _kind_of(cause)
    if kind == _SLOWER and len(places := _always_late(late)) > 1:
        yield _slow_together(context, late, places, cause)
        return
    longest = late.row(int(late["excess_ns"].argmax()))
    yield Finding(
        title=Note.of(
            "Load imbalance: the ranks wait for the slowest rank of each step for {share:ratio} of "
            "step time" + _WHY.get(kind, ""),
            share=share,
        ),
        claims=claims,
        kind=Kind.BOUNDED,
        evidence=(describe_turns(context.ranks, late), *_notes_on_cause(cause, kind, len(late))),
        action=_ACTIONS[kind],
        caveat="The saving assumes that each rank has the mean work of the ranks in each step.",
        window=context.window_text(longest["start_ns"], longest["end_ns"]),
    )


def _always_late(late: Table) -> tuple[int, ...]:
    """Return the ranks that are late together in nearly all steps ``late``; () if they change."""
    texts, counts = np.unique(late["late"].plain(), return_counts=True)
    is_same = counts.max() >= _MIN_SAME_RATIO * len(late)
    return tuple(map(int, texts[counts.argmax()].split())) if is_same else ()


def _slow_together(
    context: Context, late: Table, places: tuple[int, ...], cause: ImbalanceCause
) -> Finding:
    """Return the finding on several ranks whose GPUs are always slower than those of the others."""
    claims = claims_on_waiting(context, places, int(late["beyond_ns"].sum()))
    who = ", ".join(context.matches.members[place].label for place in places)
    return Finding(
        title=Note.of(
            "Slow GPUs: the other ranks wait for {slow} for {share:ratio} of step time",
            slow=who,
            share=sum(map(context.saving_ratio, claims)),
        ),
        claims=claims,
        kind=Kind.BOUNDED,
        evidence=(*_notes_on_cause(cause, _SLOWER, len(late)),),
        action=f"Compare {who} with the other ranks: GPU models, clocks, power limits, "
        f"temperatures, and other jobs on the GPUs ({_QUERY}).",
        caveat="The saving assumes that these ranks are as fast as the others.",
    )


def _named(context: Context) -> list[int]:
    """Return the ranks that the findings on a straggler, host, or rack name."""
    group = find_late_host_or_rack(context.ranks)
    named = [rank.member for rank in lateness_of_ranks(context.ranks) if rank.is_straggler]
    return [*named, *(group.late_members if group else ())]


def _claims(context: Context, excess_ns: int) -> tuple[Claim, ...]:
    """Return claims on the time in which devices wait, of which ``excess_ns`` each is attributed.

    With balanced work, the late rank has less work, and the other ranks wait less: every rank is
    done earlier by the work of the late rank beyond the mean, which is also their mean waiting.
    """
    device_of = devices_of_members(context)
    waiting = waiting_of_members(context.ranks.whole)
    times = {device: waiting[place] for place, device in device_of.items()}
    return attributed((context.unclaimed(times),), excess_ns * len(times))


def _kind_of(cause: ImbalanceCause) -> str:
    """Return the cause with at least half of the extra time of the late ranks, or `_OTHER`."""
    more_ns, slower_ns = max(cause.more_ns, 0), max(cause.slower_ns, 0)
    whole_ns = more_ns + slower_ns + cause.other_ns
    if cause.is_of_experts and more_ns + slower_ns >= _MIN_CAUSE_RATIO * whole_ns:
        return _EXPERTS
    largest = max((more_ns, _MORE), (slower_ns, _SLOWER))
    return largest[1] if largest[0] >= _MIN_CAUSE_RATIO * whole_ns > 0 else _OTHER


def _notes_on_cause(cause: ImbalanceCause, kind: str, n_steps: int) -> Iterator[Note]:
    """Yield notes on what the late ranks take longer for, per step with a late rank."""
    values = {_MORE: cause.more_ns, _SLOWER: cause.slower_ns, _OTHER: cause.other_ns}
    values[_EXPERTS] = cause.more_ns + cause.slower_ns
    texts = {
        _EXPERTS: "the experts of the late rank (grouped GEMMs) take {extra:ns} longer per step",
        _MORE: "the late rank runs {extra:ns} more work per step (more thread blocks or kernels)",
        _SLOWER: "the same kernels with the same grid take {extra:ns} longer per step on the late "
        "rank",
        _OTHER: "the late rank is {extra:ns} longer per step without compute than the other ranks",
    }
    yield Note.of(texts[kind], extra=values[kind] / n_steps)
    if kind in (_MORE, _EXPERTS) and cause.example:
        yield cause.example
