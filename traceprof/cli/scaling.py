"""``traceprof scaling``: throughput by number of devices, and where the rest was lost."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from traceprof.cli.options import (
    AsCsv,
    AsJson,
    AsMarkdown,
    DatabaseFile,
    Force,
    Output,
    RowCount,
    opens_traces,
)

if TYPE_CHECKING:
    from traceprof.session.options import Opening

__all__ = ["scaling"]


@opens_traces
def scaling(
    opening: Opening,
    runs: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN",
            help="Traces, runs, tables of rates (CSV), logs, names in the database, "
            "label:KEY=VALUE.",
        ),
    ],
    base: Annotated[
        float | None,
        typer.Option(
            "--base",
            min=0,
            metavar="N",
            help="The size that is held for ideal; default: the smallest of each group.",
        ),
    ] = None,
    by: Annotated[
        list[str] | None,
        typer.Option(
            "--by",
            metavar="WHAT",
            help="The size: gpus or nodes; and labels to compare (network, batch …).",
        ),
    ] = None,
    ignore: Annotated[
        list[str] | None,
        typer.Option(
            "--ignore", metavar="LABEL", help="Runs that differ in this label alone are repeats."
        ),
    ] = None,
    kind: Annotated[
        str,
        typer.Option(
            "--scaling", metavar="KIND", help="weak or strong, where batches are not known."
        ),
    ] = "",
    db: DatabaseFile = None,
    output: Output = None,
    force: Force = False,
    as_json: AsJson = False,
    as_csv: AsCsv = False,
    as_markdown: AsMarkdown = False,
    rows: RowCount = 40,
) -> None:
    """Throughput by number of devices: speed-up, efficiency, and where the rest was lost.

    Runs are held against the smallest one that has the same labels: traceprof scaling 1/ 2/ 4/
    """
    from traceprof.cli.output import Printing, print_document, write_page
    from traceprof.comparison.runs_named import summaries_of
    from traceprof.comparison.scaling.compared import scaling as compared
    from traceprof.files import check_target

    if output is not None:
        check_target(output, force=force, inputs=runs)
    found = compared(
        summaries_of(runs, opening, db),
        base=base,
        by=_each(by),
        ignored=_each(ignore),
        assumed=kind,
    )
    if output is not None:
        write_page(output, found, force=force, inputs=runs)
        return
    printing = Printing(as_json=as_json, as_csv=as_csv, as_markdown=as_markdown, rows=rows)
    print_document(found, printing)


def _each(texts: list[str] | None) -> list[str]:
    """Return what an option was given, several times or with commas."""
    return [part for text in texts or () for part in text.split(",") if part]
