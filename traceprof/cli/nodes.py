"""``traceprof nodes``: rounds of nodes, independent or synchronised, forward or with backward."""

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
    check_paths,
    opens_traces,
)

if TYPE_CHECKING:
    from traceprof.session.options import Opening

__all__ = ["nodes"]


@opens_traces
def nodes(
    opening: Opening,
    runs: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN",
            help="Traces or runs, each by itself: forward only, independent ranks …",
            callback=check_paths,
        ),
    ],
    output: Output = None,
    force: Force = False,
    as_json: AsJson = False,
    as_csv: AsCsv = False,
    as_markdown: AsMarkdown = False,
    rows: RowCount = 60,
) -> None:
    """Rounds of each node side by side: independent or synchronised, forward or with backward.

    Warm-up is left out. Independent ranks are averaged, synchronised ones are not.
    """
    from traceprof.cli.output import Printing, print_document, write_page
    from traceprof.comparison.iterations import iterations_of_run
    from traceprof.comparison.nodes import nodes as compared
    from traceprof.comparison.runs_named import name_of
    from traceprof.files import check_target
    from traceprof.session.run import open_run

    if output is not None:
        check_target(output, force=force, inputs=runs)
    found = compared(
        [
            one
            for path in runs
            for one in iterations_of_run(open_run([path], opening), name_of(path))
        ]
    )
    if output is not None:
        write_page(output, found, force=force, inputs=runs)
        return
    printing = Printing(as_json=as_json, as_csv=as_csv, as_markdown=as_markdown, rows=rows)
    print_document(found, printing)
