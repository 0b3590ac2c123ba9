"""Collect the sentences at the top of an answer, and its results in the order of display.

All renderers for people use them, so that text, Markdown, and HTML say the same.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from traceprof import measures
from traceprof.comparison import EXPLAIN, Comparison
from traceprof.measures.workload import UNKNOWN
from traceprof.model.results import Note, Result
from traceprof.model.trace import DEVICE_TABLES, MAX_SIMILAR_WARNINGS, merge_similar_warnings
from traceprof.render.escape import plain_text
from traceprof.render.formatting import capitalized, note_text, sentences
from traceprof.render.registry import Answered, Options
from traceprof.render.shown import Row, ShownTable, columns_of, further_tables, table_for_people
from traceprof.session.answer import Document
from traceprof.session.caveats import INCOMPLETE, WARNING
from traceprof.session.verdict import Verdict
from traceprof.units import format_duration

_NOTHING_FOUND: Final = "No problem found."
_TOO_LITTLE_DATA: Final = "No finding, but there is not enough data to exclude problems."
_NOTHING_KNOWN: Final = "No GPU activity was recorded, so traceprof can evaluate little."
_MAX_COMMAND_LENGTH: Final = 4_000
_NOT_EVALUATED: Final = (
    "Idle time, launches, and kernels are not evaluated because GPU activity is missing."
)


NOT_CHECKED: Final = "Not checked"
"""Label of subjects that were not checked."""


@dataclass(frozen=True, slots=True)
class Briefing:
    """The sentences of a page, as plain text; "" and () if unknown.

    Attributes:
        title: file name of the trace.
        profiler: name and version of the recorder.
        window: name of the analyzed window.
        times: duration of the window and its position in the run.
        notes: why this window was chosen (the reason first), and other notes on it.
        warnings: warnings of the reader.
        workload: kind of workload and hardware.
        because: evidence for the kind of workload.
        nothing: sentence that replaces the findings if there are none.
        pace: step time and throughput.
        answer: bottleneck and time breakdown.
        made_of: composition of compute time and of idle time.
        all_findings: command that lists all findings.
        once: one-time costs.
        periodic: periodic costs.
        fine: subjects that were checked without a problem.
        unknown: subjects that were not checked, and why.
        next_command: command to continue with.
        lost: missing GPU activity. On a page with a verdict also why, and how to record it.
    """

    title: str
    profiler: str
    window: str
    times: str
    notes: tuple[str, ...]
    warnings: tuple[str, ...]
    workload: str = ""
    because: str = ""
    nothing: str = ""
    pace: str = ""
    answer: str = ""
    made_of: tuple[str, ...] = ()
    all_findings: str = ""
    once: str = ""
    periodic: str = ""
    fine: str = ""
    unknown: tuple[str, ...] = ()
    next_command: str = ""
    lost: tuple[str, ...] = ()

    @property
    def workload_line(self) -> str:
        """Workload and hardware, with the evidence for the workload in parentheses."""
        return f"{self.workload} ({self.because})" if self.because else self.workload

    @property
    def remarks(self) -> tuple[tuple[str, str], ...]:
        """Label and text of each remark below the findings."""
        labeled = (
            ("One-time", self.once),
            ("Periodic", self.periodic),
            ("No problem", self.fine),
            *((NOT_CHECKED, text) for text in self.unknown),
            ("Next", self.next_command),
        )
        return tuple((label, text) for label, text in labeled if text)


def _in_one_line(costs: Sequence[Note]) -> str:
    """Return the notes on costs, of which some are sentences, separated by semicolons."""
    *others, last = [*map(note_text, costs)] or [""]
    return "; ".join([*(text.rstrip(".") for text in others), last])


def briefing_of(document: Document) -> Briefing:
    """Return the sentences of a page about ``document``; most of them need a verdict."""
    window, verdict = document.selection.window, document.verdict
    start, end = (
        format_duration(document.ns_after_start(at)) for at in (window.start_ns, window.end_ns)
    )
    position = f"at {start}" if start == end else f"from {start} to {end}"
    length, run_length = (format_duration(span.duration_ns) for span in (window, document.span))
    times = f"{length}, {position} of {run_length}"
    if window.gaps:  # the steps are shorter than the time from the first to the last
        (first, unit), last_unit = start.split(" "), end.split(" ")[1]
        begin = first if unit == last_unit else start
        what = " of steps" if window.is_of_steps else ""
        times = f"{length}{what} in {begin}–{end} of {run_length}"
    warnings = document.info.warnings
    if len(warnings) > MAX_SIMILAR_WARNINGS:
        warnings = merge_similar_warnings(warnings)
    briefing = Briefing(
        title=plain_text(Path(document.info.path).name),
        profiler=plain_text(document.info.profiler),
        window=plain_text(document.selection.label),
        times=times,
        notes=tuple(sentences(document.selection.notes)),
        warnings=tuple(map(plain_text, warnings)),
    )
    if verdict is None:
        return replace(briefing, lost=tuple(map(note_text, document.lost)))
    workload, because = _workload_of(document)
    bottleneck = [f"{capitalized(verdict.bound_by)}."] if verdict.bound_by else []
    return replace(
        briefing,
        workload=capitalized(workload),
        because=because,
        nothing=_sentence_without_findings(document),
        pace=" ".join(map(note_text, verdict.pace)),
        answer=" ".join((*bottleneck, *map(note_text, verdict.sentences[len(verdict.pace) :]))),
        made_of=tuple(map(note_text, verdict.made_of)),
        all_findings=_complete_command(document, "traceprof findings TRACE"),
        once=_in_one_line(verdict.once),
        periodic=_in_one_line(verdict.periodic),
        fine=_checked(verdict),
        unknown=tuple(map(note_text, verdict.unknown)),
        next_command=_complete_command(document, verdict.next_command),
        lost=tuple(map(note_text, verdict.lost)),
    )


def _checked(verdict: Verdict) -> str:
    """Return number and names of the subjects without a problem, and what the rules saw of them."""
    if not (n := len(verdict.fine)):
        return ""
    seen, *subjects = map(note_text, verdict.fine_seen)
    names = ", ".join(subjects)
    shares = ". Shares (from 1%) are of the analyzed time" if "%" in names else ""
    return f"{n} check{'s' if n > 1 else ''} ({seen}): {names}{shares}"


def _complete_command(document: Document, command: str) -> str:
    """Return ``command`` with the path for TRACE and the user's window, ready to paste."""
    requested = "" if command.startswith("traceprof explain") else document.selection.asked
    window = f" --window {shlex.quote(requested)}" if requested else ""
    path = shlex.quote(document.info.path)
    return plain_text(command.replace("TRACE", path) + window, _MAX_COMMAND_LENGTH)


def findings_for_people(findings: Result) -> list[Row]:
    """Return the findings that are not minor, the most important first."""
    return [row for row in findings.table.rows() if not row.get("is_minor")]


def _workload_of(document: Document) -> tuple[str, str]:
    """Return workload and hardware, and the evidence for the workload; "" if unknown."""
    models = ((plain_text(name), n) for name, n in document.hardware.items())
    hardware = ", ".join(f"{n}× {name}" for name, n in models)
    found = document.workload
    if found is None:
        return hardware, ""
    kind = "" if found.kind == UNKNOWN else found.kind
    reason = note_text(found.reasons[0]) if found.reasons else ""
    because = f"workload unknown: {reason}" if reason and not kind else reason
    if kind and not hardware and not document.recorded & {*DEVICE_TABLES, "api_calls"}:
        return f"{kind}, no GPU recorded", because
    return " on ".join(filter(None, (kind, hardware))), because


def _sentence_without_findings(document: Document) -> str:
    """Return the sentence that replaces the findings; "" if there are findings to show."""
    findings = document.results.get("findings")
    if findings is None or findings_for_people(findings):
        return ""
    if not findings.scalars.get("is_idle_known", True):
        return _NOT_EVALUATED
    breakdown = document.results.get("breakdown")
    if breakdown is None or breakdown.table.empty:
        return _NOTHING_KNOWN
    is_enough = document.verdict is None or document.verdict.is_enough
    return _NOTHING_FOUND if is_enough else _TOO_LITTLE_DATA


_TITLES: Final = {
    **{entry.name: entry.summary for entry in measures.ANALYSES},
    EXPLAIN: "where the difference is",
}
_SHOWN_IF_EMPTY: Final = "breakdown"
"""Its notes explain why there is no GPU activity."""


EXPLAINED_IF_EMPTY: Final = ("quality",)
"""If its table is empty, a note says what that means."""


@dataclass(frozen=True, slots=True, eq=False)
class Section:
    """One result for people: its main ``table``, and ``more`` tables below it."""

    name: str
    title: str
    result: Result
    table: ShownTable
    more: tuple[ShownTable, ...]


@dataclass(frozen=True, slots=True)
class Head:
    """The sentences above the results.

    Attributes:
        title: path of the trace, or title of the comparison.
        where: the analyzed window ("" for a comparison).
        remarks: notes on the window or the comparison.
        warnings: warnings of the readers.
        sentences: the verdict.
        lost: missing data, if ``sentences`` do not report it.
    """

    title: str
    where: str
    remarks: tuple[str, ...]
    warnings: tuple[str, ...]
    sentences: tuple[str, ...]
    lost: tuple[str, ...] = ()

    @property
    def caveats(self) -> tuple[str, ...]:
        """Warnings and missing data, which affect every number, as sentences."""
        return (*map(as_warning, self.warnings), *self.lost)


def as_warning(text: str) -> str:
    """Return ``text`` with the prefix of a warning, unless it has a prefix."""
    return text if text.startswith((INCOMPLETE, WARNING)) else f"{WARNING}{text}"


def head_of(document: Answered) -> Head:
    """Return the sentences above the results of a document."""
    if isinstance(document, Comparison):
        parts = (document.notes, document.warnings, document.verdict)
        return Head(document.title, "", *(tuple(sentences(notes)) for notes in parts))
    briefing = briefing_of(document)
    remarks = (": ".join(remark) for remark in briefing.remarks)
    verdict = (
        briefing.workload_line,
        *briefing.lost,
        briefing.pace,
        briefing.answer,
        *briefing.made_of,
        *remarks,
    )
    return Head(
        document.info.path,
        f"Window {document.selection.label}: {briefing.times}",
        briefing.notes,
        briefing.warnings,
        tuple(filter(None, verdict)) if document.verdict else (),
        () if document.verdict else tuple(f"{INCOMPLETE}{text}" for text in briefing.lost),
    )


def sections_of(document: Answered, options: Options) -> Iterator[Section]:
    """Yield the results with the tables to show. Empty results are left out if there are several.

    Raises:
        UsageError: a column that was chosen is in no table.
    """
    chosen = columns_of(document.results.values(), document.ranks, options.columns)
    titles = dict(document.about) if isinstance(document, Comparison) else _TITLES
    for name, result in document.results.items():
        if len(document.results) > 1 and result.table.empty and name != _SHOWN_IF_EMPTY:
            continue
        first = result.spec.tables[0].name
        names = [first, *(result.tables if chosen else further_tables(result, options.tables))]
        tables = [
            table_for_people(result, document.ranks, table_name, chosen)
            for table_name in dict.fromkeys(names)
        ]
        if chosen:
            tables = [table for table in tables if table.columns]
        if tables:
            title = capitalized(titles.get(name, name))
            yield Section(name, title, result, tables[0], tuple(tables[1:]))
