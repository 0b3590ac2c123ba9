"""The errors of traceprof; each class has the exit code of the command line.

::

    TraceprofError              1
    ├── UsageError              2   bad window text, unknown name, output exists
    │   ├── SeveralRunsError    2   files of several runs, but one run is expected
    │   └── WritingError        1   a disk or folder that failed
    ├── TraceError              3   not found, unknown format, unreadable
    │   └── NotRecordedError    4   the trace does not contain the requested data
    ├── StoreError              3   the database of runs is unreadable, unwritable, or lacks a run
    ├── RecordingError          5   profiler missing, nothing captured, export failed
    ├── RegressionError         6   a comparison exceeded its limit
    └── UndecidedError          7   a comparison has too little data to check its limit

A message is one line: what is wrong, where, what is expected, and what to do.
The library raises these and never prints or exits; only ``traceprof.cli`` does.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

__all__ = [
    "NotRecordedError",
    "RecordingError",
    "RegressionError",
    "SeveralRunsError",
    "StoreError",
    "TraceError",
    "TraceprofError",
    "UndecidedError",
    "UsageError",
    "WritingError",
]


class TraceprofError(Exception):
    """Base class of all errors that traceprof raises."""

    exit_code = 1


class UsageError(TraceprofError):
    """The request is invalid. traceprof did not read or write anything."""

    exit_code = 2


class SeveralRunsError(UsageError):
    """The files belong to several runs, but one run is expected; ``runs`` lists their paths."""

    def __init__(self, message: str, runs: Sequence[Sequence[Path]] = ()) -> None:
        super().__init__(message)
        self.runs = runs


class WritingError(UsageError):
    """The request is valid, but traceprof cannot write to the disk or folder."""

    exit_code = 1


class TraceError(TraceprofError):
    """A trace cannot be found, recognized, or read."""

    exit_code = 3


class NotRecordedError(TraceError):
    """The trace does not contain the requested data; the message names the option to record it.

    ``has_caveats``: the message also lists caveats about the recording
        (`traceprof.session.caveats`).
    """

    exit_code = 4
    has_caveats = False


class StoreError(TraceprofError):
    """The database of runs is invalid, cannot be opened or written, or does not contain the run."""

    exit_code = 3


class RecordingError(TraceprofError):
    """A recording could not be started, or its output cannot be read."""

    exit_code = 5


class RegressionError(TraceprofError):
    """A comparison found a regression that exceeds the limit."""

    exit_code = 6


class UndecidedError(TraceprofError):
    """A comparison cannot check a limit: too few steps, or too much variation."""

    exit_code = 7


def missing_extra(error: ModuleNotFoundError, what: str, extra: str, *modules: str) -> Exception:
    """Return the error that names the extra that ``what`` needs; ``error`` for other modules."""
    missing = (error.name or "").split(".")[0]
    if missing not in modules:
        return error
    return UsageError(
        f'{what} {missing}, which is not installed: run `pip install "traceprof[{extra}]"`'
    )
