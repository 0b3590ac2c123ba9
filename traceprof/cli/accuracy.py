"""``traceprof accuracy``: time, steps, epochs and samples until runs are good enough."""

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
from traceprof.errors import UsageError

if TYPE_CHECKING:
    from traceprof.session.options import Opening

__all__ = ["accuracy"]


@opens_traces
def accuracy(
    opening: Opening,
    runs: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN", help="Logs, traces, runs, names in the database, label:KEY=VALUE."
        ),
    ],
    to: Annotated[
        str | None,
        typer.Option(
            "--to",
            metavar="VALUE",
            help="The target: 0.759, 75.9%. Default: that of the runs, else what all reach.",
        ),
    ] = None,
    metric: Annotated[
        str | None,
        typer.Option(
            "--metric", metavar="NAME", help="top1, val_loss … Default: an accuracy, else a loss."
        ),
    ] = None,
    is_lower: Annotated[
        bool | None,
        typer.Option("--lower/--higher", help="Which way is better. Default: by the name."),
    ] = None,
    base: Annotated[
        str | None,
        typer.Option(
            "--base",
            metavar="RUN|N",
            help="What speed-ups are against: a run, or a number of devices. Default: the fewest.",
        ),
    ] = None,
    db: DatabaseFile = None,
    output: Output = None,
    force: Force = False,
    as_json: AsJson = False,
    as_csv: AsCsv = False,
    as_markdown: AsMarkdown = False,
    rows: RowCount = 20,
) -> None:
    """Time to accuracy: time, epochs, steps and samples to a target, and what more devices gave.

    Speed-ups are against the fewest devices: traceprof accuracy 1node.log 8nodes.log --to 0.759
    """
    from traceprof.cli.output import Printing, print_document, write_page
    from traceprof.comparison.accuracy import accuracy as compared
    from traceprof.comparison.runs_named import summaries_of

    found = compared(
        summaries_of(runs, opening, db),
        target=_target(to),
        metric=metric,
        is_lower=is_lower,
        base=base,
    )
    if output is not None:
        write_page(output, found, force=force)
        return
    printing = Printing(as_json=as_json, as_csv=as_csv, as_markdown=as_markdown, rows=rows)
    print_document(found, printing)


def _target(text: str | None) -> float | None:
    if text is None:
        return None
    try:
        value = float(text.strip().removesuffix("%"))
    except ValueError:
        raise UsageError(f"--to {text}: expected a number, such as 0.759 or 75.9%") from None
    return value / 100 if text.strip().endswith("%") else value
