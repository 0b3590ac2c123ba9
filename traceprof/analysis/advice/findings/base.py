"""What a finding is, and what a rule is that makes findings."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from traceprof.analysis.advice.findings.claims import Claim, Kind
from traceprof.analysis.advice.findings.context import Context
from traceprof.model.results import Note
from traceprof.values import dataclass

__all__ = ["Finding", "Rule"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One piece of advice.

    ``claims`` is the time that it is about: what of it was not claimed before is its own, and its
    saving. ``kind`` says how sure that saving is, ``model`` what an estimate rests on, and
    ``once_ns`` what is lost once where it is not per step. ``window`` can be given to ``--window``
    to look at the worst place, and ``ncu`` profiles a kernel that the finding names.
    """

    title: Note
    claims: tuple[Claim, ...]
    kind: Kind
    evidence: tuple[Note, ...]
    action: str
    caveat: str
    model: Note | None = None
    once_ns: int | None = None
    window: str = ""
    ranges: tuple[str, ...] = ()
    ncu: str = ""


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule. To add one: a module that defines ``RULE``, and its place in `RULES`.

    The order of `RULES` is that in which they claim: the more specific first. ``needs`` names the
    tables without which it cannot judge, ``show`` the analysis that tells more. ``check`` yields
    its findings and raises NotRecordedError, with the reason, where the trace does not let it
    judge.
    """

    name: str
    subject: str
    summary: str
    needs: tuple[str, ...]
    show: str
    check: Callable[[Context], Iterable[Finding]]
