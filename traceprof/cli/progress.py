"""Show a progress line on standard error while a command reads traces for more than two seconds.

The libraries that read files report no progress. The line uses the bytes that the operating system
has counted for this process. If the system counts none, the line shows the elapsed time. After all
bytes have been read, it shows the progress of the analysis.
"""

from __future__ import annotations

import math
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, TextIO

from traceprof.processes import PROGRESS, start_thread

_FIRST_SHOWN_AFTER_S: Final = 2.0
_REFRESH_INTERVAL_S: Final = 0.5
_WIDTH: Final = 79
_IO_COUNTERS: Final = Path("/proc/self/io")
_SHOWN_LINES: Final[list[Reading]] = []
"""The line that is shown, or nothing."""


class Reading:
    """The progress line for ``files``.

    ``read_bytes`` returns the number of bytes that the process has read so far; None if unknown.
    """

    def __init__(
        self,
        files: Sequence[Path],
        stream: TextIO,
        read_bytes: Callable[[], int | None] | None = None,
    ) -> None:
        self._name = files[0].name if len(files) == 1 else f"{len(files)} files"
        self._stream = stream
        self._read_bytes = read_bytes or _process_read_bytes
        self._n_bytes = sum(file.stat().st_size for file in files)
        self._started_s = time.monotonic()
        self._start_bytes = self._read_bytes() or 0
        self._ended = threading.Event()
        self._write_lock = threading.Lock()
        self._is_shown = False
        self._analyzing_since_s = math.inf

    def text(self, elapsed_s: float) -> str:
        """Return the text of the line after ``elapsed_s`` seconds."""
        from traceprof.units import NS_PER_S, format_bytes, format_duration

        read_bytes = self._read_bytes()
        done_bytes = 0 if read_bytes is None else read_bytes - self._start_bytes
        if done_bytes >= self._n_bytes:
            return f"traceprof: {self._name} read, {self._analysis_text(elapsed_s)}"
        if done_bytes <= 0:
            return f"traceprof: reading {self._name}: {elapsed_s:.0f} s"
        rate = done_bytes / elapsed_s
        remaining = format_duration(round((self._n_bytes - done_bytes) / rate * NS_PER_S))
        share = 100 * done_bytes // self._n_bytes
        return (
            f"traceprof: reading {self._name}: {share}%, {format_bytes(rate)}/s, {remaining} left"
        )

    def _analysis_text(self, elapsed_s: float) -> str:
        """Return the progress of the analysis, from the parts that are done; else the time."""
        from traceprof.units import NS_PER_S, format_duration

        self._analyzing_since_s = min(self._analyzing_since_s, elapsed_s)
        analyzing_s = elapsed_s - self._analyzing_since_s
        total, done = PROGRESS.total, min(PROGRESS.done, PROGRESS.total)
        if not done or not analyzing_s:
            return f"analyzing: {elapsed_s:.0f} s"
        rate = done / analyzing_s
        remaining = format_duration(round((total - done) / rate * NS_PER_S))
        return f"analyzing: {done} of {total} parts, {rate:.1f}/s, {remaining} left"

    def run(self) -> None:
        """Show and update the line until `end` is called, starting after two seconds."""
        wait_s = _FIRST_SHOWN_AFTER_S

        while not self._ended.wait(wait_s):
            if (
                PROGRESS.has_progress_line
            ):  # the workers that read ranks show their own progress line
                self.end()
                return
            self.show(time.monotonic() - self._started_s)
            wait_s = _REFRESH_INTERVAL_S

    def show(self, elapsed_s: float) -> None:
        """Write the line, unless `end` was called."""
        with self._write_lock:
            if not self._ended.is_set():
                self._write(f"\r{self.text(elapsed_s)[:_WIDTH]:{_WIDTH}}")
                self._is_shown = True

    def end(self) -> None:
        """Remove the line from the terminal."""
        with self._write_lock:
            self._ended.set()
            if self._is_shown:
                self._write(f"\r{'':{_WIDTH}}\r")
                self._is_shown = False

    def _write(self, text: str) -> None:
        with suppress(OSError, ValueError):
            self._stream.write(text)
            self._stream.flush()


@contextmanager
def show_reading_progress(paths: Sequence[Path | str]) -> Iterator[None]:
    """Show the progress of reading files and folders, if standard error is a terminal."""
    is_watched = sys.stderr is not None and sys.stderr.isatty()
    files = [file for path in paths for file in _files_in(path)] if is_watched else []
    if not files:
        yield
        return
    line = Reading(files, sys.stderr)
    _SHOWN_LINES.append(line)
    start_thread(line.run)
    try:
        yield
    finally:
        end_reading()


def end_reading() -> None:
    """Remove the progress line, so that other text can be written."""
    while _SHOWN_LINES:
        _SHOWN_LINES.pop().end()


def _files_in(path: Path | str) -> list[Path]:
    """Return the file ``path``, or the files in the folder ``path``; nothing if neither exists."""
    with suppress(OSError, ValueError):
        location = Path(path)
        candidates = location.iterdir() if location.is_dir() else [location]
        return [file for file in candidates if file.is_file()]
    return []


def _process_read_bytes() -> int | None:
    """Return the number of bytes that this process has read; None if the system counts none."""
    try:
        counters = _IO_COUNTERS.read_text()
    except OSError:
        return None
    return int(counters.split("rchar:")[1].split()[0]) if "rchar:" in counters else None
