"""The command line: the only place that parses options, prints and exits."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from traceprof.cli.commands import Commands
from traceprof.errors import TraceprofError
from traceprof.version import __version__

__all__ = ["app", "main"]

app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    rich_markup_mode=None,  # it eats what stands in brackets, and costs as much as all the rest
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
    help="Where did the step time of a training run go, and what would fix it?\n\n"
    "`traceprof TRACE` is `traceprof analyze TRACE`.",
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"traceprof {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    pass


def main() -> None:
    """Run the command line; a bug of ours is one line, too, unless TRACEPROF_DEBUG is set."""
    try:
        app(prog_name="traceprof")
    except Exception as error:
        if os.environ.get("TRACEPROF_DEBUG"):
            raise
        from traceprof.cli.output import message

        message(
            f"an error of traceprof's own ({type(error).__name__}: {error}); please report it "
            "with what TRACEPROF_DEBUG=1 prints"
        )
        sys.exit(TraceprofError.exit_code)
