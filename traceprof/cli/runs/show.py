"""``traceprof runs show``: the record of runs, side by side."""

from __future__ import annotations

from typing import Annotated

import typer

from traceprof.cli.options import AsCsv, AsJson, AsMarkdown, DatabaseFile, RowCount

__all__ = ["show"]


def show(
    run: Annotated[
        list[str],
        typer.Argument(metavar="NAME", help="The run, or several; or label:KEY=VALUE."),
    ],
    table: Annotated[
        str | None,
        typer.Option(
            "--table", "-t", metavar="TABLE", help="A table that was kept: steps, kernels …"
        ),
    ] = None,
    as_json: AsJson = False,
    as_csv: AsCsv = False,
    as_markdown: AsMarkdown = False,
    rows: RowCount = 40,
    db: DatabaseFile = None,
) -> None:
    """The record of runs: what they ran in beside what they gave, labels, notes, what is kept."""
    from traceprof.cli.output import Printing, print_document
    from traceprof.comparison.records import record_of_runs, table_of_runs
    from traceprof.comparison.runs_named import summaries_of

    runs = summaries_of(run, db=db)
    found = record_of_runs(runs) if table is None else table_of_runs(runs, table)
    printing = Printing(as_json=as_json, as_csv=as_csv, as_markdown=as_markdown, rows=rows)
    print_document(found, printing)
