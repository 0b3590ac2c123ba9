"""What a finding is, and what a rule is that makes findings."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from traceprof.analysis.advice.findings.context import Context
from traceprof.model.results import Note

__all__ = ["Finding", "Rule"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One piece of advice.

    ``saving_ratio`` is the estimated share of the time that it costs, an upper bound of the gain;
    ``saving_ns`` the same per step (of the whole window where steps are not known). ``window``
    can be given to ``--window`` to look at the worst place. A symptom says that devices wait; it
    stands behind the findings that say why.
    """

    title: Note
    saving_ratio: float
    saving_ns: int
    evidence: tuple[Note, ...]
    action: str
    caveat: str
    window: str = ""
    ranges: tuple[str, ...] = ()
    is_symptom: bool = False


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule. To add one: a module that defines ``RULE``, and its place in `RULES`.

    ``needs`` names the tables without which it cannot judge, ``show`` the analysis that tells more.
    ``check`` yields its findings and raises NotRecordedError, with the reason, where the trace does
    not let it judge.
    """

    name: str
    summary: str
    needs: tuple[str, ...]
    show: str
    check: Callable[[Context], Iterable[Finding]]
