"""``traceprof explain``: why a step took longer than the typical one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from traceprof.cli.options import (
    AsCsv,
    AsJson,
    AsMarkdown,
    RowCount,
    TracePaths,
    opens_traces,
)

if TYPE_CHECKING:
    from traceprof.session.answer import Document
    from traceprof.session.options import Opening

__all__ = ["explain"]


@opens_traces
def explain(
    opening: Opening,
    trace: TracePaths,
    window: Annotated[
        str,
        typer.Argument(
            metavar="STEP", help="step:37, slowest, pattern:3, or a window with --against."
        ),
    ],
    against: Annotated[
        str | None,
        typer.Option(
            "--against",
            metavar="WINDOW",
            help="What to hold it against: step:12, 1s..2s, range:NAME … Default: the steady step "
            "of median length.",
        ),
    ] = None,
    as_json: AsJson = False,
    as_csv: AsCsv = False,
    as_markdown: AsMarkdown = False,
    rows: RowCount = 4,
) -> None:
    """Why a step took longer than the typical one: `traceprof explain TRACE step:37`."""
    from traceprof.cli.output import Printing, print_kept

    def answered() -> Document:
        from traceprof.comparison.explaining import explain as explained
        from traceprof.session.run import open_run

        return explained(open_run(trace, opening), window, against)

    printing = Printing(as_json=as_json, as_csv=as_csv, as_markdown=as_markdown, rows=rows)
    print_kept(("explain", window, against), trace, opening, answered, printing)
