"""Findings: ranked advice. One file per rule; a rule that lacks its data abstains and says so."""

from __future__ import annotations

from typing import Final

from traceprof.analysis.advice.findings import (
    blocking_copies,
    blocking_memsets,
    exposed_communication,
    gpu_gaps,
    host_code,
    host_sync,
    input_bound,
    launch_bound,
    layout_conversion,
    low_utilisation,
    pageable_copies,
    profiler_overhead,
    slow_host,
    slow_link,
    slow_steps,
    small_buckets,
    small_kernels,
    straggler,
    tensor_cores,
    unpinned_memory,
    warmup,
)
from traceprof.analysis.advice.findings.base import Finding, Rule
from traceprof.analysis.advice.findings.context import Context
from traceprof.analysis.base import Analysis
from traceprof.errors import NotRecordedError
from traceprof.model.ranks import Ranks
from traceprof.model.results import Note, Result, ResultSpec, TableSpec, Unit, key, same

__all__ = ["ANALYSIS", "RULES", "Finding", "Rule"]

RULES: Final[tuple[Rule, ...]] = (
    input_bound.RULE,
    host_sync.RULE,
    host_code.RULE,
    launch_bound.RULE,
    exposed_communication.RULE,
    small_buckets.RULE,
    slow_host.RULE,
    straggler.RULE,
    pageable_copies.RULE,
    unpinned_memory.RULE,
    blocking_copies.RULE,
    blocking_memsets.RULE,
    slow_link.RULE,
    slow_steps.RULE,
    warmup.RULE,
    profiler_overhead.RULE,
    layout_conversion.RULE,
    small_kernels.RULE,
    tensor_cores.RULE,
    gpu_gaps.RULE,
    low_utilisation.RULE,
)

SPEC: Final = ResultSpec(
    tables=(
        TableSpec(
            "findings",
            "one row per finding, the largest saving first, symptoms last",
            (
                key("rule", "the rule that found it"),
                key("number", "which one of that rule, from 1", Unit.NUMBER),
                same("title", Unit.TEXT, "what was found"),
                same("saving_ratio", Unit.RATIO, "the share of the time that it costs, at most"),
                same("saving_ns", Unit.NS, "the same per step; of the window without steps"),
                same("evidence", Unit.TEXT, "what shows it"),
                same("action", Unit.TEXT, "what to do"),
                same("caveat", Unit.TEXT, "when it may be wrong"),
                same("window", Unit.TEXT, "the worst place, as --window takes it"),
                same("ranges", Unit.TEXT, "the ranges concerned"),
                same("show", Unit.TEXT, "the analysis that tells more"),
                same("is_symptom", Unit.FLAG, "says that devices wait, not why"),
            ),
        ),
        TableSpec(
            "abstained",
            "one row per rule that could not judge",
            (
                key("rule", "the rule"),
                same("reason", Unit.TEXT, "what it lacks"),
            ),
        ),
    )
)


def measure_findings(ranks: Ranks) -> Result:
    """Return the advice of all rules."""
    context = Context(ranks)
    findings: list[tuple[Rule, int, Finding]] = []
    abstained: list[dict[str, str]] = []
    for rule in RULES:
        try:
            ranks.require(*rule.needs)
            findings += [(rule, i, found) for i, found in enumerate(rule.check(context), 1)]
        except NotRecordedError as error:
            abstained.append({"rule": rule.name, "reason": str(error)})
    findings.sort(key=lambda item: (item[2].is_symptom, -item[2].saving_ratio))
    rows = [_row(rule, number, finding) for rule, number, finding in findings]
    tables = {
        "findings": SPEC.table("findings").frame(rows),
        "abstained": SPEC.table("abstained").frame(abstained),
    }
    return Result("findings", SPEC, tables, notes=_notes(bool(findings), abstained))


def _row(rule: Rule, number: int, finding: Finding) -> dict[str, object]:
    return {
        "rule": rule.name,
        "number": number,
        "title": finding.title,
        "saving_ratio": finding.saving_ratio,
        "saving_ns": finding.saving_ns,
        "evidence": finding.evidence,
        "action": finding.action,
        "caveat": finding.caveat,
        "window": finding.window,
        "ranges": "; ".join(finding.ranges),
        "show": rule.show,
        "is_symptom": finding.is_symptom,
    }


def _notes(found_any: bool, abstained: list[dict[str, str]]) -> tuple[Note, ...]:
    """Return that nothing was found, and which rules could not judge."""
    notes = [] if found_any else [Note("no rule found anything to improve")]
    rules: dict[str, list[str]] = {}
    for row in abstained:
        rules.setdefault(row["reason"], []).append(row["rule"])
    notes += [
        Note.of("not judged: {rules}: {reason}", rules=", ".join(names), reason=reason)
        for reason, names in rules.items()
    ]
    return tuple(notes)


ANALYSIS = Analysis(
    name="findings",
    spec=SPEC,
    uses=(
        "kernels",
        "copies",
        "api_calls",
        "ranges",
        "collectives",
        "overheads",
        "syncs",
        "marks",
        "devices",
        "processes",
        "environment",
    ),
    whole=("kernels", "copies", "api_calls"),
    of_steps=True,
    of_ranks=measure_findings,
)
