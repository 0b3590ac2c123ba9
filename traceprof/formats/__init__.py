"""Recognize trace files by their content, and read, outline, or cut them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Final

from traceprof.errors import TraceError
from traceprof.formats.contract import Candidate as Candidate
from traceprof.formats.contract import Outline as Outline
from traceprof.formats.contract import ReadOptions as ReadOptions
from traceprof.formats.contract import TraceFormat as TraceFormat
from traceprof.formats.contract import narrowed, outline_of
from traceprof.formats.kineto.format import FORMAT as KINETO
from traceprof.formats.nsys.format import FOLDER_FORMAT as NSYS_FOLDER
from traceprof.formats.nsys.format import FORMAT as NSYS
from traceprof.formats.nsys.format import REPORT_FORMAT as NSYS_REPORT
from traceprof.formats.nvprof.format import FORMAT as NVPROF
from traceprof.formats.rocpd.format import FORMAT as ROCPD
from traceprof.formats.rocpd.format import JSON_FORMAT as ROCPROFV3_JSON
from traceprof.formats.shared.files import examine, unpacked
from traceprof.formats.shared.redaction import masked_trace, shortened
from traceprof.formats.sqlite.database import reporting_undecodable_names
from traceprof.formats.tables.format import FORMAT as TABLES
from traceprof.formats.unread import described
from traceprof.formats.unread import name_kind_in as name_kind_in
from traceprof.formats.xla.format import FORMAT as XPLANE
from traceprof.formats.xla.format import JSON_FORMAT as XPLANE_JSON
from traceprof.model.cutting import CutProgress, CutReport, CutRequest
from traceprof.model.trace import Trace
from traceprof.registries import Registry

FORMATS: Final[Registry[TraceFormat]] = Registry(
    "format",
    (
        *(NSYS, NVPROF, ROCPD, ROCPROFV3_JSON, XPLANE_JSON, KINETO, XPLANE),
        *(NSYS_REPORT, NSYS_FOLDER, TABLES),
    ),
)
"""All formats, in the order in which `recognized` tests them: the most specific format first."""


def open_trace(
    path: Path | str,
    options: ReadOptions | None = None,
    formats: Sequence[TraceFormat] | None = None,
) -> Trace:
    """Return the trace in the file ``path``, whatever its format. The file is never written to.

    ``options`` select the tables and the time window to read; by default all of them. A SQLite
    trace may be gzipped. Names longer than 65 536 characters are truncated.

    Raises:
        TraceError: the file does not exist, has an unknown format, or is damaged.
    """
    file, options = Path(path), options or ReadOptions()
    with _opened(file, formats) as (known, inner):
        trace = narrowed(known.read(inner, options), options)
        if not options.keeps_secrets:
            trace = masked_trace(trace, known.secrets(inner))
    trace = shortened(trace)
    return replace(trace, info=replace(trace.info, path=str(file)))


def outline(path: Path | str, formats: Sequence[TraceFormat] | None = None) -> Outline:
    """Return what the file ``path`` contains. Events in SQL tables are counted, not read.

    Raises:
        TraceError: the file does not exist, has an unknown format, or is damaged.
    """
    file = Path(path)
    with _opened(file, formats) as (known, inner):
        if known.outline is not None:
            found = known.outline(inner)
        else:
            found = outline_of(known.read(inner, ReadOptions()))
        trace = masked_trace(found.trace, known.secrets(inner))
    return replace(found, trace=replace(trace, info=replace(trace.info, path=str(file))))


def reads_parts(path: Path | str) -> bool:
    """Return whether reading a part of the file ``path`` costs less than reading all of it.

    It does not for files that must be unpacked, exported, or parsed as a whole.

    Raises:
        TraceError: the file does not exist, or the database is damaged.
    """
    known = recognized(examine(Path(path)))
    return known is not None and known.outline is not None and known.export is None


def recognized(
    candidate: Candidate, formats: Sequence[TraceFormat] | None = None
) -> TraceFormat | None:
    """Return the format of a file; None if no format recognizes it."""
    known = FORMATS if formats is None else formats
    return next(
        (candidate_format for candidate_format in known if candidate_format.recognizes(candidate)),
        None,
    )


def cut(path: Path | str, target: Path, request: CutRequest, progress: CutProgress) -> CutReport:
    """Write a part of the file ``path`` to the empty file ``target``, in the same format.

    Raises:
        TraceError: the file does not exist, has an unknown format, is damaged, or cannot be
            cut.
        UsageError: ``target`` cannot be written.
    """
    with _opened(Path(path), None) as (known, inner):
        if known.cut is None:
            raise TraceError(
                f"{path}: traceprof cannot cut this format ({known.summary}); use "
                "`traceprof export TRACE --window W --to parquet -o FOLDER` to write a window"
            )
        return known.cut(inner, target, request, progress)


@contextmanager
def _opened(
    path: Path, formats: Sequence[TraceFormat] | None
) -> Iterator[tuple[TraceFormat, Path]]:
    """Give the format of the file and the path to read: the file itself, unpacked or exported."""
    with reporting_undecodable_names(path), unpacked(path) as candidate:
        known = recognized(candidate, formats)
        if known is None:
            raise TraceError(f"{path}: {described(candidate)}")
        export = known.export or nullcontext
        with export(candidate.path) as file:
            yield known, file
