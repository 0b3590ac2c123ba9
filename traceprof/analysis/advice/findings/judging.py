"""Asking the rules in their order, and settling who claims what."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from traceprof.analysis.advice.findings.base import Finding, Rule
from traceprof.analysis.advice.findings.claims import Claim, Kind
from traceprof.analysis.advice.findings.context import Context
from traceprof.errors import NotRecordedError
from traceprof.processes import PROGRESS
from traceprof.values import dataclass

__all__ = ["Judged", "judge"]

_MINOR: Final = 0.01


@dataclass(frozen=True, slots=True, eq=False)
class Judged:
    """A finding, the ``number``-th of its rule, with what it was granted.

    ``claimed_ratio`` is the share of the time that it is about, ``saving_ratio`` the share of it
    that could be saved, ``saving_ns`` the same per step (of the window without steps).
    """

    rule: Rule
    number: int
    finding: Finding
    claims: tuple[Claim, ...]
    claimed_ratio: float
    saving_ratio: float
    saving_ns: int

    @property
    def weight(self) -> float:
        """What it is ranked by: its saving, or the time it is about where nothing is saved."""
        if self.finding.kind in (Kind.NONE, Kind.ONCE):
            return self.claimed_ratio
        return self.saving_ratio

    @property
    def is_minor(self) -> bool:
        """Whether it is too small for a page."""
        return self.finding.kind is not Kind.ONCE and self.weight < _MINOR


def judge(context: Context, rules: Iterable[Rule]) -> tuple[list[Judged], dict[str, str]]:
    """Return the findings, the most important first, and why which rules could not judge."""
    found: list[Judged] = []
    abstained: dict[str, str] = {}
    for rule in rules:
        try:
            context.ranks.require(*rule.needs)
            for number, finding in enumerate(rule.check(context), 1):
                found.append(_settled(context, rule, number, finding))
        except NotRecordedError as error:
            abstained[rule.name] = str(error)
        PROGRESS.advance()
    found.sort(key=lambda own: (own.is_minor, own.weight < _MINOR, -own.weight))
    return found, abstained


def _settled(context: Context, rule: Rule, number: int, finding: Finding) -> Judged:
    claims = context.ledger.take(finding.claims)
    saves = finding.kind not in (Kind.NONE, Kind.ONCE)
    ratio = sum(map(context.saving_ratio, claims)) if saves else 0.0
    return Judged(
        rule=rule,
        number=number,
        finding=finding,
        claims=claims,
        claimed_ratio=sum(map(context.claimed_ratio, claims)),
        saving_ratio=ratio,
        saving_ns=context.saving_ns(claims) if saves else 0,
    )
