"""Where the command line prints: results on standard output, messages on standard error."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from traceprof.errors import UsageError

if TYPE_CHECKING:
    from traceprof.render.base import Answered, Options
    from traceprof.session.opening import Opening
    from traceprof.session.run import Run

__all__ = [
    "Printing",
    "message",
    "out",
    "print_answers",
    "print_document",
    "print_page",
    "terminal_options",
    "write_page",
]

_NARROWEST = 80


@dataclass(frozen=True, slots=True)
class Printing:
    """How a result is printed: as text unless said otherwise."""

    as_json: bool = False
    as_csv: bool = False
    as_markdown: bool = False
    rows: int | None = None
    is_full: bool = False
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


def print_answers(
    names: Sequence[str],
    paths: Sequence[Path],
    opening: Opening,
    window: str | None,
    printing: Printing,
) -> None:
    """Run the analyses ``names`` and print them."""
    from traceprof.session.answer import answer
    from traceprof.session.run import open_run

    if printing.as_csv and len(names) > 1:
        raise UsageError("--csv prints one table: name one, as in `traceprof show kernels TRACE`")
    run = open_run(paths, opening).within(window)
    print_document(answer(run, names, strict=True), printing)


def print_page(run: Run, printing: Printing) -> None:
    """Print the page that answers where the time went."""
    from traceprof.session.answer import page

    print_document(page(run), printing)


def print_document(document: Answered, printing: Printing) -> None:
    """Print an answer in the form that was asked for."""
    from traceprof.render.base import Options
    from traceprof.render.escape import visible_text
    from traceprof.render.registry import render

    name = printing.renderer
    most = printing.rows if name == "markdown" and printing.cuts_markdown else None
    options = Options(rows=most) if name != "text" else terminal_options(printing.rows)
    options = replace(options, is_full=printing.is_full, tables=printing.tables)
    text = render(name, document, options)
    out(visible_text(text) if name != "text" and sys.stdout.isatty() else text)


def terminal_options(rows: int | None = None) -> Options:
    """Return what the terminal that we print on can show; it is 80 columns wide or more."""
    from rich.console import Console

    from traceprof.render.base import Options

    console = Console()
    return Options(
        rows=rows,
        width=max(_NARROWEST, console.width),
        colours=console.color_system or "" if console.is_terminal else "",
    )


def out(text: str) -> None:
    """Print ``text`` as it is, as UTF-8 whatever the terminal's encoding."""
    sys.stdout.buffer.write(text.encode("utf-8", "replace"))
    sys.stdout.buffer.flush()


def message(text: str) -> None:
    """Print a message of our own on standard error."""
    from traceprof.render.escape import plain_text

    sys.stderr.write(f"traceprof: {plain_text(text, 2_000)}\n")


def write_page(
    path: Path, document: Answered, *, force: bool, inputs: Sequence[Path | str] = ()
) -> None:
    """Write an answer as an HTML page that needs nothing else, and say so.

    Raises:
        UsageError: the file exists, is one of ``inputs``, or cannot be written.
    """
    from traceprof.files import write_file
    from traceprof.render.registry import render
    from traceprof.units import format_bytes

    write_file(path, render("html", document), force=force, inputs=inputs)
    message(f"wrote {path} ({format_bytes(path.stat().st_size)}): open it in a browser")
