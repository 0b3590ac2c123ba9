"""``traceprof recover``: the trace of a recording that was broken off."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

__all__ = ["recover"]


def recover(
    folder: Annotated[
        Path | None,
        typer.Argument(help="The work folder that was left (alone: which there are)."),
    ] = None,
    output: Annotated[
        str | None,
        typer.Option(
            "--output", "-o", metavar="FILE", help="The trace to write; else where it was to go."
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", "-f", help="Overwrite the output.")] = False,
    keep: Annotated[bool, typer.Option("--keep", help="Keep the work folder.")] = False,
) -> None:
    """Make the trace of a recording that was killed, or whose disk was full."""
    from traceprof.cli.output import message, out
    from traceprof.cli.record import say_what_was_recorded
    from traceprof.recording import recover as write_trace
    from traceprof.recording import recoverable

    if folder is not None:
        say_what_was_recorded(write_trace(folder, output, force=force, keep=keep, say=message))
        return
    left = recoverable()
    for one in left:
        began = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(one.started_s))
        out(f"{one.folder}  begun {began}, to {one.output}: {one.command}")
    if not left:
        message("no recording was left here: everything was written, or its folder is elsewhere")
