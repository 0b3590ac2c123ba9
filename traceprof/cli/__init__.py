"""The command line: the only package that parses options, prints, and exits."""

from __future__ import annotations

import errno
import os
import sys
from typing import Annotated, Final

import typer

from traceprof.cli.commands import Commands
from traceprof.cli.output import error_message, write_stderr
from traceprof.errors import TraceError, TraceprofError
from traceprof.version import __version__

__all__ = ["app", "main"]

app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    # Rich markup would remove text in brackets, and importing rich doubles the start-up time.
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
    help="Find out where the step time of a training run goes and what would fix it.",
)


def _print_version(is_requested: bool) -> None:
    if is_requested:
        typer.echo(f"traceprof {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", "-V", callback=_print_version, is_eager=True, help="Show the version."
        ),
    ] = False,
) -> None:
    pass


_OUT_OF_MEMORY_MESSAGE: Final = (
    "traceprof: not enough memory: use a smaller --window, or write a part of the trace with "
    "`traceprof cut` and analyze that part\n"
)
_LOADER_OUT_OF_MEMORY: Final = "failed to map segment"
"""Message of the dynamic loader when the memory limit prevents loading a library."""
_THREAD_LIMIT_REACHED: Final = "can't start new thread"
"""Message of Python when the limit of processes or threads is reached."""


def main() -> None:
    """Run the command line and print an error as one line.

    An internal error is also one line. With TRACEPROF_DEBUG set, Python prints its traceback.
    """
    try:
        app(prog_name="traceprof")
    except Exception as error:
        if os.environ.get("TRACEPROF_DEBUG"):
            raise
        is_loader_out_of_memory = isinstance(error, ImportError) and _LOADER_OUT_OF_MEMORY in str(
            error
        )
        if not (is_loader_out_of_memory or isinstance(error, MemoryError)):
            error_message(_describe_error(error))
            # Commands report what they cannot write as a WritingError.
            is_unreadable = isinstance(error, PermissionError) and error.filename is not None
            sys.exit((TraceError if is_unreadable else TraceprofError).exit_code)
    else:
        return
    # The handler has released the error with its frames. The message imports no other module.
    write_stderr(_OUT_OF_MEMORY_MESSAGE)
    sys.exit(TraceprofError.exit_code)


def _describe_error(error: Exception) -> str:
    """Return the error message for an exception that no command handled."""
    if isinstance(error, TraceprofError):  # standard output failed before a command started
        return str(error)
    is_process_limit = isinstance(error, OSError) and error.strerror == os.strerror(errno.EAGAIN)
    if is_process_limit or str(error) == _THREAD_LIMIT_REACHED:
        return "cannot start another process or thread: check the limit with `ulimit -u`"
    if isinstance(error, OSError):
        # The machine caused the error (a removed folder, a full disk): it is not a bug.
        path = f"{error.filename}: " if error.filename is not None else ""
        return f"{path}{error.strerror or error}"
    return (
        f"internal error ({type(error).__name__}: {error}); run the command again with "
        "TRACEPROF_DEBUG=1 and report the output"
    )
