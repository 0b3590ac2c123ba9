"""A line that says how far the reading of traces is, once it takes more than two seconds.

Readers are libraries that tell nothing meanwhile; the operating system counts what a process reads.
Where it does not, and once the file has been read, the line says how long it has taken.
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

from traceprof.processes import start_thread

_FIRST_AFTER_S: Final = 2.0
_EVERY_S: Final = 0.5
_WIDTH: Final = 79
_COUNTERS: Final = Path("/proc/self/io")
_LINES: Final[list[Reading]] = []
"""The line that is shown, if any."""


class Reading:
    """A line about files; ``read_bytes`` counts what was read so far, None: unknown."""

    def __init__(
        self,
        files: Sequence[Path],
        stream: TextIO,
        read_bytes: Callable[[], int | None] | None = None,
    ) -> None:
        self._name = files[0].name if len(files) == 1 else f"{len(files)} files"
        self._stream = stream
        self._read_bytes = read_bytes or _read_bytes
        self._n_bytes = sum(one.stat().st_size for one in files)
        self._begun_s = time.monotonic()
        self._begun_bytes = self._read_bytes() or 0
        self._ended = threading.Event()
        self._writing = threading.Lock()
        self._is_shown = False
        self._measuring_since_s = math.inf

    def words(self, taken_s: float) -> str:
        """Return what the line says after ``taken_s`` seconds."""
        from traceprof.units import NS_PER_S, format_bytes, format_duration

        counted = self._read_bytes()
        done = 0 if counted is None else counted - self._begun_bytes
        if done >= self._n_bytes:
            return f"traceprof: {self._name} read, {self._measuring(taken_s)}"
        if done <= 0:
            return f"traceprof: reading {self._name}: {taken_s:.0f} s"
        rate = done / taken_s
        left = format_duration(round((self._n_bytes - done) / rate * NS_PER_S))
        share = 100 * done // self._n_bytes
        return f"traceprof: reading {self._name}: {share}%, {format_bytes(rate)}/s, {left} left"

    def _measuring(self, taken_s: float) -> str:
        """Return how far the questions are answered that are asked of the trace."""
        from traceprof.processes import PROGRESS
        from traceprof.units import NS_PER_S, format_duration

        self._measuring_since_s = min(self._measuring_since_s, taken_s)
        spent_s = taken_s - self._measuring_since_s
        total, done = PROGRESS.total, min(PROGRESS.done, PROGRESS.total)
        if not done or not spent_s:
            return f"analyzing: {taken_s:.0f} s"
        rate = done / spent_s
        left = format_duration(round((total - done) / rate * NS_PER_S))
        return f"analyzing: {done} of {total} parts, {rate:.1f}/s, {left} left"

    def run(self) -> None:
        """Show the line until it is ended, the first time after two seconds."""
        wait_s = _FIRST_AFTER_S
        from traceprof.processes import PROGRESS

        while not self._ended.wait(wait_s):
            if PROGRESS.has_progress_line:  # by those who look at the ranks, on a line of their own
                self.end()
                return
            self.show(time.monotonic() - self._begun_s)
            wait_s = _EVERY_S

    def show(self, taken_s: float) -> None:
        """Write the line, unless it was ended."""
        with self._writing:
            if not self._ended.is_set():
                self._write(f"\r{self.words(taken_s)[:_WIDTH]:{_WIDTH}}")
                self._is_shown = True

    def end(self) -> None:
        """Take the line away."""
        with self._writing:
            self._ended.set()
            if self._is_shown:
                self._write(f"\r{'':{_WIDTH}}\r")
                self._is_shown = False

    def _write(self, text: str) -> None:
        with suppress(OSError, ValueError):
            self._stream.write(text)
            self._stream.flush()


@contextmanager
def reading_shown(paths: Sequence[Path | str]) -> Iterator[None]:
    """Tell how far the reading of files and folders is, where somebody looks at a terminal."""
    is_watched = sys.stderr is not None and sys.stderr.isatty()
    files = [file for path in paths for file in _files_of(path)] if is_watched else []
    if not files:
        yield
        return
    line = Reading(files, sys.stderr)
    _LINES.append(line)
    start_thread(line.run)
    try:
        yield
    finally:
        end_reading()


def end_reading() -> None:
    """Take the line away, before anything else is written."""
    while _LINES:
        _LINES.pop().end()


def _files_of(path: Path | str) -> list[Path]:
    """Return what is read of a path: itself, the files in it, or nothing where it is none."""
    with suppress(OSError, ValueError):
        place = Path(path)
        return [one for one in (place.iterdir() if place.is_dir() else [place]) if one.is_file()]
    return []


def _read_bytes() -> int | None:
    try:
        counters = _COUNTERS.read_text()
    except OSError:
        return None
    return int(counters.split("rchar:")[1].split()[0]) if "rchar:" in counters else None
