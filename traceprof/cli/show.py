"""``traceprof show TABLE TRACE``: one analysis, or several."""

from __future__ import annotations

from collections.abc import Callable
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from traceprof import measures
from traceprof.cli.commands import OLD_NAMES, table_names
from traceprof.cli.options import (
    AsCsv,
    AsJson,
    AsMarkdown,
    RowCount,
    TracePaths,
    WindowText,
    check_paths,
    opens_traces,
)
from traceprof.errors import UsageError

if TYPE_CHECKING:
    from traceprof.session.options import Opening

__all__ = ["show", "shown_alone"]


def _completed(incomplete: str) -> list[tuple[str, str]]:
    done, comma, name = incomplete.rpartition(",")
    return [
        (f"{done}{comma}{e.name}", e.summary) for e in measures.ANALYSES if e.name.startswith(name)
    ]


@opens_traces
def show(
    opening: Opening,
    table: Annotated[
        str | None,
        typer.Argument(
            metavar="TABLE[,TABLE…]",
            help="What to show; alone: what there is.",
            autocompletion=_completed,
        ),
    ] = None,
    trace: Annotated[
        list[Path] | None,
        typer.Argument(metavar="TRACE", help="A trace, or a run. Only read."),
    ] = None,
    window: WindowText = None,
    as_json: AsJson = False,
    as_csv: AsCsv = False,
    as_markdown: AsMarkdown = False,
    rows: RowCount = 25,
) -> None:
    """One table about a trace: `traceprof show kernels TRACE`; alone it lists what there is."""
    from traceprof.cli.output import Printing, out, print_answers

    if table is None:
        out(_listing())
        return
    names = _names(table, trace or [])
    if not check_paths(trace or []):
        raise UsageError(f"expected a trace: traceprof show {table} TRACE")
    printing = Printing(as_json=as_json, as_csv=as_csv, as_markdown=as_markdown, rows=rows)
    print_answers(names, trace or [], opening, window, printing)


def shown_alone(name: str) -> Callable[..., None]:
    """Return the command that shows the table ``name``, as 0.1 had one for each."""

    @opens_traces
    def command(
        opening: Opening,
        trace: TracePaths,
        window: WindowText = None,
        as_json: AsJson = False,
        as_csv: AsCsv = False,
        as_markdown: AsMarkdown = False,
        rows: RowCount = 25,
    ) -> None:
        from traceprof.cli.output import Printing, print_answers

        printing = Printing(as_json=as_json, as_csv=as_csv, as_markdown=as_markdown, rows=rows)
        print_answers([name], trace, opening, window, printing)

    return command


def _listing() -> str:
    width = max(map(len, table_names()))
    return "".join(f"{entry.name:{width}}  {entry.summary}\n" for entry in measures.ANALYSES)


def _names(text: str, paths: list[Path]) -> list[str]:
    """Return the analyses that ``text`` names.

    Raises:
        UsageError: there is none of a name; the message says what was meant.
    """
    names = [OLD_NAMES.get(name, name) for name in text.split(",") if name]
    for name in names:
        if name in table_names():
            continue
        if Path(name).exists():
            later = [str(path) for path in paths if str(path) in table_names()]
            table = later[0] if later else "TABLE"
            raise UsageError(
                f"{name} is a file, where the name of a table is expected: "
                f"traceprof show {table} {name}"
            )
        close = get_close_matches(name, table_names(), n=1)
        meant = f"did you mean {close[0]}?" if close else f"there are {', '.join(table_names())}"
        raise UsageError(f"no table {name!r}: {meant}")
    return names
