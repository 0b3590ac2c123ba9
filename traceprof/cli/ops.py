"""``traceprof ops``: every kernel, copy and memset, one by one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from traceprof.cli.options import (
    AsCsv,
    Force,
    Output,
    TracePaths,
    numbers_of,
    opens_traces,
)
from traceprof.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from traceprof.session.options import Opening

__all__ = ["ops"]


@opens_traces
def ops(
    opening: Opening,
    trace: TracePaths,
    window: Annotated[
        str | None,
        typer.Option(
            "--window",
            "-w",
            metavar="WINDOW",
            help="12ms..30ms, 30%..50%, step:100..110, range:NAME, steady, active or all.",
        ),
    ] = "all",
    name: Annotated[
        str | None,
        typer.Option("--name", metavar="REGEX", help="Only those with this in their names."),
    ] = None,
    kind: Annotated[
        Literal["kernel", "copy", "memset"] | None,
        typer.Option("--kind", help="Only those."),
    ] = None,
    device: Annotated[
        str | None, typer.Option("--device", metavar="LIST", help="Only of these: 0,2..5.")
    ] = None,
    rank: Annotated[
        str | None, typer.Option("--rank", metavar="LIST", help="Only of these: 0,2..5.")
    ] = None,
    stream: Annotated[
        str | None, typer.Option("--stream", metavar="LIST", help="Only on these: 7,20.")
    ] = None,
    longer: Annotated[
        str | None, typer.Option("--longer", metavar="TIME", help="Only as long or longer: 1ms.")
    ] = None,
    shorter: Annotated[
        str | None, typer.Option("--shorter", metavar="TIME", help="Only as long or shorter: 5us.")
    ] = None,
    longest: Annotated[
        bool, typer.Option("--longest", help="The longest first, not the earliest.")
    ] = False,
    rows: Annotated[
        int | None,
        typer.Option("--rows", "-n", min=1, metavar="N", help="At most so many; default: all."),
    ] = None,
    as_csv: AsCsv = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON lines, an object each (times in ns).")
    ] = False,
    ncu: Annotated[
        bool,
        typer.Option(
            "--ncu", help="Print, for each kernel, what profiles just it with Nsight Compute."
        ),
    ] = False,
    output: Output = None,
    force: Force = False,
) -> None:
    """Every kernel, copy and memset one by one, with how it was launched: `ops TRACE --longest`."""
    from traceprof.session.operations import OperationFilter, operations
    from traceprof.session.run import open_run
    from traceprof.units import parse_duration

    if as_csv + as_json + ncu > 1:
        raise UsageError("--csv, --json and --ncu: one of them at a time")
    chosen = OperationFilter(
        name=name,
        kind="kernel" if ncu else kind,
        devices=numbers_of(device),
        ranks=numbers_of(rank),
        streams=numbers_of(stream),
        min_ns=None if longer is None else parse_duration(longer),
        max_ns=None if shorter is None else parse_duration(shorter),
        n_rows=rows,
        longest_first=longest,
    )
    found = operations(open_run(trace, opening).within(window), chosen, counts_launches=ncu)
    if ncu:
        from traceprof.render.rows_text import ncu_lines

        lines = ncu_lines(found.launches())
    else:
        from traceprof.render.rows_text import OPERATION_FORMS
        from traceprof.session.operations import OPERATIONS

        form = "csv" if as_csv else "json" if as_json else "text"
        lines = OPERATION_FORMS[form](OPERATIONS, found.chunks())
    _print(lines, output, trace, force=force)


def _print(lines: Iterable[str], output: Path | None, inputs: list[Path], *, force: bool) -> None:
    import sys

    from traceprof.cli.output import message, out
    from traceprof.files import new_file
    from traceprof.render.escape import visible_text

    if output is None:
        for text in lines:
            out(visible_text(text) if sys.stdout.isatty() else text)
        return
    with (
        new_file(output, force=force, inputs=inputs) as temporary,
        temporary.open("w", encoding="utf-8", errors="replace", newline="") as file,
    ):
        file.writelines(lines)
    message(f"wrote {output}")
