"""The findings analysis: runs all rules and returns ranked advice.

A rule that lacks data abstains and gives the reason. This package reads facts and tables of a run.
It writes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from traceprof.findings import (
    accumulation,
    checkpoints,
    communication,
    contention,
    copies,
    drift,
    filling,
    fusion,
    gaps,
    host,
    host_memory,
    imbalance,
    input_bound,
    kernels,
    launches,
    managed,
    offload,
    optimizer,
    pipeline,
    post_training,
    processor,
    recompilation,
    recomputation,
    roles,
    slow_ranks,
    stalls,
    steps,
    uneven_links,
)
from traceprof.findings.amounts import lack_of_data
from traceprof.findings.binding import mark_hidden_savings
from traceprof.findings.checked import check_subjects
from traceprof.findings.context import Context
from traceprof.findings.rules import (
    Finding,
    Rule,
    SettledFinding,
    WhyNot,
    apply_rules,
    by_saving,
    losses_claimed,
)
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
        processor.cpu_shortage,
        host_memory.host_memory_growth,
        launches.whole_graphs,
        steps.profiler_overhead,
        stalls.loading,
        stalls.allocations,
        roles.role_waits,
        post_training.weight_synchronization,
        slow_ranks.slow_host,
        slow_ranks.straggler,
        imbalance.load_imbalance,
        pipeline.pipeline_bubble,
        communication.host_communication,
        checkpoints.checkpoint_stalls,
        recompilation.recompilation,
        input_bound.input_bound,
        managed.managed_memory,
        offload.offloaded_optimizer,
        uneven_links.uneven_links,
        uneven_links.slow_link,
        copies.pageable_copies,
        copies.unpinned_memory,
        copies.blocking_copies,
        copies.blocking_memsets,
        copies.exposed_copies,
        host.host_sync,
        host.host_code,
        optimizer.looped_optimizer,
        launches.launch_bound,
        accumulation.reduced_micro_steps,
        communication.collective_waits,
        communication.small_buckets,
        communication.exposed_communication,
        contention.contention,
        contention.contention_with_copies,
        drift.slower_steps,
        steps.slow_steps,
        steps.warmup,
        recomputation.recomputation,
        kernels.precision,
        optimizer.unfused_optimizer,
        kernels.layout_conversion,
        post_training.generation_tail,
        filling.few_blocks,
        fusion.unfused_attention,
        fusion.fusable_kernels,
        fusion.small_kernels,
        filling.unfilled_kernels,
        gaps.gpu_gaps,
        gaps.low_utilization,
    ),
)
"""All rules, in the order in which they claim time: the more specific rule first."""

SPEC: Final = ResultSpec.of("""
    table findings: one row per finding, ordered by saving; one-time costs are ordered by their
        share of the analyzed time
    key rule: name of the rule
    key number [number]: number of the finding among the findings of its rule, from 1
    same title: the problem, with its share
    same kind: how certain the saving is: measured, bounded (a proven upper bound), estimated (by
        a model), once (a one-time cost), none (no known saving)
    same claimed_ratio: share of the base that the finding covers and no other finding claims
    same saving_ratio: share of the base that could be saved
    same saving_ns: time that could be saved per base
    same min_saving_ns: lower end of the range of an estimated saving
    same max_saving_ns: upper end of the range of an estimated saving
    same base: reference of saving_ns: a step, an iteration, the window, the mean step with slow
        steps, the mean step with checkpoints, or the mean step with compilations
    same base_ns: length of the base
    same measured_ratio: saving that `traceprof try --from` measured for this advice
    same one_time_ns: one-time cost, if the cost does not recur in each step
    same model: assumptions and bounds of an estimated saving
    same evidence: facts that support the finding
    same action: advice
    same caveat: when the advice does not apply or saves less
    same window: the worst place, as a value for --window
    same ranges: names of the affected ranges
    same show: the analysis with more details
    same ncu: command that profiles the longest launch of the main kernel with Nsight Compute; the
        launch number counts from the start of the recording
    same claim_kind: type of the claimed time: lost, compute, slow steps, slower steps, or periodic
        costs
    same is_minor: the finding covers less than 1% of the time and is not on the page
    table losses: one row per part of the analyzed GPU time that is not compute; together with
        compute, the parts add up to the analyzed GPU time
    key loss: name of the part; idle time is split by cause
    same total_ns: length of the part, summed over all GPUs
    same share_ratio: total_ns divided by the analyzed time of all GPUs
    same claimed_ns: time in this part that findings claim
    same rules: the rules with a claim, the largest claim first
    table not_checked: one row per rule that had not enough data
    key rule: name of the rule
    same subject: subject of the rule
    same reason: why the rule could not run
    table checked: one row per subject of the rules
    key subject: subject of one or more rules
    same is_evaluated: at least one rule for this subject had enough data
    same is_fine: no rule found a problem that is not minor, findings of other subjects claim no
        large loss of this type, and there is enough data
    same lacks: why there is not enough data to exclude a problem
    same seen: kind of events that the rules analyzed
    same seen_count: number of these events in the analyzed time
    same share_ratio: largest known share of the analyzed time: lost time of this type, or time of
        a finding; empty if no rule measures it
    table lost: one row per message about GPU activity that is missing from the trace
    key number [number]: number of the message, from 1
    same about: missing, why, or to do
    same message: the message
    scalars:
    same is_idle_known: the trace contains enough GPU activity to measure idle time
    same compute_ratio: share of compute in the analyzed time
    same analyzed_ns: analyzed time, summed over all GPUs
    same compute_ns: compute time, summed over all GPUs
    same slow_ratio: time that slow steps add, as a share of the mean step with slow steps
    same base: reference of shares and savings: step, iteration, or window
    same step_ns: length of the base
    """)


def measure_findings(ranks: Ranks) -> Result:
    """Return the result of all rules for a run."""
    context = Context(ranks)
    settled, not_checked = apply_rules(context, RULES)
    found = by_saving(mark_hidden_savings(context, settled))
    losses = losses_claimed(context, found)
    rows: dict[str, list[dict[str, Any]]] = {
        "findings": [_row(settled) for settled in found],
        "losses": losses,
        "not_checked": [
            {"rule": rule.name, "subject": rule.subject, "reason": not_checked[rule.name].reason}
            for rule in RULES
            if rule.name in not_checked
        ],
        "checked": [*check_subjects(context, RULES, found, not_checked, losses)],
        "lost": _lost(context),
    }
    analyzed = context.analyzed_by_place
    compute_ns = sum((time.compute & analyzed[i]).total_ns for i, time in context.times.items())
    scalars = {
        "is_idle_known": context.is_idle_known,
        "compute_ratio": compute_ns / context.analyzed_ns,
        "analyzed_ns": round(context.analyzed_ns),
        "compute_ns": compute_ns,
        "slow_ratio": context.slow_ratio,
        "base": context.base.unit,
        "step_ns": context.base.unit_ns,
    }
    tables = {name: SPEC.table(name).of_rows(of_table) for name, of_table in rows.items()}
    return Result("findings", SPEC, tables, scalars, notes=_notes(context, rows, not_checked))


def _lost(context: Context) -> list[dict[str, object]]:
    """Return the rows of the table ``lost``: messages about missing GPU activity."""
    lost = lost_work(context.ranks)
    if lost is None:
        return []
    sections = (("missing", lost.what), ("why", lost.causes), ("to do", (lost.action,)))
    rows = [{"about": about, "message": note} for about, notes in sections for note in notes]
    return [{"number": number, **row} for number, row in enumerate(rows, 1)]


def _row(settled: SettledFinding) -> dict[str, object]:
    """Return one row of the table ``findings``."""
    finding = settled.finding
    finding_fields = ("title", "one_time_ns", "evidence", "action", "caveat", "window", "ncu")
    ratios = ("claimed_ratio", "saving_ratio", "saving_ns")
    settled_fields = ("number", *ratios, "is_minor", "base", "base_ns")
    least_ns, most_ns = settled.range_ns or (None, None)
    return {
        "min_saving_ns": least_ns,
        "max_saving_ns": most_ns,
        "rule": settled.rule.name,
        "show": settled.rule.show,
        "kind": finding.kind.value,
        "model": finding.model or "",
        "ranges": "; ".join(finding.ranges),
        "claim_kind": ", ".join(dict.fromkeys(claim.claim_kind.value for claim in settled.claims)),
        **{name: getattr(finding, name) for name in finding_fields},
        **{name: getattr(settled, name) for name in settled_fields},
    }


def _notes(
    context: Context, rows: Mapping[str, list[dict[str, Any]]], not_checked: Mapping[str, WhyNot]
) -> tuple[Note, ...]:
    """Return a note if nothing was found, and one note per reason why rules not_checked.

    ``rows`` are the rows of the tables.
    """
    notes = [] if rows["findings"] else [lack_of_data(context) or Note("no problem found")]
    lacks = [row["lacks"] for row in rows["checked"] if row["lacks"]]
    notes += [note for note in lacks if "waited" in note.values]
    subjects: dict[str, dict[str, None]] = {}
    # Why each subject was not checked; None: a rule checked it.
    whys: dict[str, set[str | None]] = {}
    for rule in RULES:
        why = not_checked.get(rule.name)
        if why is None or why.is_told:
            whys.setdefault(rule.subject, set()).add(why.reason if why else None)
    for rule in RULES:
        why = not_checked.get(rule.name)
        if why is not None and why.is_told:
            # If the rules of a subject differ, only the summary of this rule was not checked.
            text = rule.summary if len(whys[rule.subject]) > 1 else rule.subject
            subjects.setdefault(why.reason, {})[text] = None
    notes += [
        Note.of("not checked: {subjects}: {reason}", subjects=", ".join(names), reason=reason)
        for reason, names in subjects.items()
    ]
    return tuple(notes)


FINDINGS = Analysis(
    "findings",
    SPEC,
    uses=(
        *("kernels", "kernel_shapes", "copies", "api_calls", "ranges", "host_ops", "collectives"),
        *("functions", "operator_inputs"),
        *("overheads", "syncs", "marks", "devices", "processes", "environment", "samples"),
    ),
    whole=("kernels", "copies", "api_calls", "ranges", "samples"),
    of_steps=True,
    of_ranks=measure_findings,
    n_parts=len(RULES) + 1,
    beside=(lateness_of_ranks, idle_times),
)
