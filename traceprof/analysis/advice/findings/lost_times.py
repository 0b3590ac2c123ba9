"""What of the judged time devices lose to what, and which findings claim it."""

from __future__ import annotations

from collections.abc import Iterable

from traceprof.analysis.advice.findings.claims import Ground
from traceprof.analysis.advice.findings.context import Context
from traceprof.analysis.advice.findings.judging import Judged
from traceprof.measures.idle.losses import DRAINED, LOSSES, Times, find_losses, idle_times, within

__all__ = ["losses_claimed"]


def losses_claimed(context: Context, found: Iterable[Judged]) -> list[dict[str, object]]:
    """Return the rows of the table ``losses``: one per loss that there is, the largest first."""
    judged = {device: context.judged[device] for device in context.devices}
    losses, after_wait = find_losses(context.ranks), idle_times(context.ranks)[DRAINED]
    claims = [
        (own.rule.name, claim.times)
        for own in found
        for claim in own.claims
        if claim.ground is Ground.LOST
    ]
    rows: list[dict[str, object]] = []
    for loss in LOSSES:
        times = within(losses[loss], judged)
        total_ns = _ns(times)
        if not total_ns:
            continue
        by_rule: dict[str, int] = {}
        for rule, claimed in claims:
            by_rule[rule] = by_rule.get(rule, 0) + _ns(within(times, claimed))
        rules = sorted(
            (rule for rule, ns in by_rule.items() if ns), key=lambda rule: -by_rule[rule]
        )
        rows.append(
            {
                "loss": loss,
                "total_ns": total_ns,
                "share_ratio": total_ns / context.judged_ns,
                "after_wait_ns": _ns(within(times, after_wait)),
                "claimed_ns": sum(by_rule.values()),
                "rules": ", ".join(rules),
            }
        )
    return sorted(rows, key=lambda row: -int(str(row["total_ns"])))


def _ns(times: Times) -> int:
    return sum(time.total_ns for time in times.values())
