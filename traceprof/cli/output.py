"""Where the command line prints: results on standard output, messages on standard error.

The streams may be closed, full, or read by nobody any more. A line says how far the reading of
traces is, once it takes more than two seconds. Readers are libraries that tell nothing meanwhile;
the operating system counts what a process reads. Where it does not, and once the file has been
read, the line says how long it has taken.
"""

from __future__ import annotations

import math
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, TextIO

from traceprof.errors import UsageError

if TYPE_CHECKING:
    from traceprof.render.registry import Answered, Options
    from traceprof.session.doubts import Doubts
    from traceprof.session.options import Opening


_NARROWEST: Final = 40
_USUAL: Final = 80
_ASK_FOR_COLOURS = frozenset({"FORCE_COLOR", "TTY_COMPATIBLE"})
_FIRST_AFTER_S: Final = 2.0
_EVERY_S: Final = 0.5
_WIDTH: Final = 79
_COUNTERS: Final = Path("/proc/self/io")
_LINES: Final[list[Reading]] = []
"""The line that is shown, if any."""


@dataclass(frozen=True, slots=True)
class Printing:
    """How a result is printed: as text unless said otherwise."""

    as_json: bool = False
    as_csv: bool = False
    as_markdown: bool = False
    rows: int | None = None
    is_full: bool = False
    is_wide: bool = False
    tables: tuple[str, ...] = ()
    cuts_markdown: bool = False

    @property
    def renderer(self) -> str:
        """The name of the renderer.

        Raises:
            UsageError: several were asked for.
        """
        asked = {"json": self.as_json, "csv": self.as_csv, "markdown": self.as_markdown}
        names = [name for name, is_wanted in asked.items() if is_wanted]
        if len(names) > 1:
            raise UsageError(f"--{' and --'.join(names)}: one of them at a time")
        return names[0] if names else "text"


@dataclass(frozen=True, slots=True)
class Destination:
    """Where an answer goes: it is printed, or written as an HTML page that needs nothing else."""

    output: Path | None
    force: bool
    printing: Printing

    def put(self, found: Callable[[], Answered], inputs: Sequence[Path | str]) -> None:
        """Print what is found in ``inputs``, or write it and say so.

        Raises:
            UsageError: the file exists, is one of ``inputs``, or cannot be written.
        """
        from traceprof.files import check_target
        from traceprof.render.registry import render

        if self.output is None:
            print_document(found(), self.printing)
            return
        check_target(self.output, force=self.force, inputs=inputs)
        page = render("html", found())
        write_page(self.output, page, force=self.force, inputs=inputs)


def print_kept(
    what: tuple[object, ...],
    paths: Sequence[Path],
    opening: Opening,
    answered: Callable[[], Answered],
    printing: Printing,
) -> None:
    """Print an answer about files: as it was printed before, unless anything changed since.

    ``what`` is the question, as far as ``paths`` and ``opening`` do not tell it.
    """
    from traceprof.render.registry import render
    from traceprof.session.run_cache import RunCache

    name, options = printing.renderer, _options(printing)
    cache = RunCache.of(paths, opening)

    def rendered() -> list[str]:
        document = answered()
        return [render(name, document, options), *_said_apart(document, name)]

    text, *doubts = cache.texts((*what, name, options), rendered)
    for doubt in doubts:
        message(doubt)
    out(text, name)


def print_document(document: Answered, printing: Printing) -> None:
    """Print an answer in the form that was asked for."""
    from traceprof.render.registry import render

    name = printing.renderer
    text = render(name, document, _options(printing))
    for doubt in _said_apart(document, name):
        message(doubt)
    out(text, name)


def _said_apart(document: Answered, form: str) -> tuple[str, ...]:
    """Return what must be read with an answer, for standard error where its form has no place."""
    from traceprof.render.briefing import head_of

    return head_of(document).doubts if form == "csv" else ()


def say_doubts(doubts: Doubts) -> None:
    """Say on standard error what must be read with rows that have no place for it."""
    from traceprof.render.formatting import note_text

    for note in doubts.notes:
        message(note_text(note))


def _options(printing: Printing) -> Options:
    from traceprof.render.registry import Options

    name = printing.renderer
    most = printing.rows if name == "markdown" and printing.cuts_markdown else None
    wide = printing.is_wide
    options = Options(rows=most) if name != "text" else terminal_options(printing.rows, wide=wide)
    return replace(options, is_full=printing.is_full, tables=printing.tables)


def terminal_options(rows: int | None = None, *, wide: bool = False) -> Options:
    """Return what the terminal that we print on can show.

    What goes to a file or a pipe is written whole, unless COLUMNS says how wide it is to be.
    ``wide``: on a terminal, too.
    """
    from traceprof.render.registry import Options

    columns = os.environ.get("COLUMNS", "")
    width = int(columns) if columns.isdigit() else 0
    is_terminal = sys.stdout is not None and sys.stdout.isatty()
    is_whole = wide or not (is_terminal or width)
    is_asked = not _ASK_FOR_COLOURS.isdisjoint(os.environ)
    if is_asked or sys.platform == "win32" or is_terminal:
        from rich.console import Console

        console = Console()
        colours = console.color_system or "" if console.is_terminal else ""
        width = max(_NARROWEST, console.width)
        return Options(rows=rows, width=width, is_whole=is_whole, colours=colours)
    # Without colours: rich takes as long to import as an answer from the cache to print.
    return Options(rows=rows, width=max(_NARROWEST, width or _USUAL), is_whole=is_whole)


def out(text: str, form: str = "text") -> None:
    """Print ``text``, all of it, as UTF-8 whatever the terminal's encoding.

    What is in another ``form`` is shown on a terminal without what would control that.

    Raises:
        BrokenPipeError: who read it went away.
        UsageError: it cannot be written.
    """
    end_reading()
    if sys.stdout is None:
        raise UsageError("standard output is closed: nothing can be printed")
    if form != "text" and sys.stdout.isatty():
        from traceprof.render.escape import visible_text

        text = visible_text(text)
    try:
        sys.stdout.buffer.write(text.encode("utf-8", "replace"))
        sys.stdout.buffer.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        drop(sys.stdout)
        reason = error.strerror or error
        raise UsageError(f"standard output: cannot be written: {reason}") from error


def message(text: str) -> None:
    """Print a message of our own on standard error."""
    from traceprof.render.escape import plain_text

    say(f"traceprof: {plain_text(text, 2_000)}\n")


def write_page(path: Path, page: str, *, force: bool, inputs: Sequence[Path | str]) -> None:
    """Write a page and say so.

    Raises:
        UsageError: the file exists, is one of ``inputs``, or cannot be written.
    """
    from traceprof.files import write_file

    write_file(path, page, force=force, inputs=inputs)
    say_written(path, ": open it in a browser")


def say_written(path: Path, hint: str = "") -> None:
    """Say that a file was written, and how large it is."""
    from traceprof.units import format_bytes

    message(f"wrote {path} ({format_bytes(path.stat().st_size)}){hint}")


def print_lines(
    lines: Iterable[str], output: Path | None, inputs: Sequence[Path], *, force: bool
) -> None:
    """Print texts as they come, or write them to a file and say so.

    Raises:
        UsageError: the file exists, is one of ``inputs``, or cannot be written.
    """
    from traceprof.files import new_file

    if output is None:
        for text in lines:
            out(text, "lines")
        return
    with (
        new_file(output, force=force, inputs=inputs) as temporary,
        temporary.open("w", encoding="utf-8", errors="replace", newline="") as file,
    ):
        file.writelines(lines)
    message(f"wrote {output}")


class Reading:
    """A line about files; ``read_bytes`` counts what was read so far, None: unknown."""

    def __init__(
        self,
        files: Sequence[Path],
        stream: TextIO,
        read_bytes: Callable[[], int | None] | None = None,
    ) -> None:
        self._name = files[0].name if len(files) == 1 else f"{len(files)} files"
        self._verb = "is" if len(files) == 1 else "are"
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
            return f"traceprof: {self._name} {self._verb} read, {self._measuring(taken_s)}"
        if done <= 0:
            return f"traceprof: {self._name}, {taken_s:.0f} s"
        rate = done / taken_s
        left = format_duration(round((self._n_bytes - done) / rate * NS_PER_S))
        share = 100 * done // self._n_bytes
        return f"traceprof: {self._name}, {share} % read, {format_bytes(rate)}/s, {left} left"

    def _measuring(self, taken_s: float) -> str:
        """Return how far the questions are answered that are asked of the trace."""
        from traceprof.processes import PROGRESS
        from traceprof.units import NS_PER_S, format_duration

        self._measuring_since_s = min(self._measuring_since_s, taken_s)
        spent_s = taken_s - self._measuring_since_s
        if not PROGRESS.done or not spent_s:
            return f"measuring, {taken_s:.0f} s"
        rate = PROGRESS.done / spent_s
        left = format_duration(round((PROGRESS.total - PROGRESS.done) / rate * NS_PER_S))
        return f"{PROGRESS.done} of {PROGRESS.total} parts measured, {rate:.1f}/s, {left} left"

    def run(self) -> None:
        """Show the line until it is ended, the first time after two seconds."""
        wait_s = _FIRST_AFTER_S
        from traceprof.processes import PROGRESS

        while not self._ended.wait(wait_s):
            if PROGRESS.is_told:  # by those who look at the ranks, on a line of their own
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
    threading.Thread(target=line.run, daemon=True).start()
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


_SILENT_S = 1.0


class ProgressLine:
    """Says how far it is, how fast, and how long it takes yet."""

    def __init__(self, what: str) -> None:
        self.what = what
        self.started = self.said = time.monotonic()
        self.before = 0

    def __call__(self, done: int, total: int, unit: str) -> None:
        """Say it, on a terminal once a second, elsewhere less often; ``total`` 0: not known."""
        from traceprof.units import NS_PER_S, format_bytes, format_count, format_duration

        now = time.monotonic()
        if done < self.before:
            self.started = now
        self.before = done
        if now - self.said < (_SILENT_S if sys.stderr.isatty() else 10 * _SILENT_S) or not done:
            return
        self.said = now
        rate = done / max(now - self.started, 1e-9)
        speed = format_bytes(rate) if unit == "bytes" else f"{format_count(round(rate))} {unit}"
        if not total:
            message(f"{self.what}: {format_count(done)} {unit}, {speed}/s")
            return
        left = format_duration(max(0, total - done) / rate * NS_PER_S)
        message(f"{self.what}: {100 * done // total} %, {speed}/s, {left} left")
