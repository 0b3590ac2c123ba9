"""Findings: ranked advice. A rule that lacks its data abstains and says so."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from traceprof.findings import (
    communication,
    copies,
    gaps,
    host,
    input_bound,
    kernels,
    launches,
    optimizer,
    slow_ranks,
    stalls,
    steps,
)
from traceprof.findings.context import Context
from traceprof.findings.rules import Finding, Rule, SettledFinding, judge, losses_claimed
from traceprof.measures.analyses import Analysis
from traceprof.measures.idle.losses import idle_times
from traceprof.measures.ranks.stragglers import lateness_of_ranks
from traceprof.model.ranks import Ranks
from traceprof.model.results import Note, Result, ResultSpec, TableSpec, Unit, key, same

__all__ = ["FINDINGS", "RULES", "Finding", "Rule"]


RULES: Final[tuple[Rule, ...]] = (
    launches.WHOLE_GRAPHS,
    steps.PROFILER_OVERHEAD,
    stalls.LOADING,
    stalls.ALLOCATIONS,
    slow_ranks.SLOW_HOST,
    slow_ranks.STRAGGLER,
    input_bound.INPUT_BOUND,
    copies.SLOW_LINK,
    copies.PAGEABLE_COPIES,
    copies.UNPINNED_MEMORY,
    copies.BLOCKING_COPIES,
    copies.BLOCKING_MEMSETS,
    copies.EXPOSED_COPIES,
    host.HOST_SYNC,
    host.HOST_CODE,
    optimizer.LOOPED_OPTIMIZER,
    launches.LAUNCH_BOUND,
    communication.SMALL_BUCKETS,
    communication.EXPOSED_COMMUNICATION,
    steps.SLOW_STEPS,
    steps.WARMUP,
    kernels.PRECISION,
    optimizer.UNFUSED_OPTIMIZER,
    kernels.LAYOUT_CONVERSION,
    kernels.FUSABLE_KERNELS,
    kernels.SMALL_KERNELS,
    gaps.GPU_GAPS,
    gaps.LOW_UTILISATION,
)
"""In the order in which they claim time: the more specific first."""

SPEC: Final = ResultSpec(
    tables=(
        TableSpec(
            "findings",
            "one row per finding, the largest saving first; what occurs once by its share of the "
            "time that is judged",
            (
                key("rule", "the rule that found it"),
                key("number", "which one of that rule, from 1", Unit.NUMBER),
                same("title", Unit.TEXT, "what was found"),
                same(
                    "kind",
                    Unit.TEXT,
                    "how sure the saving is: measured, bounded (at most), estimated (by a model), "
                    "once (a cost that occurs once), none (nothing is known to be saved)",
                ),
                same(
                    "claimed_ratio", Unit.RATIO, "the share of the time that it is about, its own"
                ),
                same("saving_ratio", Unit.RATIO, "the share of the time that could be saved"),
                same("saving_ns", Unit.NS, "the same per step; of the window without steps"),
                same("once_ns", Unit.NS, "what it costs once, where it is not per step"),
                same("model", Unit.TEXT, "what an estimated saving rests on"),
                same("evidence", Unit.TEXT, "what shows it"),
                same("action", Unit.TEXT, "what to do"),
                same("caveat", Unit.TEXT, "when it may be wrong"),
                same("window", Unit.TEXT, "the worst place, as --window takes it"),
                same("ranges", Unit.TEXT, "the ranges concerned"),
                same("show", Unit.TEXT, "the analysis that tells more"),
                same(
                    "ncu",
                    Unit.TEXT,
                    "what profiles the longest launch of the kernel concerned most with Nsight "
                    "Compute; launches are counted from the start of the recording",
                ),
                same("ground", Unit.TEXT, "what the claimed time is: lost, compute or slow steps"),
                same("is_minor", Unit.FLAG, "less than 1 % of the time: not for a page"),
            ),
        ),
        TableSpec(
            "losses",
            "one row per part of the judged time of the devices: with compute they fill it",
            (
                key("loss", "a part of the time that is no compute; idle time by its cause"),
                same("total_ns", Unit.NS, "how long, of all devices together"),
                same("share_ratio", Unit.RATIO, "total_ns of the judged time of all devices"),
                same(
                    "after_wait_ns",
                    Unit.NS,
                    "what of it follows a wait of the host, and would not be without it",
                ),
                same("claimed_ns", Unit.NS, "what of it findings claim"),
                same("rules", Unit.TEXT, "the rules that do, the one with the most first"),
            ),
        ),
        TableSpec(
            "abstained",
            "one row per rule that could not judge",
            (
                key("rule", "the rule"),
                same("subject", Unit.TEXT, "what it is about"),
                same("reason", Unit.TEXT, "what it lacks"),
            ),
        ),
        TableSpec(
            "checked",
            "one row per subject of the rules",
            (
                key("subject", "what rules are about"),
                same("is_judged", Unit.FLAG, "a rule about it could judge"),
                same("is_fine", Unit.FLAG, "and none found anything that is not minor"),
            ),
        ),
    ),
    scalars=(
        same("compute_ratio", Unit.RATIO, "the share of the judged time that is compute"),
        same("judged_ns", Unit.NS, "the judged time of all devices together"),
        same("compute_ns", Unit.NS, "what of it is compute"),
        same("slow_ratio", Unit.RATIO, "the share by which slow steps are longer than typical"),
    ),
)


def measure_findings(ranks: Ranks) -> Result:
    """Return the advice of all rules."""
    context = Context(ranks)
    found, abstained = judge(context, RULES)
    tables = {
        "findings": SPEC.table("findings").frame([_row(own) for own in found]),
        "losses": SPEC.table("losses").frame(losses_claimed(context, found)),
        "abstained": SPEC.table("abstained").frame(
            [
                {"rule": rule.name, "subject": rule.subject, "reason": abstained[rule.name]}
                for rule in RULES
                if rule.name in abstained
            ]
        ),
        "checked": SPEC.table("checked").frame(_checked(found, abstained)),
    }
    scalars = {
        "compute_ratio": _compute_ratio(context),
        "judged_ns": context.judged_ns,
        "compute_ns": _compute_ns(context),
        "slow_ratio": context.slow_ratio,
    }
    return Result("findings", SPEC, tables, scalars, notes=_notes(context, bool(found), abstained))


def _checked(
    found: Iterable[SettledFinding], abstained: Mapping[str, str]
) -> list[dict[str, object]]:
    judged = {rule.subject for rule in RULES if rule.name not in abstained}
    told = {own.rule.subject for own in found if not own.is_minor}
    return [
        {
            "subject": subject,
            "is_judged": subject in judged,
            "is_fine": subject in judged - told,
        }
        for subject in dict.fromkeys(rule.subject for rule in RULES)
    ]


def _compute_ratio(context: Context) -> float:
    return _compute_ns(context) / context.judged_ns * (1 - context.slow_ratio)


def _compute_ns(context: Context) -> int:
    return sum((time.compute & context.judged[i]).total_ns for i, time in context.times.items())


def _row(own: SettledFinding) -> dict[str, object]:
    finding = own.finding
    return {
        "rule": own.rule.name,
        "number": own.number,
        "title": finding.title,
        "kind": finding.kind.value,
        "claimed_ratio": own.claimed_ratio,
        "saving_ratio": own.saving_ratio,
        "saving_ns": own.saving_ns,
        "once_ns": finding.once_ns,
        "model": finding.model or "",
        "evidence": finding.evidence,
        "action": finding.action,
        "caveat": finding.caveat,
        "window": finding.window,
        "ranges": "; ".join(finding.ranges),
        "show": own.rule.show,
        "ncu": finding.ncu,
        "ground": ", ".join(dict.fromkeys(claim.ground.value for claim in own.claims)),
        "is_minor": own.is_minor,
    }


def _notes(context: Context, found_any: bool, abstained: Mapping[str, str]) -> tuple[Note, ...]:
    """Return that nothing was found, what shares are of, and which rules could not judge."""
    notes = [] if found_any else [Note("no rule found anything to improve")]
    if found_any and context.slow_ratio:
        text = (
            "shares in titles and evidence are of the typical steps, savings of all: slow ones add "
            "{slow:ratio} of these"
        )
        notes.append(Note.of(text, slow=context.slow_ratio))
    rules: dict[str, list[str]] = {}
    for rule, reason in abstained.items():
        rules.setdefault(reason, []).append(rule)
    notes += [
        Note.of("not judged: {rules}: {reason}", rules=", ".join(names), reason=reason)
        for reason, names in rules.items()
    ]
    return tuple(notes)


FINDINGS = Analysis(
    name="findings",
    spec=SPEC,
    uses=(
        "kernels",
        "copies",
        "api_calls",
        "ranges",
        "host_ops",
        "collectives",
        "overheads",
        "syncs",
        "marks",
        "devices",
        "processes",
        "environment",
        "samples",
    ),
    whole=("kernels", "copies", "api_calls", "ranges", "samples"),
    of_steps=True,
    of_ranks=measure_findings,
    n_parts=len(RULES) + 1,
    beside=(lateness_of_ranks, idle_times),
)
