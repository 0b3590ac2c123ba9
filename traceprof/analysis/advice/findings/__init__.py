"""Findings: ranked advice. One file per rule; a rule that lacks its data abstains and says so."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Final

import pandas as pd

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
from traceprof.model.trace import Trace

__all__ = ["ANALYSIS", "RULES", "Finding", "Findings", "Rule", "measure_findings"]

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


@dataclass(frozen=True, slots=True)
class Findings:
    """The findings, the largest saving first, symptoms last.

    ``abstained`` is the rules that could not judge, with the reason.
    """

    findings: tuple[Finding, ...]
    abstained: tuple[tuple[str, str], ...] = ()

    @property
    def notes(self) -> tuple[str, ...]:
        """Which rules could not judge, and that nothing was found."""
        found = () if self.findings else ("no rule found anything to improve",)
        rules: dict[str, list[str]] = {}
        for rule, reason in self.abstained:
            rules.setdefault(reason, []).append(rule)
        return (
            *found,
            *(f"not judged: {', '.join(names)}: {reason}" for reason, names in rules.items()),
        )

    def to_frame(self) -> pd.DataFrame:
        """Return one row per finding."""
        columns = list(Finding.__dataclass_fields__)
        rows = [asdict(finding) for finding in self.findings]
        table = pd.DataFrame(rows, columns=columns).drop(columns="is_symptom")
        for column in ("evidence", "ranges"):
            table[column] = table[column].map("; ".join).astype(object)
        return table


def measure_findings(trace: Trace) -> Findings:
    """Return the advice of all rules."""
    context = Context(trace)
    findings: list[Finding] = []
    abstained: list[tuple[str, str]] = []
    for rule in RULES:
        try:
            trace.require(*rule.needs)
            findings += rule.check(context)
        except NotRecordedError as error:
            abstained.append((rule.name, str(error)))
    findings.sort(key=lambda finding: (finding.is_symptom, -finding.saving_ratio))
    return Findings(tuple(findings), tuple(abstained))


ANALYSIS = Analysis(
    name="findings",
    needs=(),
    run=measure_findings,
)
