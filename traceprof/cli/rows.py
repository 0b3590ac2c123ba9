"""The commands that print rows: every GPU operation in order, and the result of an SQL query."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from traceprof.cli import completion
from traceprof.cli.options import (
    WINDOWS,
    AsCsv,
    DeviceList,
    Force,
    Output,
    RankList,
    TracePaths,
    check_paths,
    open_traces,
    option,
    with_options,
)
from traceprof.cli.output import (
    Printing,
    check_suffix,
    message,
    print_lines,
    print_notes,
    terminal_options,
)
from traceprof.cli.parsing import numbers_of
from traceprof.errors import UsageError
from traceprof.files import is_there

if TYPE_CHECKING:
    from traceprof.session.options import Opening


@with_options
def ops(
    opening: Opening,
    trace: TracePaths,
    window: Annotated[
        str | None,
        option(
            "--window -w",
            f"List only this window: {WINDOWS}",
            "WINDOW",
            autocompletion=completion.windows,
        ),
    ] = "all",
    name: Annotated[
        str | None, option("--name", "List only operations whose name matches REGEX.", "REGEX")
    ] = None,
    kind: Annotated[
        Literal["kernel", "copy", "memset"] | None,
        option("--kind", "List only operations of this kind.", "kernel|copy|memset"),
    ] = (None),
    devices: DeviceList = None,
    ranks: RankList = None,
    streams: Annotated[
        str | None, option("--streams --stream", "List only these streams: 7,20.", "LIST")
    ] = None,
    longer: Annotated[
        str | None, option("--longer", "List only operations of at least TIME: 1ms.", "TIME")
    ] = None,
    shorter: Annotated[
        str | None, option("--shorter", "List only operations of at most TIME: 5us.", "TIME")
    ] = None,
    longest: Annotated[
        bool, option("--longest", "Sort by duration, and show the range that launched each.")
    ] = False,
    rows: Annotated[
        int | None, option("--rows -n", "List at most N rows. Default: all.", "N", min=1)
    ] = None,
    as_csv: AsCsv = False,
    as_json: Annotated[
        bool, option("--json", "Print JSON lines, one object per operation (times in ns).")
    ] = False,
    ncu: Annotated[
        bool, option("--ncu", "Print the Nsight Compute command that profiles each kernel.")
    ] = False,
    output: Output = None,
    force: Force = False,
) -> None:
    """List every kernel, copy, and memset in order, with its launch parameters."""
    from traceprof.render.rows_text import OPERATION_FORMS, ncu_lines
    from traceprof.session.caveats import caveats
    from traceprof.session.operations import OPERATIONS, OperationFilter, operations
    from traceprof.units import parse_duration

    if as_csv + as_json + ncu > 1:
        raise UsageError("--csv, --json, and --ncu cannot be combined: use only one")
    form = Printing(as_json, as_csv, output=output).renderer
    if output is not None:
        check_suffix(output, ".csv", ".json", ".txt")
    operation_filter = OperationFilter(
        name=name,
        kind="kernel" if ncu else kind,
        devices=numbers_of(devices),
        ranks=numbers_of(ranks),
        streams=numbers_of(streams),
        min_ns=None if longer is None else parse_duration(longer),
        max_ns=None if shorter is None else parse_duration(shorter),
        n_rows=rows,
        longest_first=longest,
    )
    run = open_traces(trace, opening, window)
    matches = operations(run, operation_filter, counts_launches=ncu)
    print_notes(caveats(run).notes)
    if ncu:
        lines = ncu_lines(matches.launches())
    else:
        lines = OPERATION_FORMS[form](OPERATIONS, matches.chunks())
    print_lines(lines, output, trace, force=force)


@with_options
def query(
    opening: Opening,
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="TRACE... SQL",
            help="Trace file, or run (its directory or files). Then one SELECT statement, or - to "
            "read it from standard input.",
        ),
    ] = None,
    schema: Annotated[
        bool, option("--schema", "Print the views and their columns, then exit.")
    ] = False,
    window: Annotated[
        str,
        option(
            "--window -w",
            f"Query only this window: {WINDOWS} Rows that cross its edge are clipped. "
            "Default: all.",
            "WINDOW",
            autocompletion=completion.windows,
        ),
    ] = "all",
    rows: Annotated[
        int | None,
        option(
            "--rows -n",
            "Return at most N rows. Default: 1000, or 1000000 with --csv or --json.",
            "N",
            min=1,
        ),
    ] = None,
    timeout: Annotated[
        str, option("--timeout", "Stop the query after TIME, for example 500ms.", "TIME")
    ] = "60s",
    as_csv: Annotated[bool, option("--csv", "Print CSV.")] = False,
    as_json: Annotated[bool, option("--json", "Print JSON, one object per row.")] = False,
    as_markdown: Annotated[bool, option("--markdown", "Print Markdown.")] = False,
    output: Output = None,
    force: Force = False,
) -> None:
    """Run a SQL query on the kernels, copies, ranges, steps … of a trace."""
    from traceprof.query.engine import Limits
    from traceprof.render.rows_text import QUERY_FORMS, schema_text
    from traceprof.session.querying import query as run_query
    from traceprof.session.querying import views
    from traceprof.units import parse_duration

    if schema:
        print_lines([schema_text(views())], None, [], force=False)
        return
    paths, sql = _split_words(words or [])
    form = Printing(as_json, as_csv, as_markdown, output=output).renderer
    if output is not None:
        check_suffix(output, ".csv", ".json", ".md", ".txt")
    max_rows = rows or (1_000_000 if form in ("csv", "json") else 1000)
    limits = Limits(n_rows=max_rows, seconds=parse_duration(timeout) / 1e9)
    answer = run_query(open_traces(paths, opening, window), sql, limits)
    text = QUERY_FORMS[form](answer.rows, terminal_options().line_width)
    print_lines([text], output, paths, force=force)
    for remark in answer.remarks:
        message(remark)
    print_notes(answer.caveats.notes)
    if answer.rows.is_cut:
        message(f"printed only the first {max_rows} rows; use --rows N to print more")


def _split_words(words: list[str]) -> tuple[list[Path], str]:
    """Return the traces and the SQL statement, which is the last of ``words``.

    Raises:
        UsageError: the traces or the statement are missing.
    """
    if len(words) < 2 or (words[-1] != "-" and is_there(words[-1])):
        raise UsageError(
            'missing TRACE or SQL: run `traceprof query TRACE "SELECT …"`; '
            "`traceprof query --schema` lists the views"
        )
    sql = sys.stdin.read() if words[-1] == "-" else words[-1]
    return check_paths([Path(word) for word in words[:-1]]), sql
