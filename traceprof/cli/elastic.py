"""``traceprof elastic``: a job whose ranks come and go, alone or beside a fixed one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from traceprof.cli.options import (
    AsCsv,
    AsJson,
    AsMarkdown,
    Force,
    Output,
    RowCount,
    opens_traces,
)

if TYPE_CHECKING:
    from traceprof.session.options import Opening

__all__ = ["elastic"]

_RUN_HELP = "A run (the folder of a recording), a log, or a name in the database."


@opens_traces
def elastic(
    opening: Opening,
    runs: Annotated[
        list[str],
        typer.Argument(
            metavar="[BASE] RUN", help=f"{_RUN_HELP} Of two the first is what it is held against."
        ),
    ],
    db: Annotated[
        Path | None, typer.Option("--db", metavar="FILE", help="The database of runs.")
    ] = None,
    output: Output = None,
    force: Force = False,
    as_json: AsJson = False,
    as_csv: AsCsv = False,
    as_markdown: AsMarkdown = False,
    rows: RowCount = 60,
) -> None:
    """A job whose ranks come and go: epochs, restarts, the time lost and why.

    A job that was restarted is one run: traceprof elastic run/, or traceprof elastic fixed.log
    elastic.log for two beside one another, epoch by epoch.
    """
    from traceprof.cli.output import Printing, print_document, write_page
    from traceprof.comparison.elastic import elastic as told
    from traceprof.comparison.runs_named import summaries_of
    from traceprof.files import check_target

    if output is not None:
        check_target(output, force=force, inputs=runs)
    found = told(summaries_of(runs, opening, db))
    if output is not None:
        write_page(output, found, force=force, inputs=runs)
        return
    printing = Printing(as_json=as_json, as_csv=as_csv, as_markdown=as_markdown, rows=rows)
    print_document(found, printing)
