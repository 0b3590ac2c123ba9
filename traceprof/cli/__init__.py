"""The command line: the only place that parses options, prints and exits."""

from __future__ import annotations

import os
import sys
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

import traceprof
from traceprof.analysis import ANALYSES
from traceprof.cli.analyze import analyze, command_for
from traceprof.cli.doctor import doctor
from traceprof.cli.info import info
from traceprof.cli.record import record
from traceprof.cli.report import report
from traceprof.cli.timeline import timeline
from traceprof.cli.view import view
from traceprof.errors import TraceprofError

__all__ = ["app", "main"]


class _Group(TyperGroup):
    """Turns the errors that the library raises into one line and an exit code."""

    def invoke(self, ctx: Any) -> Any:
        """Run a command."""
        try:
            return super().invoke(ctx)
        except TraceprofError as error:
            from traceprof.cli.output import message

            message(str(error))
            raise typer.Exit(error.exit_code) from None
        except BrokenPipeError:
            # The reader of our output went away (| head); there is nobody to tell.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(0) from None


app = typer.Typer(
    cls=_Group,
    no_args_is_help=True,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
    help="Where did the step time of a training run go, and what would fix it?",
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"traceprof {traceprof.__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    pass


app.command(context_settings={"allow_interspersed_args": False})(record)
app.command()(doctor)
app.command()(info)
app.command()(analyze)
app.command()(timeline)
app.command()(report)
app.command()(view)
for entry in ANALYSES:
    app.command(
        entry.name,
        help=entry.summary[0].upper() + entry.summary[1:] + ".",
        rich_help_panel="One analysis",
    )(command_for(entry.name))


def main() -> None:
    """Run the command line; a bug of ours is one line, too, unless TRACEPROF_DEBUG is set."""
    try:
        app()
    except Exception as error:
        if os.environ.get("TRACEPROF_DEBUG"):
            raise
        from traceprof.cli.output import message

        message(
            f"an error of traceprof's own ({type(error).__name__}: {error}); please report it "
            "with what TRACEPROF_DEBUG=1 prints"
        )
        sys.exit(TraceprofError.exit_code)
