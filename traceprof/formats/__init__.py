"""Formats: files become Traces, and Traces files. Recognised by content, never by name."""

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
from traceprof.formats.shared.files import examine, unpacked
from traceprof.formats.shared.redaction import masked_trace, shortened
from traceprof.formats.sqlite.database import reporting_undecodable_names
from traceprof.formats.tables.format import FORMAT as TABLES
from traceprof.formats.unread import described
from traceprof.formats.xla.format import FORMAT as XPLANE
from traceprof.formats.xla.format import JSON_FORMAT as XPLANE_JSON
from traceprof.model.cutting import CutProgress, CutReport, CutRequest
from traceprof.model.trace import Trace
from traceprof.registries import Registry

FORMATS: Final[Registry[TraceFormat]] = Registry(
    "format",
    (NSYS, NVPROF, ROCPD, XPLANE_JSON, KINETO, XPLANE, NSYS_REPORT, NSYS_FOLDER, TABLES),
)
"""In the order in which they are asked: what is more special before what is less."""


def open_trace(
    path: Path | str,
    options: ReadOptions | None = None,
    formats: Sequence[TraceFormat] | None = None,
) -> Trace:
    """Return the trace in the file ``path``, whatever its format. The file is never written to.

    ``options`` say which tables and which window are wanted; by default everything. A SQLite
    trace may be gzipped. Of names with more than 65 536 characters the beginning is kept.

    Raises:
        TraceError: no such file, a file of no known format, or one that is damaged.
    """
    file, options = Path(path), options or ReadOptions()
    with _opened(file, formats) as (known, inner):
        trace = narrowed(known.read(inner, options), options)
        if not options.keeps_secrets:
            trace = masked_trace(trace, known.secrets(inner))
    trace = shortened(trace)
    return replace(trace, info=replace(trace.info, path=str(file)))


def outline(path: Path | str, formats: Sequence[TraceFormat] | None = None) -> Outline:
    """Return what the file ``path`` contains, without reading its events where they are in SQL.

    Raises:
        TraceError: no such file, a file of no known format, or one that is damaged.
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
    """Return whether a part of the file ``path`` costs less to read than all of it.

    Not so where it must be unpacked, exported or parsed as a whole.

    Raises:
        TraceError: no such file, or a damaged database.
    """
    known = recognised(examine(Path(path)))
    return known is not None and known.outline is not None and known.export is None


def recognised(
    candidate: Candidate, formats: Sequence[TraceFormat] | None = None
) -> TraceFormat | None:
    """Return the format of a file, None where it is of none."""
    known = FORMATS if formats is None else formats
    return next((one for one in known if one.recognises(candidate)), None)


def cut(path: Path | str, target: Path, request: CutRequest, progress: CutProgress) -> CutReport:
    """Write a part of the file ``path`` to the empty file ``target``, in the same format.

    Raises:
        TraceError: no such file, a file of no known format, one that is damaged or cannot be cut.
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
    with reporting_undecodable_names(path), unpacked(path) as candidate:
        known = recognised(candidate, formats)
        if known is None:
            raise TraceError(f"{path}: {described(candidate)}")
        export = known.export or nullcontext
        with export(candidate.path) as file:
            yield known, file
