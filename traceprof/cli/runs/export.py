"""``traceprof runs export``: runs as a JSON file, or a table of them as CSV."""

from __future__ import annotations

from typing import Annotated

import typer

from traceprof.cli.options import DatabaseFile, Force, Output

__all__ = ["export"]


def export(
    run: Annotated[
        list[str] | None,
        typer.Argument(metavar="NAME", help="Runs, or label:KEY=VALUE; default: all."),
    ] = None,
    output: Output = None,
    table: Annotated[
        str | None,
        typer.Option("--table", "-t", metavar="TABLE", help="This table as CSV: steps, kernels …"),
    ] = None,
    force: Force = False,
    db: DatabaseFile = None,
) -> None:
    """Runs as JSON that `traceprof runs add` takes, or one of their tables as CSV."""
    from traceprof.cli.output import message, out
    from traceprof.comparison.records import table_of_runs
    from traceprof.comparison.runs_named import summaries_of
    from traceprof.files import write_file
    from traceprof.render.registry import Options, render
    from traceprof.store import Store, exported_runs

    runs = summaries_of(run or Store.at(db).names(), db=db)
    if table is None:
        text = exported_runs(runs)
    else:
        text = render("csv", table_of_runs(runs, table), Options())
    if output is None:
        out(text)
        return
    write_file(output, text, force=force)
    message(f"wrote {output}: {len(runs)} {'run' if len(runs) == 1 else 'runs'}")
