"""The command line: the only place that parses options, prints and exits."""

from __future__ import annotations

import errno
import os
import sys
from typing import Annotated, Final

import typer

from traceprof.cli.commands import Commands
from traceprof.cli.output import say
from traceprof.errors import TraceprofError
from traceprof.version import __version__

__all__ = ["app", "main"]

app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    rich_markup_mode=None,  # it eats what stands in brackets, and costs as much as all the rest
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
    help="Find out where the step time of a training run goes and what would fix it.",
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"traceprof {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option("--version", "-V", callback=_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    pass


_NO_MEMORY: Final = (
    "traceprof: not enough memory: use a smaller --window, or write a part of the trace with "
    "`traceprof cut` and analyze that part\n"
)
_NOT_MAPPED: Final = "failed to map segment"
"""What the loader of libraries says where memory is limited."""
_NO_THREAD: Final = "can't start new thread"
"""What Python says where processes are."""


def main() -> None:
    """Run the command line; a bug of ours is one line, too, unless TRACEPROF_DEBUG is set."""
    try:
        app(prog_name="traceprof")
    except Exception as error:
        if os.environ.get("TRACEPROF_DEBUG"):
            raise
        is_unmapped = isinstance(error, ImportError) and _NOT_MAPPED in str(error)
        if not (is_unmapped or isinstance(error, MemoryError)):
            from traceprof.cli.output import error_message

            error_message(_told(error))
            sys.exit(TraceprofError.exit_code)
    else:
        return
    say(_NO_MEMORY)  # what filled it is let go by now; nothing is imported for the message
    sys.exit(TraceprofError.exit_code)


def _told(error: Exception) -> str:
    if isinstance(error, TraceprofError):  # of standard output, before a command begins
        return str(error)
    is_refused = isinstance(error, OSError) and error.strerror == os.strerror(errno.EAGAIN)
    if is_refused or str(error) == _NO_THREAD:
        return "cannot start another process or thread: check the limit with `ulimit -u`"
    if isinstance(error, OSError):
        # A folder that went away, a disk that is full: the machine's, and nobody's bug.
        where = f"{error.filename}: " if error.filename is not None else ""
        return f"{where}{error.strerror or error}"
    return (
        f"internal error ({type(error).__name__}: {error}); run the command again with "
        "TRACEPROF_DEBUG=1 and report the output"
    )
