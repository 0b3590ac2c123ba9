"""Which subjects have no problem: what the rules saw of each, and whether that is enough."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from traceprof.findings.amounts import STEPS, count_of, lack_of_data, noun_of
from traceprof.findings.context import Context
from traceprof.findings.rules import SUBJECTS, Rule, SettledFinding, WhyNot, subjects_with_losses
from traceprof.findings.stalls import subject_and_advice
from traceprof.findings.waiting import note_on_waiting
from traceprof.measures.steps.undisturbed import profiler_overhead
from traceprof.model.activity import BUSY_PARTS
from traceprof.model.results import Note

_PROFILER: Final = "profiler overhead"
_IDLE: Final = "idle time"
_BALANCE: Final = "load balance across ranks"
_UNKNOWN_COST: Final = Note(
    "the cost of recording is unknown, because no step was timed without the profiler"
)


def check_subjects(
    context: Context,
    rules: Iterable[Rule],
    found: Sequence[SettledFinding],
    not_checked: Mapping[str, WhyNot],
    losses: Sequence[Mapping[str, Any]],
) -> Iterator[dict[str, object]]:
    """Yield the rows of the table ``checked``: one per subject of ``rules``.

    ``found`` and ``not_checked`` are the results of the rules, and ``losses`` are the rows of the
    table ``losses``.
    """
    rules_of: dict[str, list[Rule]] = {}
    for rule in rules:
        rules_of.setdefault(rule.subject, []).append(rule)
    shares = _largest_shares(found, losses)
    problems = _problems(context, found).union(subjects_with_losses(losses))
    counts = {
        about: count_of(context, about)
        for about in {rule.about for rule in rules if rule.name not in not_checked}
    }
    lack = lack_of_data(context)
    for subject, of_subject in rules_of.items():
        seen = [rule.about for rule in of_subject if rule.name not in not_checked]
        row: dict[str, object] = {"subject": subject, "is_evaluated": bool(seen)}
        row |= {"lacks": "", "seen": "", "seen_count": None, "share_ratio": None}
        if seen:
            about = min(seen, key=lambda about: counts[about])
            row |= {"seen": noun_of(about), "seen_count": counts[about]}
            row |= {"share_ratio": shares.get(subject)}
            if subject not in problems:
                waiting = note_on_waiting(context) if subject == _BALANCE else None
                missing = waiting or _missing(context, subject, about, lack)
                row |= {"lacks": missing or _unchecked(of_subject, not_checked) or ""}
        yield {**row, "is_fine": bool(seen) and subject not in problems and not row["lacks"]}


def _missing(context: Context, subject: str, about: str, lack: Note | None) -> Note | None:
    """Return why the data is not enough for a verdict on ``subject``; None if it is enough."""
    if subject == _PROFILER:
        return None if profiler_overhead(context.ranks) else _UNKNOWN_COST
    return None if about == STEPS else lack


def _unchecked(of_subject: Iterable[Rule], not_checked: Mapping[str, WhyNot]) -> Note | None:
    """Return the first rule of a subject that had not enough data, although others had enough."""
    whys = ((one.summary, not_checked.get(one.name)) for one in of_subject)
    return next(
        (
            Note.of("{check}: {reason}", check=summary, reason=why.reason)
            for summary, why in whys
            if why is not None and why.is_lacking
        ),
        None,
    )


def _problems(context: Context, found: Iterable[SettledFinding]) -> set[str]:
    """Return the subjects that findings are about or name as a cause, without minor findings."""
    subjects: set[str] = set()
    for settled in found:
        if not settled.is_minor:
            finding = settled.finding
            subjects |= {settled.rule.subject, *finding.other_subjects}
            subjects |= {subject_and_advice(context, name)[0] for name in finding.ranges}
    return subjects


def _largest_shares(
    found: Iterable[SettledFinding], losses: Iterable[Mapping[str, Any]]
) -> dict[str, float]:
    """Return the largest known share of the analyzed time by subject.

    It is the lost time of this type, or the time of a finding.
    """
    lost: dict[str, float] = {}
    for row in losses:
        subjects = [SUBJECTS.get(row["loss"], "")]
        subjects += [] if row["loss"] in BUSY_PARTS else [_IDLE]
        for subject in filter(None, subjects):
            lost[subject] = lost.get(subject, 0.0) + row["share_ratio"]
    for settled in found:
        subject = settled.rule.subject
        lost[subject] = max(lost.get(subject, 0.0), settled.claimed_ratio)
    return lost
