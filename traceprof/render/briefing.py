"""What stands above the results of an answer, in words, and the results one after the other."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from traceprof import measures
from traceprof.comparison import EXPLAIN, Comparison
from traceprof.measures.workload import UNKNOWN
from traceprof.model.results import Result
from traceprof.model.trace import DEVICE_TABLES, MOST_ALIKE, told_once
from traceprof.render.escape import plain_text
from traceprof.render.formatting import note_text, sentences
from traceprof.render.registry import Answered, Options
from traceprof.render.shown import Row, ShownTable, columns_of, further_tables, table_for_people
from traceprof.session.answer import Document
from traceprof.session.doubts import INCOMPLETE, WARNING
from traceprof.units import format_duration

_NOTHING_FOUND: Final = "No problem found."
_NOTHING_KNOWN: Final = "No GPU activity was recorded, so traceprof can evaluate little."
_MOST_OF_A_COMMAND: Final = 4_000
_NOT_JUDGED: Final = (
    "Idle time, launches, and kernels are not evaluated because GPU activity is missing."
)


@dataclass(frozen=True, slots=True)
class Briefing:
    """The words of a page; "" and () for what is not known.

    ``workload`` is what runs on what, ``because`` why one thinks so. ``window`` is what it is
    called, ``times`` where in the run it lies, and ``notes`` say why it is that, the reason first.
    ``pace`` is how long steps are and how many a second, ``answer`` the bottleneck in a word and
    where the time goes, ``made_of`` what compute and idle time are, ``nothing`` what to say instead
    of findings where there are none, ``all_findings`` the command that shows all, and ``remarks``
    what stands apart, each with its label. ``lost`` is what of the devices' work is missing; of a
    page also why, and what to do.
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
        """What runs on what, and why one thinks so."""
        return f"{self.workload} ({self.because})" if self.because else self.workload

    @property
    def remarks(self) -> tuple[tuple[str, str], ...]:
        """What stands apart from the findings, each with its label."""
        every = (
            ("One-time", self.once),
            ("Periodic", self.periodic),
            ("No problem", self.fine),
            *(("Not checked", text) for text in self.unknown),
            ("Next", self.next_command),
        )
        return tuple((label, text) for label, text in every if text)


def briefing_of(document: Document) -> Briefing:
    """Return what a page about ``document`` says before its tables; much needs a verdict."""
    window, verdict = document.selection.window, document.verdict
    start, end = (
        format_duration(document.ns_after_start(at)) for at in (window.start_ns, window.end_ns)
    )
    place = f"at {start}" if start == end else f"from {start} to {end}"
    length, whole = (format_duration(span.duration_ns) for span in (window, document.span))
    warnings = document.info.warnings
    if len(warnings) > MOST_ALIKE:
        warnings = told_once(warnings)
    words = Briefing(
        title=plain_text(Path(document.info.path).name),
        profiler=plain_text(document.info.profiler),
        window=plain_text(document.selection.label),
        times=f"{length}, {place} of {whole}",
        notes=tuple(sentences(document.selection.notes)),
        warnings=tuple(map(plain_text, warnings)),
    )
    if verdict is None:
        return replace(words, lost=tuple(map(note_text, document.lost)))
    workload, because = _what_runs(document)
    bound_by = verdict.bound_by
    first = [f"{_capitalized(bound_by)}."] if bound_by else []
    return replace(
        words,
        workload=_capitalized(workload),
        because=because,
        nothing=_instead_of_findings(document),
        pace=" ".join(map(note_text, verdict.pace)),
        answer=" ".join((*first, *map(note_text, verdict.sentences[len(verdict.pace) :]))),
        made_of=tuple(map(note_text, verdict.made_of)),
        all_findings=_pasted(document, "traceprof findings TRACE"),
        once="; ".join(map(note_text, verdict.once)),
        periodic="; ".join(map(note_text, verdict.periodic)),
        fine=_checked(verdict.fine),
        unknown=tuple(map(note_text, verdict.unknown)),
        next_command=_pasted(document, verdict.next_command),
        lost=tuple(map(note_text, verdict.lost)),
    )


def _capitalized(text: str) -> str:
    """Return ``text`` with a capital first letter; the others stay."""
    return text[:1].upper() + text[1:]


def _checked(subjects: Sequence[str]) -> str:
    """Return how many subjects were checked without a problem, and which."""
    if not subjects:
        return ""
    return f"{len(subjects)} check{'s' if len(subjects) > 1 else ''}: {', '.join(subjects)}"


def _pasted(document: Document, command: str) -> str:
    """Return a command about TRACE as one can paste it: with the path, and the same window."""
    asked = "" if command.startswith("traceprof explain") else document.selection.asked
    window = f" --window {shlex.quote(asked)}" if asked else ""
    path = shlex.quote(document.info.path)
    return plain_text(command.replace("TRACE", path) + window, _MOST_OF_A_COMMAND)


def findings_for_people(findings: Result) -> list[Row]:
    """Return the findings that are worth a place on a page, the most important first."""
    return [row for row in findings.table.rows() if not row.get("is_minor")]


def _what_runs(document: Document) -> tuple[str, str]:
    """Return what runs on what devices, and why one thinks so, or what there is instead."""
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


def _instead_of_findings(document: Document) -> str:
    """Return what to say where no rule found anything worth a page; "" where one did."""
    findings = document.results.get("findings")
    if findings is None or findings_for_people(findings):
        return ""
    if not findings.scalars.get("is_idle_known", True):
        return _NOT_JUDGED
    breakdown = document.results.get("breakdown")
    is_known = breakdown is not None and not breakdown.table.empty
    return _NOTHING_FOUND if is_known else _NOTHING_KNOWN


_TITLES: Final = {
    **{entry.name: entry.summary for entry in measures.ANALYSES},
    EXPLAIN: "where the difference is",
}
_SAYS_WHY: Final = "breakdown"
"""Where nothing worked on a device, a page says so."""


@dataclass(frozen=True, slots=True, eq=False)
class Section:
    """One result for people: ``table`` answers, ``more`` tables stand below it."""

    name: str
    title: str
    result: Result
    table: ShownTable
    more: tuple[ShownTable, ...]


@dataclass(frozen=True, slots=True)
class Head:
    """What stands above the results: what was looked at, what to know of it, and the answer.

    ``warnings`` are those of readers, ``lost`` says what is missing where the answer does not.
    """

    title: str
    where: str
    remarks: tuple[str, ...]
    warnings: tuple[str, ...]
    sentences: tuple[str, ...]
    lost: tuple[str, ...] = ()

    @property
    def doubts(self) -> tuple[str, ...]:
        """What must be read with every number, in sentences."""
        return (*map(as_warning, self.warnings), *self.lost)


def as_warning(text: str) -> str:
    """Return a warning as a line that says what it is."""
    return text if text.startswith((INCOMPLETE, WARNING)) else f"{WARNING}{text}"


def head_of(document: Answered) -> Head:
    """Return what stands above the results of a document."""
    if isinstance(document, Comparison):
        every = (document.notes, document.warnings, document.verdict)
        return Head(document.title, "", *(tuple(sentences(notes)) for notes in every))
    words = briefing_of(document)
    remarks = (": ".join(remark) for remark in words.remarks)
    said = (words.workload_line, *words.lost, words.pace, words.answer, *words.made_of, *remarks)
    return Head(
        document.info.path,
        f"Window {document.selection.label}: {words.times}",
        words.notes,
        words.warnings,
        tuple(filter(None, said)) if document.verdict else (),
        () if document.verdict else tuple(f"{INCOMPLETE}{text}" for text in words.lost),
    )


def sections_of(document: Answered, options: Options) -> Iterator[Section]:
    """Yield the results; of several, those that are empty are left out.

    Raises:
        UsageError: a column that was chosen is in no table.
    """
    chosen = columns_of(document.results.values(), document.ranks, options.columns)
    titles = dict(document.about) if isinstance(document, Comparison) else _TITLES
    for name, result in document.results.items():
        if len(document.results) > 1 and result.table.empty and name != _SAYS_WHY:
            continue
        title = titles.get(name, name)
        first = result.spec.tables[0].name
        names = [first, *(result.tables if chosen else further_tables(result, options.tables))]
        tables = [
            table_for_people(result, document.ranks, one, chosen) for one in dict.fromkeys(names)
        ]
        if chosen:
            tables = [table for table in tables if table.columns]
        if tables:
            heading = f"{title[:1].upper()}{title[1:]}"
            yield Section(name, heading, result, tables[0], tuple(tables[1:]))
