"""``traceprof cut``: a window of a trace as a smaller trace."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from traceprof.cli.options import Force, TracePaths, numbers_of, opens_traces

if TYPE_CHECKING:
    from traceprof.session.options import Opening

__all__ = ["cut"]


@opens_traces
def cut(
    opening: Opening,
    trace: TracePaths,
    output: Annotated[
        Path,
        typer.Option("--output", "-o", metavar="FILE", help="The file, or the folder of a run."),
    ],
    window: Annotated[
        str | None,
        typer.Option(
            "--window",
            "-w",
            metavar="WINDOW",
            help="What to keep: 12ms..30ms, 30%..50%, step:100..110, range:NAME, steady, active "
            "or all.",
        ),
    ] = None,
    devices: Annotated[
        str | None,
        typer.Option(
            "--devices",
            metavar="LIST",
            help="Only work of these, as `traceprof info` numbers them: 0,2.",
        ),
    ] = None,
    ranks: Annotated[
        str | None, typer.Option("--ranks", metavar="LIST", help="Only these ranks: 0,2..5.")
    ] = None,
    tables: Annotated[
        str | None,
        typer.Option(
            "--tables",
            metavar="LIST",
            help="Only these events: kernels,copies,ranges … or tables of the file.",
        ),
    ] = None,
    clip: Annotated[
        bool, typer.Option("--clip", help="Shorten what crosses the border of the window.")
    ] = False,
    split: Annotated[
        Literal["step"] | None,
        typer.Option("--split", help="One file for each step, into the folder -o names."),
    ] = None,
    keep_environment: Annotated[
        bool,
        typer.Option(
            "--keep-environment",
            help="Leave in environment variables, outputs of programs, and other secrets.",
        ),
    ] = False,
    force: Force = False,
) -> None:
    """A window of a trace as a smaller trace of the same format, which other tools open, too."""
    from traceprof.cli.output import ProgressLine, ended_by_signals, message
    from traceprof.files import check_target
    from traceprof.render.formatting import note_text
    from traceprof.session.cutting import Cutting, cut_run, cut_steps
    from traceprof.session.run import open_run
    from traceprof.units import format_bytes, format_count

    names = None if tables is None else [name.strip() for name in tables.split(",")]
    cutting = Cutting(numbers_of(devices), numbers_of(ranks), names, clip, keep_environment)
    run = open_run(trace, opening).within(window)
    with ended_by_signals():
        if split is None:
            check_target_of = trace if len(trace) == 1 and trace[0].is_file() else ()
            if check_target_of:
                check_target(output, force=force, inputs=trace)
            cuts, selection = cut_run(
                run, output, cutting, force=force, progress=ProgressLine("cutting")
            )
            notes = selection.notes
        else:
            cuts, _ = cut_steps(run, output, cutting, progress=ProgressLine("cutting"))
            notes = ()
    for note in notes:
        message(note_text(note))
    for remark in cuts.remarks:
        message(remark)
    files = f"{cuts.n_files} files, " if cuts.n_files > 1 else ""
    size = f"{format_count(cuts.n_events)} events, {format_bytes(cuts.n_bytes)}"
    message(f"wrote {output} ({files}{size})")
