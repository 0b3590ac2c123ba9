"""Formats: files become Traces, and Traces files. Recognised by content, never by name."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from traceprof.errors import TraceError
from traceprof.formats import packed_files
from traceprof.formats.base import Candidate, ReadOptions, TraceFormat
from traceprof.formats.candidate import examine
from traceprof.formats.kineto.reader import FORMAT as KINETO
from traceprof.formats.nsys.reader import FORMAT as NSYS
from traceprof.formats.nsys.reports import FORMAT as NSYS_REPORT
from traceprof.formats.nvprof.reader import FORMAT as NVPROF
from traceprof.formats.sqlite.database import SQLITE_MAGIC
from traceprof.model.trace import Trace

__all__ = ["FORMATS", "Candidate", "ReadOptions", "TraceFormat", "open_trace"]

FORMATS: Final[tuple[TraceFormat, ...]] = (
    NSYS,
    NVPROF,
    KINETO,
    NSYS_REPORT,
    packed_files.FORMAT,
)


def open_trace(
    path: Path | str,
    options: ReadOptions | None = None,
    formats: Sequence[TraceFormat] | None = None,
) -> Trace:
    """Return the trace in the file ``path``, whatever its format. The file is never written to.

    Raises:
        TraceError: no such file, a file of no known format, or one that is damaged.
    """
    file = Path(path)
    candidate = examine(file)
    for known in FORMATS if formats is None else formats:
        if known.recognises(candidate):
            return known.read(file, options or ReadOptions())
    raise TraceError(f"{file}: {_explain(candidate)}")


def _explain(candidate: Candidate) -> str:
    """Return what an unknown file seems to be, and what to do with it."""
    head = candidate.head.lstrip()
    if candidate.tables or head.startswith(SQLITE_MAGIC):
        return "a SQLite database without the tables of a profiler (nsys export --type sqlite)"
    for magic, advice in _KNOWN_BUT_NOT_READ.items():
        if head.startswith(magic):
            return advice
    return (
        "not a trace that can be read: expected a SQLite file from "
        "`traceprof record` or `nsys export --type sqlite`"
    )


_KNOWN_BUT_NOT_READ: Final = {
    b"<?xml": "an XML session of the Visual Profiler: give the SQLite file that nvprof wrote",
    b"PK\x03\x04": "a zip archive: unpack it and give the trace inside",
    b"{": "JSON without the events of torch.profiler (traceEvents)",
    b"\x1f\x8b": "a gzip file: unpack it first (gunzip)",
}
