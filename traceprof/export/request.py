"""The interface of exporters: the request, the outcome, and the checks that exporters share."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from traceprof.errors import UsageError
from traceprof.measures import FORMER_NAMES, analysis_names
from traceprof.model.cutting import CutProgress, no_progress
from traceprof.model.tables import TABLES
from traceprof.session.answer import Document, answer
from traceprof.session.caveats import with_caveats
from traceprof.session.run import Run


@dataclass(frozen=True, slots=True)
class Request:
    """What to export. ``output`` is a file or a new folder, depending on the format.

    ``tables`` are the tables of the trace to export; None means all. If ``results`` is not empty,
    export the tables of these analyses instead of the trace. ``ranks`` None means all ranks.
    ``has_tracks``: a Chrome trace also gets lanes with findings, steps, and idle gaps.
    """

    output: Path
    tables: Collection[str] | None = None
    results: tuple[str, ...] = ()
    ranks: Collection[int] | None = None
    force: bool = False
    progress: CutProgress = no_progress
    has_tracks: bool = False


@dataclass(slots=True)
class Exported:
    """The outcome: the number of rows (or events, values) written, and remarks on missing data."""

    path: Path
    n_rows: int = 0
    remarks: dict[str, None] = field(default_factory=dict)

    @property
    def n_bytes(self) -> int:
        """The total size of the written files."""
        files = self.path.rglob("*") if self.path.is_dir() else [self.path]
        return sum(file.stat().st_size for file in files if file.is_file())

    def remark(self, text: str) -> None:
        """Add a remark, unless it exists."""
        self.remarks[text] = None


Export: TypeAlias = Callable[[Run, Request], Exported]
"""Writes a run to files.

It raises UsageError if the output cannot be written, and TraceError if a file cannot be read.
"""


def check_tables(names: Iterable[str] | None) -> list[str]:
    """Return the requested tables of a trace in their standard order; None means all tables.

    Raises:
        UsageError: a table does not exist.
    """
    requested = set(TABLES if names is None else names)
    if unknown := sorted(requested - TABLES.keys()):
        raise UsageError(f"unknown table {', '.join(unknown)}; choose {', '.join(TABLES)}")
    return [name for name in TABLES if name in requested]


def check_analyses(names: Iterable[str]) -> list[str]:
    """Return the current names of the requested analyses; ``["all"]`` means all analyses.

    Raises:
        UsageError: an analysis does not exist.
    """
    requested = [FORMER_NAMES.get(name, name) for name in names]
    if requested == ["all"]:
        return list(analysis_names())
    if unknown := sorted(set(requested) - {*analysis_names()}):
        known = ", ".join(sorted(analysis_names()))
        raise UsageError(f"unknown analysis {', '.join(unknown)}; choose {known}")
    return requested


def answer_analyses(run: Run, names: Sequence[str], exported: Exported) -> Document:
    """Return the results of the analyses ``names``; add a remark for each analysis without one.

    Raises:
        UsageError: no analysis has a result.
    """
    document = answer(run, names)
    for name, why in document.missing.items():
        exported.remark(f"{name}: {why}")
    if not document.results:
        why = f"nothing to write: {'; '.join(exported.remarks)}"
        raise UsageError(with_caveats(why, document.caveats.notes))
    return document
