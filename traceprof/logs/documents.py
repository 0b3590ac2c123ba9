"""Read documents with several parts: notes and READMEs with tables, pasted logs, and headings.

Each part is read alone: a row of a table, a column with the lines of a log, a block of code, or the
lines below a heading. A part that traceprof cannot read is named in a note.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from traceprof.errors import TraceError
from traceprof.logs.gathered import CollectedRun
from traceprof.logs.lines import RawLines, cleaned
from traceprof.logs.rates import runs_of_tables
from traceprof.logs.reading import read_lines, read_log, recognize
from traceprof.logs.step_tables import read_typed_step_table
from traceprof.logs.typed_lists import runs_in_lists
from traceprof.logs.typed_tables import HEADING, TypedTable, is_fence, tables_in
from traceprof.logs.typed_text import sizes_in
from traceprof.model.results import Note
from traceprof.model.summary import UNREAD, Summary

_MAX_CHARS: Final = 1 << 24
_DOCUMENTS: Final = frozenset(
    {".md", ".markdown", ".mdx", ".rst", ".org", ".html", ".htm", ".adoc"}
)
_MAX_TABLE_BYTES: Final = 1 << 20
"""Size of the largest file without the suffix of a document that is searched for columns."""
_MIN_LOG_CELLS: Final = 2
_MAX_NAMED_TABLES: Final = 3
_MAX_NAME_CHARS: Final = 60
_RANKS: Final = re.compile(r"(?<![\w.])(\d{1,6}+)\s?(?:ranks|workers|processes)\b", re.I)


@dataclass(slots=True)
class _Section:
    """Lines of a document that belong together; ``title`` is the heading or the line above."""

    title: str = ""
    lines: list[str] = field(default_factory=list)


def read_document(path: Path) -> list[Summary]:
    """Return the runs in all parts of a document, in the order of tables, lists, and pasted logs.

    An empty list if the file is no document, or if it contains no runs.

    Raises:
        TraceError: the file cannot be read, or it is not clear which runs it contains.
    """
    is_document = path.suffix.lower() in _DOCUMENTS
    if not is_document and path.stat().st_size > _MAX_TABLE_BYTES:
        return []
    lines = list(RawLines(path, limit=_MAX_CHARS))
    tables = tables_in(lines)
    has_columns = any(sum(1 for _ in _log_columns(table)) > 1 for table in tables)
    if not (is_document or has_columns):
        return []
    runs, unread = _runs_in_tables(path, tables)
    if is_document:
        runs += runs_in_lists(path, lines)
        runs += _runs_in_sections(path, lines, tables)
    if not runs:
        return []
    runs = [replace(run, name=run.name or f"{path.stem}:{i}") for i, run in enumerate(runs, 1)]
    return [replace(runs[0], notes=(*runs[0].notes, *_note_unread(unread))), *runs[1:]]


def read_log_or_document(
    path: Path,
    *,
    source: str | None = None,
    patterns: Mapping[str, str] | None = None,
    columns: Mapping[str, str] | None = None,
) -> list[Summary]:
    """Return the runs in a log or, without a source and patterns, in a document."""
    # `read_log` says what is wrong with a file that is not there.
    if source is None and not patterns and not columns and path.is_file():
        runs = read_document(path)
        if runs:
            return runs
    return read_log(path, source=source, patterns=patterns, columns=columns)


def _note_unread(unread: Sequence[TypedTable]) -> Iterator[Note]:
    """Yield a note that names the tables of the document that contain no runs."""
    if unread:
        names = [" | ".join(table.heading)[:_MAX_NAME_CHARS] for table in unread]
        yield Note.of(
            f"{UNREAD} {{n:count}} table(s) of the document: {{names}}",
            n=len(unread),
            names=", ".join(repr(name) for name in names[:_MAX_NAMED_TABLES]),
        )


def _runs_in_tables(
    path: Path, tables: Sequence[TypedTable]
) -> tuple[list[Summary], list[TypedTable]]:
    """Return the runs in the tables, and the tables that contain no runs."""
    of_logs = {i: runs for i, table in enumerate(tables) if (runs := _runs_in_columns(path, table))}
    others = [table for i, table in enumerate(tables) if i not in of_logs]
    places = [i for i in range(len(tables)) if i not in of_logs]
    typed = {places[i]: runs for i, runs in runs_of_tables(path, others).items()}
    found: list[Summary] = []
    unread = []
    for i, table in enumerate(tables):
        runs = of_logs.get(i) or typed.get(i) or read_typed_step_table(path, table)
        found += runs
        if not runs:
            unread.append(table)
    return found, unread


def _log_columns(table: TypedTable) -> Iterator[tuple[str, list[str]]]:
    """Yield the heading and the cells of each column that contains lines of a log."""
    for place, heading in enumerate(table.heading):
        cells = [cell for cell in table.column(place) if cell]
        if len(cells) >= _MIN_LOG_CELLS and any(" " in cell for cell in cells):
            found = recognize(cleaned(cells))
            if found is not None and found.count >= _MIN_LOG_CELLS:
                yield heading, cells


def _runs_in_columns(path: Path, table: TypedTable) -> list[Summary]:
    """Return the runs in the columns with lines of logs; each column is a run.

    Raises:
        TraceError: a column contains several runs, so that the runs of the table are not clear.
    """
    columns = list(_log_columns(table))
    found: list[Summary] = []
    for heading, cells in columns:
        runs = read_lines(path, cells, heading)
        if len(runs) > 1 and len(columns) > 1:
            raise TraceError(
                f"{path}: the counters in column {heading!r} go back to the start, so the column "
                f"contains {len(runs)} runs beside {len(columns) - 1} other column(s); "
                "put each run into its own column or file"
            )
        found += [replace(run, name=_name(path, heading)) for run in runs]
    return found


def _name(path: Path, title: str) -> str:
    text = title.strip(" #:*_`")[:_MAX_NAME_CHARS].strip(" ,.;:")
    return f"{path.stem}:{text}" if text else ""


def _runs_in_sections(
    path: Path, lines: Sequence[str], tables: Sequence[TypedTable]
) -> list[Summary]:
    """Return the runs in pasted logs: blocks of code, and the lines below a heading."""
    in_tables = {i for table in tables for i in range(table.first, table.last)}
    found: list[Summary] = []
    for section in _sections(lines, in_tables):
        runs = read_lines(path, section.lines, section.title, prepare=_Sizes(section.title))
        for i, run in enumerate(runs):
            name = _name(path, section.title)
            is_used = not name or any(other.name == name for other in found)
            suffix = f" ({i + 1})" if len(runs) > 1 else ""
            found.append(replace(run, name="" if is_used and not suffix else name + suffix))
    return found


def _sections(lines: Sequence[str], skipped: set[int]) -> Iterator[_Section]:
    """Yield the sections of a document: each block of code, and the other lines of a heading."""
    above, is_code = "", False
    current = block = _Section()
    for i, line in enumerate(lines):
        heading = HEADING.fullmatch(line.strip())
        if is_fence(line):
            if is_code:
                yield block
            block, is_code = _Section(above), not is_code
        elif is_code:
            block.lines.append(line)
        elif heading is not None:
            yield current
            above = heading["title"].strip()
            current = _Section(above)
        elif i not in skipped:
            current.lines.append(line)
            above = line.strip() or above
    yield current
    if is_code:
        yield block


@dataclass(frozen=True, slots=True)
class _Sizes:
    """Add the sizes in a heading to a run whose log does not contain them."""

    title: str

    def __call__(self, run: CollectedRun) -> None:
        facts = run.facts
        if facts.world_size or facts.devices:
            return
        ranks, sizes = _RANKS.search(self.title), sizes_in(self.title)
        if ranks is not None:
            facts.world_size = int(ranks[1])
        elif "devices_count" in sizes:
            facts.devices = int(sizes["devices_count"])
        if facts.size:
            run.say(
                "{n:count} ranks or GPUs come from the heading {title}",
                n=facts.size,
                title=self.title,
            )
