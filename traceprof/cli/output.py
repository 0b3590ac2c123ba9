"""Where the command line prints: results on standard output, messages on standard error.

The streams may be closed, full, or read by nobody any more.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from traceprof.cli.progress import end_reading
from traceprof.errors import UsageError, WritingError

if TYPE_CHECKING:
    from traceprof.render.registry import Answered, Options
    from traceprof.session.caveats import Caveats
    from traceprof.session.options import Opening


_NARROWEST: Final = 40
_USUAL: Final = 80
_ASK_FOR_COLORS = frozenset({"FORCE_COLOR", "TTY_COMPATIBLE"})


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
    columns: tuple[str, ...] = ()
    output: Path | None = None
    force: bool = False

    @property
    def renderer(self) -> str:
        """The name of the renderer: what was asked for, else what the name of the file says.

        Raises:
            UsageError: several were asked for.
        """
        asked = {"json": self.as_json, "csv": self.as_csv, "markdown": self.as_markdown}
        names = [name for name, is_wanted in asked.items() if is_wanted]
        if len(names) > 1:
            raise UsageError(f"--{' and --'.join(names)} cannot be combined: use only one")
        suffix = "" if self.output is None else self.output.suffix.lower()
        return names[0] if names else _FORM_OF_SUFFIX.get(suffix, "text")

    def check(self, inputs: Sequence[Path | str]) -> None:
        """Check that the file can be written, before anything is computed for it.

        Raises:
            UsageError: it exists, is one of ``inputs``, or its form cannot be written.
        """
        if self.output is None:
            return
        from traceprof.files import check_target

        check_suffix(self.output, ".html", ".json", ".csv", ".md", ".txt")
        check_target(self.output, force=self.force, inputs=inputs)

    def put(self, text: str, inputs: Sequence[Path | str] = ()) -> None:
        """Print ``text``, which is in the form that was asked for, or write it and say so.

        Raises:
            UsageError: the file exists, is one of ``inputs``, or cannot be written.
        """
        if self.output is None:
            out(text, self.renderer)
        elif self.renderer == "html":
            write_page(self.output, text, force=self.force, inputs=inputs)
        else:
            from traceprof.files import write_file

            write_file(self.output, text, force=self.force, inputs=inputs)
            say_written(self.output)


_FORM_OF_SUFFIX: Final = {
    ".html": "html",
    ".htm": "html",
    ".json": "json",
    ".csv": "csv",
    ".md": "markdown",
    ".markdown": "markdown",
}
_OTHER_FORMS: Final = (
    *(".pdf", ".png", ".svg", ".jpg", ".jpeg", ".gif", ".webp"),
    *(".xlsx", ".docx", ".parquet", ".sqlite", ".db", ".nsys-rep"),
)
_ALSO_CALLED: Final = {".htm": ".html", ".markdown": ".md", ".jsonl": ".json"}


def check_suffix(path: Path, *written: str, note: str = "") -> None:
    """Check that what is ``written`` is what the name of a file promises, if it promises anything.

    Raises:
        UsageError: it promises another form.
    """
    suffix = path.suffix.lower()
    known = {*_OTHER_FORMS, *_FORM_OF_SUFFIX, *_ALSO_CALLED}
    if suffix in known and _ALSO_CALLED.get(suffix, suffix) not in written:
        forms = " or ".join(filter(None, (", ".join(written[:-1]), written[-1])))
        raise UsageError(f"{path}: cannot write {suffix}; use {forms}{note}")


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

    printing.check(paths)
    text, *caveats = cache.texts((*what, name, options), rendered)
    for doubt in caveats:
        message(doubt)
    printing.put(text, paths)


def print_answer(
    answered: Callable[[], Answered], printing: Printing, inputs: Sequence[Path | str] = ()
) -> None:
    """Print an answer about ``inputs`` in the form that was asked for, or write it."""
    from traceprof.render.registry import render

    printing.check(inputs)
    name, document = printing.renderer, answered()
    text = render(name, document, _options(printing))
    for doubt in _said_apart(document, name):
        message(doubt)
    printing.put(text, inputs)


def _said_apart(document: Answered, form: str) -> tuple[str, ...]:
    """Return what must be read with an answer, for standard error where its form has no place."""
    from traceprof.render.briefing import head_of

    return head_of(document).caveats if form == "csv" else ()


def print_caveats(caveats: Caveats) -> None:
    """Say on standard error what must be read with rows that have no place for it."""
    from traceprof.render.formatting import note_text

    for note in caveats.notes:
        message(note_text(note))


def _options(printing: Printing) -> Options:
    from traceprof.render.registry import Options

    name = printing.renderer
    most = printing.rows if name == "markdown" and printing.cuts_markdown else None
    is_file = printing.output is not None
    options = Options(rows=most)
    if name == "text":
        wide = printing.is_wide or bool(printing.columns)  # what was asked for is shown
        options = terminal_options(printing.rows, wide=wide, is_file=is_file)
    return replace(
        options, is_full=printing.is_full, tables=printing.tables, columns=printing.columns
    )


def terminal_options(
    rows: int | None = None, *, wide: bool = False, is_file: bool = False
) -> Options:
    """Return what the terminal that we print on can show.

    What goes to a file or a pipe is written whole, unless COLUMNS says how wide it is to be.
    ``wide``: on a terminal, too. ``is_file``: it goes to a file of its own.
    """
    from traceprof.render.registry import Options

    if is_file:
        return Options(rows=rows, width=_USUAL, is_whole=True)
    columns = os.environ.get("COLUMNS", "")
    width = int(columns) if columns.isdigit() else 0
    is_terminal = sys.stdout is not None and sys.stdout.isatty()
    is_whole = wide or not (is_terminal or width)
    is_asked = not _ASK_FOR_COLORS.isdisjoint(os.environ)
    if is_asked or sys.platform == "win32" or is_terminal:
        from rich.console import Console

        console = Console()
        colors = console.color_system or "" if console.is_terminal else ""
        width = max(_NARROWEST, console.width)
        return Options(rows=rows, width=width, is_whole=is_whole, colors=colors)
    # Without colors: rich takes as long to import as an answer from the cache to print.
    return Options(rows=rows, width=max(_NARROWEST, width or _USUAL), is_whole=is_whole)


def out(text: str, form: str = "text") -> None:
    """Print ``text``, all of it, as UTF-8 whatever the terminal's encoding.

    What is in another ``form`` is shown on a terminal without what would control that.

    Raises:
        BrokenPipeError: who read it went away.
        WritingError: it cannot be written.
    """
    end_reading()
    if sys.stdout is None:
        raise WritingError("standard output is closed: use -o FILE to write to a file")
    if form != "text" and sys.stdout.isatty():
        from traceprof.render.escape import visible_text

        text = visible_text(text)
    sys.stdout.buffer.write(text.encode("utf-8", "replace"))
    sys.stdout.buffer.flush()


_SPOKEN: Final = {"quiet": False, "verbose": False}


def speak(*, quiet: bool, verbose: bool) -> None:
    """Say no more than errors from now on, or all that is done."""
    _SPOKEN.update(quiet=quiet, verbose=verbose)


def message(text: str) -> None:
    """Print a message of our own on standard error, unless nothing but errors is wanted."""
    if not _SPOKEN["quiet"]:
        error_message(text)


def detail(text: str) -> None:
    """Print a message that only some want."""
    if _SPOKEN["verbose"]:
        error_message(text)


def error_message(text: str) -> None:
    """Print why nothing came of it, on standard error."""
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


def say(text: str) -> None:
    """Write ``text`` to standard error, if anybody can read it: an exit code is told anyway."""
    end_reading()
    if sys.stderr is not None:
        sys.stderr.write(text)
        sys.stderr.flush()


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
        message(f"{self.what}: {100 * done // total}%, {speed}/s, {left} left")
