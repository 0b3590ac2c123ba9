"""Make writes to standard output and standard error complete, or fail.

The operating system can write only a part of the data: on a full disk, at a limit of file sizes,
or on a non-blocking pipe. With PYTHONUNBUFFERED, Python ignores the rest without an error.
"""

from __future__ import annotations

import io
import select
import sys
from typing import Any, Final, TextIO

from traceprof.errors import WritingError

_STREAM_NAMES: Final = ("stdout", "stderr")


class _CompleteWriter(io.RawIOBase):
    """A raw stream whose `write` repeats writing to ``raw`` until all bytes are written.

    Standard output fails with `WritingError`, or with BrokenPipeError if its reader has ended.
    Standard error never fails: the exit code reports that a command failed. After a failure, both
    discard all further data, so that Python does not fail when it exits.
    """

    def __init__(self, stream: TextIO, raw: io.RawIOBase, *, may_fail: bool) -> None:
        self._stream = stream  # keep a reference: the finalizer of the stream closes ``raw``
        self._raw = raw
        self._may_fail = may_fail
        self._has_failed = False

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._raw.fileno()

    def isatty(self) -> bool:
        return self._raw.isatty()

    def write(self, data: Any, /) -> int:
        remaining = memoryview(data).cast("B")
        size = len(remaining)
        try:
            while len(remaining) and not self._has_failed:
                written = self._raw.write(remaining)
                if written is None:  # a non-blocking pipe is full
                    select.select((), (self._raw,), ())
                else:
                    remaining = remaining[written:]
        except BrokenPipeError:
            self._has_failed = True
            if self._may_fail:
                raise
        except OSError as error:
            self._has_failed = True
            if self._may_fail:
                reason = error.strerror or error
                raise WritingError(f"cannot write to standard output: {reason}") from error
        return size


def ensure_complete_writes() -> None:
    """Replace standard output and standard error by streams that write all data, or fail."""
    for name in _STREAM_NAMES:
        stream = getattr(sys, name)
        if not isinstance(stream, io.TextIOWrapper):  # closed, or replaced by an embedding program
            continue
        buffer: Any = stream.buffer
        raw = getattr(buffer, "raw", buffer)
        if not isinstance(raw, io.RawIOBase) or isinstance(raw, _CompleteWriter):
            continue
        stream.flush()
        complete_writer: Any = _CompleteWriter(stream, raw, may_fail=name == "stdout")
        replacement = io.TextIOWrapper(
            complete_writer if buffer is raw else io.BufferedWriter(complete_writer),
            encoding=stream.encoding,
            errors=stream.errors,
            line_buffering=stream.line_buffering,
            write_through=stream.write_through,
        )
        setattr(sys, name, replacement)
