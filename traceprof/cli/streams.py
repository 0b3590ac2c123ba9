"""The streams of the command line, which may be closed, full, or read by nobody any more."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from typing import TextIO

from traceprof.cli.reading import end_reading
from traceprof.errors import UsageError

__all__ = ["say", "write_out"]


def write_out(data: bytes) -> None:
    """Write ``data`` to standard output, all of it.

    Raises:
        BrokenPipeError: who read it went away.
        UsageError: it cannot be written.
    """
    end_reading()
    if sys.stdout is None:
        raise UsageError("standard output is closed: nothing can be printed")
    try:
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        drop(sys.stdout)
        reason = error.strerror or error
        raise UsageError(f"standard output: cannot be written: {reason}") from error


def say(text: str) -> None:
    """Write ``text`` to standard error, if anybody can read it: an exit code is told anyway."""
    end_reading()
    if sys.stderr is None:
        return
    try:
        sys.stderr.write(text)
        sys.stderr.flush()
    except OSError:
        drop(sys.stderr)


def drop(stream: TextIO) -> None:
    """Let what ``stream`` still holds go nowhere, so that Python does not fail on it at its end."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
