"""``traceprof compare``: is the new version faster, and why."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from traceprof.cli.options import (
    AsCsv,
    AsJson,
    AsMarkdown,
    Force,
    RowCount,
    WindowText,
    opens_traces,
)

if TYPE_CHECKING:
    from traceprof.session.options import Opening

__all__ = ["compare"]


@opens_traces
def compare(
    opening: Opening,
    runs: Annotated[
        list[str],
        typer.Argument(
            metavar="BASE NEW",
            help="Traces, runs, exported runs, or names in the database; several of each with "
            "`vs` between them: b1 b2 vs n1 n2.",
        ),
    ],
    max_regression: Annotated[
        list[str] | None,
        typer.Option(
            "--max-regression",
            metavar="LIMIT",
            help="Exit with 6 if it gets worse by more: 5% (of throughput, else of the time of a "
            "step), or of a measure: step_own_ns=5%.",
        ),
    ] = None,
    page: Annotated[
        Path | None,
        typer.Option("--output", "-o", "--html", metavar="FILE", help="Write a page with charts."),
    ] = None,
    table: Annotated[
        str | None,
        typer.Option(
            "--table", metavar="TABLE", help="The table that --csv prints, such as causes."
        ),
    ] = None,
    db: Annotated[
        Path | None, typer.Option("--db", metavar="FILE", help="The database that knows the runs.")
    ] = None,
    window: WindowText = None,
    as_json: AsJson = False,
    as_csv: AsCsv = False,
    as_markdown: AsMarkdown = False,
    rows: RowCount = 5,
    full: Annotated[
        bool, typer.Option("--full", help="Phases, layers, collectives, copies, ranks, too.")
    ] = False,
    force: Force = False,
) -> None:
    """What changed from one run to another, and is it more than chance: faster, slower, and why."""
    from traceprof.cli.output import Printing, message, print_document
    from traceprof.comparison.comparing import brief, compare_named, failed_limits, sides_named
    from traceprof.errors import UsageError
    from traceprof.files import check_target, write_file
    from traceprof.units import format_bytes

    if table and not as_csv:
        raise UsageError("--table says which table --csv prints")
    base, new = sides_named(runs)
    inputs = [Path(text) for text in (*base, *new)]
    if page is not None:
        check_target(page, force=force, inputs=inputs)
    found = compare_named(
        base, new, limits=max_regression or (), opening=opening, window=window, db=db
    )
    tables = (table,) if table else ()
    printing = Printing(
        as_json=as_json,
        as_csv=as_csv,
        as_markdown=as_markdown,
        rows=rows,
        tables=tables,
        cuts_markdown=True,
    )
    if page is not None:
        from traceprof.render.registry import Options
        from traceprof.render.report.compared import render_compared

        write_file(page, render_compared(found, Options(rows=None)), force=force, inputs=inputs)
    print_document(found if full or as_json or as_csv else brief(found), printing)
    if page is not None:
        message(f"wrote {page} ({format_bytes(page.stat().st_size)}): open it in a browser")
    failed_limits(found)
