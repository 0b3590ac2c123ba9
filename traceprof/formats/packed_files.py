"""SQLite traces that were gzipped: unpacked into a temporary folder, read, and gone again."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Final

from traceprof.errors import TraceError
from traceprof.formats.base import Candidate, ReadOptions, TraceFormat
from traceprof.formats.candidate import examine
from traceprof.formats.gunzip import GZIP_MAGIC, GzipSource, unpacked_head
from traceprof.formats.nsys.reader import FORMAT as NSYS
from traceprof.formats.nvprof.reader import FORMAT as NVPROF
from traceprof.formats.sqlite.database import SQLITE_MAGIC
from traceprof.model.trace import Trace

__all__ = ["FORMAT"]

_READ_BYTES: Final = 1 << 20
_INSIDE: Final = (NSYS, NVPROF)


def recognises(candidate: Candidate) -> bool:
    """Return whether the file is a gzipped SQLite database."""
    is_packed = candidate.head.startswith(GZIP_MAGIC)
    return is_packed and unpacked_head(candidate.path, len(SQLITE_MAGIC)) == SQLITE_MAGIC


def read(path: Path, options: ReadOptions) -> Trace:
    """Return the trace in a gzipped database.

    Raises:
        TraceError: there is no room to unpack it, it was cut off, or it is no trace.
    """
    with tempfile.TemporaryDirectory(prefix="traceprof-") as folder:
        unpacked = Path(folder, path.stem)
        try:
            with path.open("rb") as packed, unpacked.open("wb") as file:
                source = GzipSource(packed)
                while data := source.read(_READ_BYTES):
                    file.write(data)
        except OSError as error:
            raise TraceError(f"{path}: cannot be unpacked ({error.strerror})") from error
        candidate = examine(unpacked)
        for known in _INSIDE:
            if known.recognises(candidate):
                trace = known.read(unpacked, options)
                return replace(trace, info=replace(trace.info, path=str(path)))
    raise TraceError(f"{path}: a gzipped SQLite database without the tables of a profiler")


FORMAT: Final = TraceFormat(
    name="packed",
    summary="a SQLite trace that was gzipped",
    recognises=recognises,
    read=read,
)
