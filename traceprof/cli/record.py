"""``traceprof record``: run a program and leave its trace."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from traceprof.cli.options import DatabaseFile, LabelTexts
from traceprof.cli.saving import RunName, Save, Saving
from traceprof.errors import TraceprofError

if TYPE_CHECKING:
    from traceprof.recording import Recording

__all__ = ["record", "say_what_was_recorded"]


def record(
    command: Annotated[
        list[str],
        typer.Argument(help="The program and its arguments, after --.", metavar="COMMAND"),
    ],
    output: Annotated[
        str,
        typer.Option(
            "--output", "-o", metavar="FILE", help="The trace to write; FOLDER/ for one per rank."
        ),
    ] = "trace.sqlite",
    recorder: Annotated[
        str,
        typer.Option(
            "--with",
            metavar="RECORDER",
            help="auto, nsys, nvprof or torch (the embedded recorder).",
        ),
    ] = "auto",
    layers: Annotated[
        int, typer.Option(metavar="DEPTH", help="Ranges for modules, this many levels deep.", min=0)
    ] = 0,
    steps: Annotated[
        str | None, typer.Option(metavar="A..B", help="Capture only steps A to B, from 0.")
    ] = None,
    step_from: Annotated[
        str | None,
        typer.Option(
            metavar="WHAT",
            help="What a step is: optimizer (or optimizer#2), backward, loader, every-forward or "
            "range:NAME.",
        ),
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
    grace: Annotated[
        str,
        typer.Option(
            metavar="TIME",
            help="After SIGTERM: so much later write the trace and end what still runs.",
        ),
    ] = "10s",
    gpu_metrics: Annotated[
        bool, typer.Option("--gpu-metrics", help="Counters inside the GPUs, too (nsys).")
    ] = False,
    nsys_arg: Annotated[
        list[str] | None,
        typer.Option(metavar="ARG", help="An argument for nsys profile, as it is."),
    ] = None,
    nvprof_arg: Annotated[
        list[str] | None, typer.Option(metavar="ARG", help="An argument for nvprof, as it is.")
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
    save: Save = False,
    name: RunName = None,
    label: LabelTexts = None,
    db: DatabaseFile = None,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Show the profiler's command.")
    ] = False,
) -> None:
    """Run a program and record where its time goes: traceprof record -- python train.py."""
    from traceprof.cli.output import message
    from traceprof.recording import RecordRequest
    from traceprof.recording import record as run_and_record
    from traceprof.recording.request import parse_bounds, parse_grace, parse_step_from

    saving = Saving.of(save, name, label, db)
    request = RecordRequest(
        command=command,
        output=Path(output),
        is_folder=output.endswith("/"),
        recorder=recorder,
        force=force,
        layer_depth=layers,
        bounds=parse_bounds(steps, delay, duration, max_size),
        step_from=parse_step_from(step_from),
        keep_report=keep_report,
        keep_environment=keep_environment,
        profiler_arguments={"nsys": nsys_arg or (), "nvprof": nvprof_arg or ()},
        grace_s=parse_grace(grace),
        gpu_metrics=gpu_metrics,
        say=message,
        detail=message if verbose else _nothing,
    )
    recording = run_and_record(request)
    say_what_was_recorded(recording)
    if recording.output is not None and saving.is_wanted:
        _keep(saving, recording.output)
    raise typer.Exit(recording.exit_code or 0)


def say_what_was_recorded(recording: Recording) -> None:
    """Say on standard error what is in a finished recording, and what is odd about it."""
    from traceprof.cli.output import message

    for note in recording.notes:
        message(note)
    if recording.output is not None:
        ranks = f", ranks {_listed(recording.ranks)}" if recording.ranks else ""
        what = (
            f"{_counted(recording.n_ranges, 'range', 'ranges')} "
            f"of {_counted(recording.n_processes, 'process', 'processes')}{ranks}"
        )
        if recording.has_only_samples:
            what = "samples of the machine and nothing else"
        code = recording.exit_code
        ended = f" (the program ended with exit code {code})" if code else ""
        message(f"recorded {what} with {recording.recorder}: {recording.output}{ended}")


def _keep(saving: Saving, output: Path) -> None:
    """Keep the run in the database; whatever goes wrong there, the recording is done."""
    from traceprof.cli.output import message
    from traceprof.session.run import open_run

    try:
        saving.keep(open_run([output]), [output], numbered=True)
    except Exception as error:
        kind = "" if isinstance(error, TraceprofError) else f"{type(error).__name__}: "
        message(f"the run was not kept: {kind}{error}; try again: traceprof runs add {output}")


def _counted(count: int, one: str, several: str) -> str:
    return f"{count} {one if count == 1 else several}"


def _listed(ranks: tuple[int, ...]) -> str:
    return ", ".join(map(str, ranks))


def _nothing(_line: str) -> None:
    pass
