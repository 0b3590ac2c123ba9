"""``traceprof record``: run a program and leave its trace."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["record"]


def record(
    command: Annotated[
        list[str],
        typer.Argument(help="The program and its arguments, after --.", metavar="COMMAND"),
    ],
    output: Annotated[
        str, typer.Option("--output", "-o", help="The trace to write; FOLDER/ for one per rank.")
    ] = "trace.sqlite",
    recorder: Annotated[
        str, typer.Option("--with", help="auto, nsys, nvprof or torch (the embedded recorder).")
    ] = "auto",
    layers: Annotated[
        int, typer.Option(help="Ranges for modules, this many levels deep.", min=0)
    ] = 0,
    steps: Annotated[
        str | None, typer.Option(metavar="A..B", help="Capture only steps A to B, from 0.")
    ] = None,
    delay: Annotated[
        str | None, typer.Option(metavar="TIME", help="Start capturing so much later (10s).")
    ] = None,
    duration: Annotated[
        str | None, typer.Option(metavar="TIME", help="Capture for so long; the program goes on.")
    ] = None,
    max_size: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Stop at so many bytes per process (500MB).")
    ] = None,
    nsys_arg: Annotated[
        list[str] | None, typer.Option(help="An argument for the profiler, as it is.")
    ] = None,
    keep_report: Annotated[
        bool,
        typer.Option("--keep-report", help="Keep nsys's own report (it holds environments)."),
    ] = False,
    keep_environment: Annotated[
        bool,
        typer.Option("--keep-environment", help="Keep the environments that nsys copied."),
    ] = False,
    force: Annotated[bool, typer.Option("--force", "-f", help="Overwrite the output.")] = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Show the profiler's command.")
    ] = False,
) -> None:
    """Run a program and record where its time goes: traceprof record -- python train.py."""
    from traceprof.cli.output import message
    from traceprof.recording import RecordRequest
    from traceprof.recording import record as run_and_record
    from traceprof.recording.bounds import parse_bounds

    request = RecordRequest(
        command=command,
        output=Path(output),
        is_folder=output.endswith("/"),
        recorder=recorder,
        force=force,
        layer_depth=layers,
        bounds=parse_bounds(steps, delay, duration, max_size),
        keep_report=keep_report,
        keep_environment=keep_environment,
        profiler_arguments=nsys_arg or (),
        say=message,
        detail=message if verbose else _nothing,
    )
    recording = run_and_record(request)
    for note in recording.notes:
        message(note)
    if recording.output is not None:
        ranks = f", ranks {_listed(recording.ranks)}" if recording.ranks else ""
        processes = (
            "1 process" if recording.n_processes == 1 else f"{recording.n_processes} processes"
        )
        message(
            f"recorded {recording.n_ranges} ranges of {processes}{ranks} "
            f"with {recording.recorder}: {recording.output}"
        )
    raise typer.Exit(recording.exit_code)


def _listed(ranks: tuple[int, ...]) -> str:
    return ", ".join(map(str, ranks))


def _nothing(_line: str) -> None:
    pass
