"""Print results on standard output (or write them to files), and messages on standard error.

The streams can be closed or full, and their reader can have ended.
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
from traceprof.files import check_target, new_file, write_file

if TYPE_CHECKING:
    from traceprof.model.results import Note
    from traceprof.render.registry import Answered, Options
    from traceprof.session.options import Opening


_MIN_WIDTH: Final = 40
_DEFAULT_WIDTH: Final = 80
_COLOR_VARIABLES = frozenset({"FORCE_COLOR", "TTY_COMPATIBLE"})


@dataclass(frozen=True, slots=True)
class Printing:
    """The format, the extent, and the output file of a result. Default: text on standard output.

    ``rows`` is the maximum number of rows per table. ``tables`` and ``columns`` select tables and
    columns; empty means all. ``cuts_markdown`` applies ``rows`` to Markdown, too.
    """

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
        """The name of the renderer: from the option, else from the suffix of the output file.

        Raises:
            UsageError: the user requested several formats.
        """
        requests = {"json": self.as_json, "csv": self.as_csv, "markdown": self.as_markdown}
        names = [name for name, is_wanted in requests.items() if is_wanted]
        if len(names) > 1:
            raise UsageError(f"--{' and --'.join(names)} cannot be combined: use only one")
        suffix = "" if self.output is None else self.output.suffix.lower()
        return names[0] if names else _RENDERER_OF_SUFFIX.get(suffix, "text")

    def check(self, inputs: Sequence[Path | str]) -> None:
        """Check that the output file can be written, before the result is computed.

        Raises:
            UsageError: the file exists, is one of ``inputs``, or has an unsupported suffix.
        """
        if self.output is None:
            return

        check_suffix(self.output, ".html", ".json", ".csv", ".md", ".txt")
        check_target(self.output, force=self.force, inputs=inputs)

    def put(self, text: str, inputs: Sequence[Path | str] = ()) -> None:
        """Print ``text``, which is in the requested format, or write it to the output file.

        Raises:
            UsageError: the file exists, is one of ``inputs``, or cannot be written.
        """
        if self.output is None:
            out(text, self.renderer)
        else:
            is_page = self.renderer == "html"
            write_output(self.output, text, force=self.force, inputs=inputs, is_page=is_page)


_RENDERER_OF_SUFFIX: Final = {
    ".html": "html",
    ".htm": "html",
    ".json": "json",
    ".csv": "csv",
    ".md": "markdown",
    ".markdown": "markdown",
}
_UNSUPPORTED_SUFFIXES: Final = (
    *(".pdf", ".png", ".svg", ".jpg", ".jpeg", ".gif", ".webp"),
    *(".xlsx", ".docx", ".parquet", ".sqlite", ".db", ".nsys-rep"),
)
_SUFFIX_ALIASES: Final = {".htm": ".html", ".markdown": ".md", ".jsonl": ".json"}


def check_suffix(path: Path, *supported: str, note: str = "") -> None:
    """Check that a known suffix of ``path`` is one of the ``supported`` formats.

    Unknown suffixes are accepted. ``note`` is appended to the error message.

    Raises:
        UsageError: the suffix is that of another format.
    """
    suffix = path.suffix.lower()
    known = {*_UNSUPPORTED_SUFFIXES, *_RENDERER_OF_SUFFIX, *_SUFFIX_ALIASES}
    if suffix in known and _SUFFIX_ALIASES.get(suffix, suffix) not in supported:
        accepted = " or ".join(filter(None, (", ".join(supported[:-1]), supported[-1])))
        raise UsageError(f"{path}: cannot write {suffix}; use {accepted}{note}")


def print_cached_answer(
    question: tuple[object, ...],
    paths: Sequence[Path],
    opening: Opening,
    compute_answer: Callable[[], Answered],
    printing: Printing,
) -> None:
    """Print an answer about ``paths``, from the cache if the files are unchanged.

    ``question`` identifies the answer in the cache, together with ``paths`` and ``opening``.
    """
    from traceprof.render.registry import render
    from traceprof.session.run_cache import RunCache

    name, options = printing.renderer, _render_options(printing)
    cache = RunCache.of(paths, opening)

    def render_answer() -> list[str]:
        document = compute_answer()
        return [render(name, document, options), *_caveats_for_stderr(document, name)]

    printing.check(paths)
    text, *caveats = cache.texts((*question, name, options), render_answer)
    for caveat in caveats:
        message(caveat)
    printing.put(text, paths)


def print_answer(
    compute_answer: Callable[[], Answered], printing: Printing, inputs: Sequence[Path | str] = ()
) -> None:
    """Print an answer about ``inputs`` in the requested format, or write it to the output file."""
    from traceprof.render.registry import render

    printing.check(inputs)
    name, document = printing.renderer, compute_answer()
    text = render(name, document, _render_options(printing))
    for caveat in _caveats_for_stderr(document, name):
        message(caveat)
    printing.put(text, inputs)


def _caveats_for_stderr(document: Answered, form: str) -> tuple[str, ...]:
    """Return the caveats of an answer to print on standard error, because CSV cannot contain them.

    Other formats contain the caveats.
    """
    from traceprof.render.briefing import head_of

    return head_of(document).caveats if form == "csv" else ()


def print_notes(notes: Iterable[Note]) -> None:
    """Print notes, such as the caveats of exported rows, on standard error."""
    from traceprof.render.formatting import note_text

    for note in notes:
        message(note_text(note))


def _render_options(printing: Printing) -> Options:
    """Return the options of the renderer. Text depends on the width of the terminal."""
    from traceprof.render.registry import Options

    name = printing.renderer
    markdown_rows = printing.rows if name == "markdown" and printing.cuts_markdown else None
    is_file = printing.output is not None
    options = Options(rows=markdown_rows)
    if name == "text":
        wide = printing.is_wide or bool(printing.columns)  # show all columns that the user named
        options = terminal_options(printing.rows, wide=wide, is_file=is_file)
    return replace(
        options, is_full=printing.is_full, tables=printing.tables, columns=printing.columns
    )


def terminal_options(
    rows: int | None = None, *, wide: bool = False, is_file: bool = False
) -> Options:
    """Return the options for text on standard output: the width and colors of the terminal.

    Text for a file or a pipe has lines of any length, unless COLUMNS sets a width; only long names
    in tables are shortened. ``wide``: lines of any length on a terminal, too, and full names.
    ``is_file``: the text is written to an output file, with full names.
    """
    from traceprof.render.registry import Options

    if is_file:
        return Options(rows=rows, width=_DEFAULT_WIDTH, is_whole=True, has_full_names=True)
    columns = os.environ.get("COLUMNS", "")
    width = int(columns) if columns.isdigit() else 0
    is_terminal = sys.stdout is not None and sys.stdout.isatty()
    is_whole = wide or not (is_terminal or width)
    is_color_requested = not _COLOR_VARIABLES.isdisjoint(os.environ)
    options = Options(rows=rows, is_whole=is_whole, has_full_names=wide)
    if is_color_requested or sys.platform == "win32" or is_terminal:
        from rich.console import Console

        console = Console()
        color_system = console.color_system or "" if console.is_terminal else ""
        width = max(_MIN_WIDTH, console.width)
        return replace(options, width=width, colors=color_system)
    # Without colors, do not import rich: the import takes as long as printing a cached answer.
    return replace(options, width=max(_MIN_WIDTH, width or _DEFAULT_WIDTH))


def out(text: str, form: str = "text") -> None:
    """Print ``text`` on standard output as UTF-8, independent of the terminal's encoding.

    If ``form`` is not "text" and standard output is a terminal, escape control characters.

    Raises:
        BrokenPipeError: the reader of standard output ended.
        WritingError: standard output is closed or cannot be written.
    """
    end_reading()
    if sys.stdout is None:
        raise WritingError("standard output is closed: use -o FILE to write to a file")
    if form != "text" and sys.stdout.isatty():
        from traceprof.render.escape import visible_text

        text = visible_text(text)
    sys.stdout.buffer.write(text.encode("utf-8", "replace"))
    sys.stdout.buffer.flush()


VERBOSITY: Final = {"quiet": False, "verbose": False}
"""Which messages are printed: only errors (quiet), or also each action (verbose)."""


def message(text: str) -> None:
    """Print a message on standard error, unless --quiet limits messages to errors."""
    if not VERBOSITY["quiet"]:
        error_message(text)


def detail(text: str) -> None:
    """Print a message on standard error if --verbose is set."""
    if VERBOSITY["verbose"]:
        error_message(text)


def error_message(text: str) -> None:
    """Print the reason of a failure on standard error."""
    from traceprof.render.escape import plain_text

    write_stderr(f"traceprof: {plain_text(text, 2_000)}\n")


def write_output(
    path: Path,
    content: str | bytes,
    *,
    force: bool,
    inputs: Sequence[Path | str],
    is_page: bool,
    notes: Sequence[str] = (),
) -> None:
    """Write ``content`` to a file, and print ``notes``, the path, and the size as messages.

    ``is_page``: the content is an HTML page; the message tells the user to open it in a browser.

    Raises:
        UsageError: the file exists, is one of ``inputs``, or cannot be written.
    """
    from traceprof.units import format_bytes

    write_file(path, content, force=force, inputs=inputs)
    for note in notes:
        message(note)
    hint = ": open it in a browser" if is_page else ""
    message(f"wrote {path} ({format_bytes(path.stat().st_size)}){hint}")


def print_lines(
    lines: Iterable[str], output: Path | None, inputs: Sequence[Path], *, force: bool
) -> None:
    """Print ``lines`` as they are produced, or write them to the file ``output``.

    Raises:
        UsageError: the file exists, is one of ``inputs``, or cannot be written.
    """
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


def write_stderr(text: str) -> None:
    """Write ``text`` to standard error, if it is open. The exit code reports a failure anyway."""
    end_reading()
    if sys.stderr is not None:
        sys.stderr.write(text)
        sys.stderr.flush()


_TERMINAL_INTERVAL_S = 1.0


class ProgressLine:
    """Prints the progress of ``action`` ("cutting"), its rate, and the estimated remaining time."""

    def __init__(self, action: str) -> None:
        self._action = action
        self._started_s = self._printed_s = time.monotonic()
        self._last_done = 0

    def __call__(self, done: int, total: int, unit: str) -> None:
        """Print the progress, at most once a second on a terminal, else every 10 s.

        ``total`` 0 means unknown. If ``done`` decreases, the measurement of the rate starts again.
        """
        from traceprof.units import NS_PER_S, format_bytes, format_count, format_duration

        now_s = time.monotonic()
        if done < self._last_done:
            self._started_s = now_s
        self._last_done = done
        interval_s = _TERMINAL_INTERVAL_S if sys.stderr.isatty() else 10 * _TERMINAL_INTERVAL_S
        if now_s - self._printed_s < interval_s or not done:
            return
        self._printed_s = now_s
        rate = done / max(now_s - self._started_s, 1e-9)
        speed = format_bytes(rate) if unit == "bytes" else f"{format_count(round(rate))} {unit}"
        if not total:
            message(f"{self._action}: {format_count(done)} {unit}, {speed}/s")
            return
        remaining = format_duration(max(0, total - done) / rate * NS_PER_S)
        message(f"{self._action}: {100 * done // total}%, {speed}/s, {remaining} left")
