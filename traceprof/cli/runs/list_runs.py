"""``traceprof runs list``: the runs that are kept."""

from __future__ import annotations

from typing import Annotated

import typer

from traceprof.cli.options import AsCsv, AsJson, AsMarkdown, DatabaseFile, RowCount, labels_of

__all__ = ["list_runs"]


def list_runs(
    label: Annotated[
        list[str] | None,
        typer.Option("--label", "-l", metavar="KEY=VALUE", help="Only runs with this label."),
    ] = None,
    measure: Annotated[
        list[str] | None,
        typer.Option("--measure", "-m", metavar="NAME", help="Show this measure, too."),
    ] = None,
    sort: Annotated[
        str | None,
        typer.Option("--sort", "-s", metavar="COLUMN", help="By this column; default: as added."),
    ] = None,
    is_reversed: Annotated[bool, typer.Option("--reverse", "-r", help="The last first.")] = False,
    as_json: AsJson = False,
    as_csv: AsCsv = False,
    as_markdown: AsMarkdown = False,
    rows: RowCount = 100,
    db: DatabaseFile = None,
) -> None:
    """The runs that are kept, with labels and key measures: traceprof runs list -l gpus=8."""
    from traceprof.cli.output import Printing, print_document
    from traceprof.comparison.records import list_of_runs
    from traceprof.store import Store

    found = list_of_runs(
        Store.at(db), labels_of(label), measure or (), sort=sort, is_reversed=is_reversed
    )
    printing = Printing(as_json=as_json, as_csv=as_csv, as_markdown=as_markdown, rows=rows)
    print_document(found, printing)
