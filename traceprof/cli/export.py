"""``traceprof export``: a trace, or what is told about it, in a form that other tools read."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from traceprof.cli.options import Force, TracePaths, opens_traces
from traceprof.errors import UsageError
from traceprof.export import EXPORTERS

if TYPE_CHECKING:
    from traceprof.session.options import Opening

__all__ = ["export"]

_OF_RESULTS = ("parquet", "arrow", "csv", "openmetrics")
_FORMS = ", ".join(one.name for one in EXPORTERS)


@opens_traces
def export(
    opening: Opening,
    trace: TracePaths,
    to: Annotated[
        str,
        typer.Option(
            "--to",
            metavar="FORM",
            help=f"{_FORMS}.",
            autocompletion=lambda: [(one.name, one.summary) for one in EXPORTERS],
        ),
    ],
    output: Annotated[
        Path,
        typer.Option("--output", "-o", metavar="PATH", help="The file, or a new folder."),
    ],
    window: Annotated[
        str | None,
        typer.Option(
            "--window",
            "-w",
            metavar="WINDOW",
            help="12ms..30ms, 30%..50%, step:100..110, range:NAME, steady, active or all. "
            "Default: of a trace and of scalars of steps all, of results the steady steps.",
        ),
    ] = None,
    ranks: Annotated[
        str | None, typer.Option("--ranks", metavar="LIST", help="Only these ranks: 0,2..5.")
    ] = None,
    tables: Annotated[
        str | None,
        typer.Option("--tables", metavar="LIST", help="Only these tables: kernels,copies …"),
    ] = None,
    results: Annotated[
        str | None,
        typer.Option(
            "--results",
            metavar="LIST",
            help="Results instead of the trace (parquet, arrow, csv), or these (openmetrics): "
            "steps,kernels … or all.",
        ),
    ] = None,
    keep_secrets: Annotated[
        bool,
        typer.Option("--keep-secrets", help="Leave in what looks like, or is told to be, secret."),
    ] = False,
    force: Force = False,
) -> None:
    """A trace in a form that other tools read: Perfetto, Parquet, CSV, TensorBoard and more."""
    from dataclasses import replace

    from traceprof.cli.options import numbers_of
    from traceprof.cli.output import ProgressLine, ended_by_signals, message
    from traceprof.export import exporter_called
    from traceprof.export.request import Request, check_analyses, check_tables
    from traceprof.session.run import open_run
    from traceprof.units import format_bytes, format_count

    exporter = exporter_called(to)
    asked = [] if results is None else check_analyses(_names(results))
    if asked and to not in _OF_RESULTS:
        known = ", ".join(_OF_RESULTS)
        raise UsageError(f"--results: --to {to} takes none; expected one of {known}")
    request = Request(
        output,
        None if tables is None else check_tables(_names(tables)),
        tuple(asked),
        numbers_of(ranks),
        force,
        ProgressLine("exporting"),
    )
    run = open_run(trace, replace(opening, keeps_secrets=keep_secrets)).within(window)
    with ended_by_signals():
        done = exporter.load()(run, request)
    for remark in done.remarks:
        message(remark)
    size = f"{format_count(done.n_rows)} rows, {format_bytes(done.n_bytes)}"
    message(f"wrote {output} ({size})")


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]
