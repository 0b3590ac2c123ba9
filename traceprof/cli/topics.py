"""`traceprof help`: the help of a command, and the topics `options` and `windows`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Final

import typer

from traceprof.cli.commands import COMMANDS, function_of
from traceprof.cli.help import GAP, PROGRAM, describe_option
from traceprof.cli.options import SHARED, with_options
from traceprof.cli.output import out
from traceprof.errors import UsageError

_WINDOWS: Final = (
    ("12ms..30ms", "time after the start of the trace; either end can be omitted"),
    ("30%..50%", "percentage of the trace duration"),
    ("@60.1s..@60.4s", "timestamps on the trace's own clock, as nsys shows them"),
    ("first:2s, last:2s", "the first or last two seconds"),
    ("step:100..110", "steps 100 to 110; step:37 is one step, step:100.. is all from step 100"),
    ("pattern:3..5", "iterations detected from the kernel sequence (no step markers)"),
    ("range:forward", "first NVTX range of this name; range:forward#2 is the second one"),
    ("range:/regex/", "first range that matches; range:x@NCCL is range x in the domain NCCL"),
    ("step:7 & range:forward", "the range inside the step"),
    ("steady", "steps after warm-up (the default if the trace contains steps)"),
    ("active", "from the first to the last GPU operation"),
    ("all", "the whole trace"),
)


def _options_of(names: frozenset[str]) -> Iterator[tuple[str, str]]:
    """Yield the options called ``names`` of a command that has them all."""
    command = next(param for param in COMMANDS if param.name == "show")
    app = typer.Typer(add_completion=False)
    app.command()(function_of(command))
    for param in typer.main.get_command(app).params:
        if param.name in names:
            yield describe_option(param)


@with_options
def help_command(
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="COMMAND", help="Command, or topic: options, windows."),
    ] = None,
) -> None:
    """Show the help of a command or topic."""
    out(help_of(words or []))


def help_of(words: Sequence[str]) -> str:
    """Return the help of a command, or of a topic; without words of all.

    Raises:
        UsageError: there is no such command.
    """
    from traceprof.cli import app

    root: Any = typer.main.get_command(app)
    context = root.context_class(root, info_name=PROGRAM, **root.context_settings)
    topics = {"options": _options_topic, "windows": _windows_topic}
    if len(words) == 1 and words[0] in topics:
        formatter = context.make_formatter()
        topics[words[0]](formatter)
        return str(formatter.getvalue())
    command = root
    for word in words:
        subcommand = command.get_command(context, word) if hasattr(command, "get_command") else None
        if subcommand is None:
            raise UsageError(
                f"unknown command {' '.join(words)!r}; `traceprof help` lists all commands"
            )
        command = subcommand
        settings = command.context_settings
        context = root.context_class(command, info_name=word, parent=context, **settings)
    return f"{command.get_help(context)}\n"


def _options_topic(formatter: Any) -> None:
    with formatter.section("Options for reading traces"):
        formatter.write_dl(list(_options_of(SHARED)), GAP)
    with formatter.section("Common options"):
        formatter.write_dl(list(_options_of(frozenset({"quiet", "verbose"}))), GAP)
        formatter.write_dl([("-h, --help", "Show the help of the command.")], GAP)
    with formatter.section("Options for printing tables"):
        names = ("output", "force", "as_json", "as_csv", "as_markdown", "rows", "wide", "columns")
        formatter.write_dl(list(_options_of(frozenset(names))), GAP)


def _windows_topic(formatter: Any) -> None:
    with formatter.section("Values of --window (times such as 250us, 12ms, 1.5s)"):
        formatter.write_dl(list(_WINDOWS), GAP)
