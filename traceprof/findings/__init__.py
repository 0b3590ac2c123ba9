"""Findings: ranked advice. A rule that lacks its data abstains and says so."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from traceprof.findings import (
    communication,
    contention,
    copies,
    filling,
    fusion,
    gaps,
    host,
    input_bound,
    kernels,
    launches,
    managed,
    optimizer,
    pipeline,
    slow_ranks,
    stalls,
    steps,
)
from traceprof.findings.context import Context
from traceprof.findings.rules import Finding, Rule, SettledFinding, judge, losses_claimed, much_lost
from traceprof.measures.analyses import Analysis
from traceprof.measures.idle.losses import idle_times
from traceprof.measures.lost_work import lost_work
from traceprof.measures.ranks.stragglers import lateness_of_ranks
from traceprof.model.ranks import Ranks
from traceprof.model.results import Note, Result, ResultSpec
from traceprof.registries import Registry

__all__ = ["FINDINGS", "RULES", "Finding", "Rule"]


RULES: Final[Registry[Rule]] = Registry(
    "rule",
    (
        launches.whole_graphs,
        steps.profiler_overhead,
        stalls.loading,
        stalls.allocations,
        slow_ranks.slow_host,
        slow_ranks.straggler,
        pipeline.pipeline_bubble,
        communication.host_communication,
        input_bound.input_bound,
        managed.managed_memory,
        copies.slow_link,
        copies.pageable_copies,
        copies.unpinned_memory,
        copies.blocking_copies,
        copies.blocking_memsets,
        copies.exposed_copies,
        host.host_sync,
        host.host_code,
        optimizer.looped_optimizer,
        launches.launch_bound,
        communication.small_buckets,
        communication.exposed_communication,
        contention.contention,
        steps.slow_steps,
        steps.warmup,
        kernels.precision,
        optimizer.unfused_optimizer,
        kernels.layout_conversion,
        filling.few_blocks,
        fusion.unfused_attention,
        fusion.fusable_kernels,
        fusion.small_kernels,
        filling.unfilled_kernels,
        gaps.gpu_gaps,
        gaps.low_utilisation,
    ),
)
"""In the order in which they claim time: the more specific first."""

SPEC: Final = ResultSpec.of("""
    table findings: one row per finding, the largest saving first; what occurs once by its share of
        the time that is judged
    key rule: the rule that found it
    key number [number]: which one of that rule, from 1
    same title: what was found
    same kind: how sure the saving is: measured, bounded (provably at most that), estimated (by a
        model), once (a cost that occurs once), none (nothing is known to be saved)
    same claimed_ratio: the share of the time that it is about, its own
    same saving_ratio: the share of the time that could be saved
    same saving_ns: the same of step_ns
    same least_saving_ns: of an estimated saving the least of its range
    same most_saving_ns: and the most
    same base: what saving_ns is a part of: a step, an iteration, the window, or, of slow steps,
        the mean step with these
    same base_ns: how long that is
    same measured_ratio: what its advice saved when `traceprof try --from` tried it
    same once_ns: what it costs once, where it is not per step
    same model: what an estimated saving rests on
    same evidence: what shows it
    same action: what to do
    same caveat: when it may be wrong
    same window: the worst place, as --window takes it
    same ranges: the ranges concerned
    same show: the analysis that tells more
    same ncu: what profiles the longest launch of the kernel concerned most with Nsight Compute;
        launches are counted from the start of the recording
    same ground: what the claimed time is: lost, compute or slow steps
    same is_minor: less than 1 % of the time: not for a page
    table losses: one row per part of the analysed time of the devices: with compute they fill it
    key loss: a part of the time that is no compute; idle time by its cause
    same total_ns: how long, of all devices together
    same share_ratio: total_ns of the analysed time of all devices
    same claimed_ns: what of it findings claim
    same rules: the rules that do, the one with the most first
    table abstained: one row per rule that could not judge
    key rule: the rule
    same subject: what it is about
    same reason: what it lacks
    table checked: one row per subject of the rules
    key subject: what rules are about
    same is_judged: a rule about it could judge
    same is_fine: none found anything that is not minor, nor is much time lost to it that another
        finding claims
    table lost: one row per sentence on work of devices that is missing in the recording
    key number [number]: which one, from 1
    same about: what is missing, why, or what to do
    same message: the sentence
    scalars:
    same is_idle_known: enough of their work is recorded to say when devices were idle
    same compute_ratio: the share of the analysed time that is compute
    same judged_ns: the analysed time of all devices together
    same compute_ns: what of it is compute
    same slow_ratio: what slow steps add to the mean step, as a share of the mean step with them
    same base: what shares and savings are of: step, iteration, or window
    same step_ns: how long that is
    """)


def measure_findings(ranks: Ranks) -> Result:
    """Return the advice of all rules."""
    context = Context(ranks)
    found, abstained = judge(context, RULES)
    losses = losses_claimed(context, found)
    rows: dict[str, list[dict[str, object]]] = {
        "findings": [_row(own) for own in found],
        "losses": losses,
        "abstained": [
            {"rule": rule.name, "subject": rule.subject, "reason": abstained[rule.name]}
            for rule in RULES
            if rule.name in abstained
        ],
        "checked": _checked(found, abstained, much_lost(losses)),
        "lost": _lost(context),
    }
    times = context.times.items()
    compute_ns = sum((time.compute & context.judged[i]).total_ns for i, time in times)
    scalars = {
        "is_idle_known": context.is_idle_known,
        "compute_ratio": compute_ns / context.judged_ns,
        "judged_ns": round(context.judged_ns),
        "compute_ns": compute_ns,
        "slow_ratio": context.slow_ratio,
        "base": context.base.unit,
        "step_ns": context.base.unit_ns,
    }
    tables = {name: SPEC.table(name).of_rows(own) for name, own in rows.items()}
    return Result("findings", SPEC, tables, scalars, notes=_notes(bool(found), abstained))


def _lost(context: Context) -> list[dict[str, object]]:
    """Return the rows of the table ``lost``."""
    lost = lost_work(context.ranks)
    if lost is None:
        return []
    told = (("missing", lost.what), ("why", lost.causes), ("to do", (lost.action,)))
    rows = [{"about": about, "message": note} for about, notes in told for note in notes]
    return [{"number": number, **row} for number, row in enumerate(rows, 1)]


def _checked(
    found: Iterable[SettledFinding], abstained: Mapping[str, str], much: Iterable[str]
) -> list[dict[str, object]]:
    judged = {rule.subject for rule in RULES if rule.name not in abstained}
    told = {
        subject
        for own in found
        if not own.is_minor
        for subject in (own.rule.subject, *own.finding.beside)
    }.union(much)
    return [
        {"subject": subject, "is_judged": subject in judged, "is_fine": subject in judged - told}
        for subject in dict.fromkeys(rule.subject for rule in RULES)
    ]


def _row(own: SettledFinding) -> dict[str, object]:
    finding = own.finding
    as_they_are = ("title", "once_ns", "evidence", "action", "caveat", "window", "ncu")
    granted = ("number", "claimed_ratio", "saving_ratio", "saving_ns", "is_minor")
    of = ("base", "base_ns")
    least_ns, most_ns = own.range_ns or (None, None)
    return {
        "least_saving_ns": least_ns,
        "most_saving_ns": most_ns,
        "rule": own.rule.name,
        "show": own.rule.show,
        "kind": finding.kind.value,
        "model": finding.model or "",
        "ranges": "; ".join(finding.ranges),
        "ground": ", ".join(dict.fromkeys(claim.ground.value for claim in own.claims)),
        **{name: getattr(finding, name) for name in as_they_are},
        **{name: getattr(own, name) for name in (*granted, *of)},
    }


def _notes(found_any: bool, abstained: Mapping[str, str]) -> tuple[Note, ...]:
    """Return that nothing was found, and what could not be judged."""
    notes = [] if found_any else [Note("no rule found anything to improve")]
    subjects: dict[str, dict[str, None]] = {}
    judged = {rule.subject for rule in RULES if rule.name not in abstained}
    for rule in RULES:
        if rule.name in abstained:
            # Of a subject that another rule judged only what this one looks for was not checked.
            what = rule.summary if rule.subject in judged else rule.subject
            subjects.setdefault(abstained[rule.name], {})[what] = None
    notes += [
        Note.of("not checked: {subjects}: {reason}", subjects=", ".join(own), reason=reason)
        for reason, own in subjects.items()
    ]
    return tuple(notes)


FINDINGS = Analysis(
    "findings",
    SPEC,
    uses=(
        *("kernels", "kernel_shapes", "copies", "api_calls", "ranges", "host_ops", "collectives"),
        *("overheads", "syncs", "marks", "devices", "processes", "environment", "samples"),
    ),
    whole=("kernels", "copies", "api_calls", "ranges", "samples"),
    of_steps=True,
    of_ranks=measure_findings,
    n_parts=len(RULES) + 1,
    beside=(lateness_of_ranks, idle_times),
)
