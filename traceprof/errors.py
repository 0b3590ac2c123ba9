"""The one tree of errors; each carries the exit code that the command line ends with.

::

    TraceprofError              1
    ├── UsageError              2   bad window text, unknown name, output exists
    │   ├── SeveralRunsError    2   files of several runs where one is expected
    │   └── WritingError        1   a disk or folder that failed
    ├── TraceError              3   not found, unknown format, unreadable
    │   └── NotRecordedError    4   the trace lacks what was asked for
    ├── StoreError              3   the database of runs cannot be read or written, or lacks a run
    ├── RecordingError          5   profiler missing, nothing captured, export failed
    └── RegressionError         6   a comparison exceeded its limit

A message is one line that says what was found, what was expected, and what to do.
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
    "UsageError",
    "WritingError",
]


class TraceprofError(Exception):
    """Base of every error that traceprof raises on purpose."""

    exit_code = 1


class UsageError(TraceprofError):
    """What was asked for does not make sense; nothing was read or written."""

    exit_code = 2


class SeveralRunsError(UsageError):
    """Files of several runs where one is expected; ``runs`` are what names each of them."""

    def __init__(self, message: str, runs: Sequence[Sequence[Path]] = ()) -> None:
        super().__init__(message)
        self.runs = runs


class WritingError(UsageError):
    """What was asked for made sense, but the disk or folder it goes to failed."""

    exit_code = 1


class TraceError(TraceprofError):
    """A trace cannot be found, recognised or read."""

    exit_code = 3


class NotRecordedError(TraceError):
    """The trace is fine but lacks the data that was asked for; the message names the option.

    ``has_doubts``: it also says what is in doubt of the recording (`traceprof.session.doubts`).
    """

    exit_code = 4
    has_doubts = False


class StoreError(TraceprofError):
    """The database of runs cannot be opened or written, is none, or has no such run."""

    exit_code = 3


class RecordingError(TraceprofError):
    """A recording could not be started, or left nothing that can be read."""

    exit_code = 5


class RegressionError(TraceprofError):
    """A comparison found a regression beyond the limit that was set."""

    exit_code = 6
