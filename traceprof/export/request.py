"""What an exporter is: a run, what is asked for, and what came of it."""

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
    """What is wanted: ``output`` is a file or a new folder, as the form has it.

    ``tables`` are those of the trace, None for all; ``results`` the analyses whose tables are
    wanted rather than those of the trace.
    """

    output: Path
    tables: Collection[str] | None = None
    results: tuple[str, ...] = ()
    ranks: Collection[int] | None = None
    force: bool = False
    progress: CutProgress = no_progress


@dataclass(slots=True)
class Exported:
    """What was written: rows (or events, values), and remarks on what could not be."""

    path: Path
    n_rows: int = 0
    remarks: dict[str, None] = field(default_factory=dict)

    @property
    def n_bytes(self) -> int:
        """The size of all files."""
        files = self.path.rglob("*") if self.path.is_dir() else [self.path]
        return sum(file.stat().st_size for file in files if file.is_file())

    def remark(self, text: str) -> None:
        """Add what must be said, once."""
        self.remarks[text] = None


Export: TypeAlias = Callable[[Run, Request], Exported]
"""Writes a run; raises UsageError where the output cannot be written, TraceError as readers do."""


def check_tables(names: Iterable[str] | None) -> list[str]:
    """Return the tables that are asked for, all without ``names``, in their order.

    Raises:
        UsageError: there is none of a name.
    """
    asked = set(TABLES if names is None else names)
    if unknown := sorted(asked - TABLES.keys()):
        raise UsageError(f"unknown table {', '.join(unknown)}; choose {', '.join(TABLES)}")
    return [name for name in TABLES if name in asked]


def check_analyses(names: Iterable[str]) -> list[str]:
    """Return the analyses that are asked for; "all" is every one.

    Raises:
        UsageError: there is none of a name.
    """
    asked = [FORMER_NAMES.get(name, name) for name in names]
    if asked == ["all"]:
        return list(analysis_names())
    if unknown := sorted(set(asked) - {*analysis_names()}):
        known = ", ".join(sorted(analysis_names()))
        raise UsageError(f"unknown analysis {', '.join(unknown)}; choose {known}")
    return asked


def answered(run: Run, names: Sequence[str], done: Exported) -> Document:
    """Return what analyses say; what they lack is remarked.

    Raises:
        UsageError: none of them has a result.
    """
    document = answer(run, names)
    for name, why in document.missing.items():
        done.remark(f"{name}: {why}")
    if not document.results:
        why = f"nothing to write: {'; '.join(done.remarks)}"
        raise UsageError(with_caveats(why, document.caveats.notes))
    return document
