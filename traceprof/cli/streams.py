"""Standard output and standard error that take everything, or fail.

The system may take a part of what is written: on a full disk, at a limit of file sizes, or on a
pipe that does not block. Python passes such a part on, without an error, where PYTHONUNBUFFERED is
set.
"""

from __future__ import annotations

import io
import select
import sys
from typing import Any, Final, TextIO

from traceprof.errors import WritingError

_NAMES: Final = ("stdout", "stderr")


class _Whole(io.RawIOBase):
    """A raw stream below ``stream`` whose `write` writes all bytes, in as many parts as it takes.

    Standard output fails with `WritingError`, or with BrokenPipeError if its reader is gone.
    Standard error never fails: the exit code says that a command failed. After a failure, both
    discard what follows, so that Python does not fail at its end.
    """

    def __init__(self, stream: TextIO, raw: io.RawIOBase, *, may_fail: bool) -> None:
        self._kept = stream  # which would close ``raw`` at its end
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
        left = memoryview(data).cast("B")
        size = len(left)
        try:
            while len(left) and not self._has_failed:
                written = self._raw.write(left)
                if written is None:  # a pipe that does not block is full
                    select.select((), (self._raw,), ())
                else:
                    left = left[written:]
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
    """Replace standard output and standard error by streams that take everything, or fail."""
    for name in _NAMES:
        stream = getattr(sys, name)
        if not isinstance(stream, io.TextIOWrapper):  # closed, or of an embedding program
            continue
        buffer: Any = stream.buffer
        raw = getattr(buffer, "raw", buffer)
        if not isinstance(raw, io.RawIOBase) or isinstance(raw, _Whole):
            continue
        stream.flush()
        below: Any = _Whole(stream, raw, may_fail=name == "stdout")
        replaced = io.TextIOWrapper(
            below if buffer is raw else io.BufferedWriter(below),
            encoding=stream.encoding,
            errors=stream.errors,
            line_buffering=stream.line_buffering,
            write_through=stream.write_through,
        )
        setattr(sys, name, replaced)
