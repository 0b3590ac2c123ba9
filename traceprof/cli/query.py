"""``traceprof query``: SQL about a trace."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from traceprof.cli.options import Force, Output, opens_traces
from traceprof.errors import UsageError

if TYPE_CHECKING:
    from traceprof.session.options import Opening

__all__ = ["query"]


@opens_traces
def query(
    opening: Opening,
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="TRACE... SQL",
            help="A trace, or a run: its directory or its files; last, one SELECT, or - for "
            "standard input.",
        ),
    ] = None,
    schema: Annotated[
        bool, typer.Option("--schema", help="Print the views and their columns, and end.")
    ] = False,
    window: Annotated[
        str,
        typer.Option(
            "--window",
            "-w",
            metavar="WINDOW",
            help="12ms..30ms, 30%..50%, step:100..110, range:NAME, steady, active. "
            "Rows that it cuts are clipped. Default: all.",
        ),
    ] = "all",
    rows: Annotated[
        int | None,
        typer.Option(
            "--rows",
            "-n",
            min=1,
            metavar="N",
            help="At most so many; default: 1000, with --csv and --json a million.",
        ),
    ] = None,
    timeout: Annotated[
        str,
        typer.Option("--timeout", metavar="TIME", help="Stop a query that takes longer: 500ms."),
    ] = "60s",
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON, an object for each row.")
    ] = False,
    as_markdown: Annotated[bool, typer.Option("--markdown", help="Print Markdown.")] = False,
    output: Output = None,
    force: Force = False,
) -> None:
    """SQL about a trace: `query TRACE "SELECT name, sum(duration_ns) FROM kernels GROUP BY 1"`."""
    from traceprof.cli.output import Printing, message, terminal_options
    from traceprof.query.engine import Limits
    from traceprof.render.rows_text import QUERY_FORMS, schema_text
    from traceprof.session.querying import query as answered
    from traceprof.session.querying import views
    from traceprof.session.run import open_run
    from traceprof.units import parse_duration

    if schema:
        _print(schema_text(views()), None, [], force=False)
        return
    paths, sql = _split(words or [])
    form = Printing(as_json, as_csv, as_markdown).renderer
    most = rows or (1_000_000 if form in ("csv", "json") else 1000)
    limits = Limits(n_rows=most, seconds=parse_duration(timeout) / 1e9)
    found = answered(open_run(paths, opening).within(window), sql, limits)
    _print(QUERY_FORMS[form](found.rows, terminal_options().width), output, paths, force=force)
    for remark in found.remarks:
        message(remark)
    if found.rows.is_cut:
        message(f"only the first {most} rows: --rows N gives more")


def _split(words: list[str]) -> tuple[list[Path], str]:
    """Return traces and statement."""
    import sys

    from traceprof.cli.options import check_paths
    from traceprof.files import is_there

    if len(words) < 2 or (words[-1] != "-" and is_there(words[-1])):
        raise UsageError(
            'expected a trace and a query: traceprof query TRACE "SELECT …"; --schema prints what '
            "there is to ask"
        )
    sql = sys.stdin.read() if words[-1] == "-" else words[-1]
    return check_paths([Path(word) for word in words[:-1]]), sql


def _print(text: str, output: Path | None, inputs: list[Path], *, force: bool) -> None:
    import sys

    from traceprof.cli.output import message, out
    from traceprof.files import write_file
    from traceprof.render.escape import visible_text

    if output is None:
        out(visible_text(text) if sys.stdout.isatty() else text)
        return
    write_file(output, text, force=force, inputs=inputs)
    message(f"wrote {output}")
