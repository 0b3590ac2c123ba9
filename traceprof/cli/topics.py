"""`traceprof help`: the page of a command, and what no command explains by itself."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Final

import typer

from traceprof.cli.commands import COMMANDS, function_of
from traceprof.cli.help import GAP, PROGRAM, option_told
from traceprof.cli.options import SHARED, with_options
from traceprof.errors import UsageError

_WINDOWS: Final = (
    ("12ms..30ms", "from and to, after the start of the trace; either end may be left out"),
    ("30%..50%", "shares of the whole time"),
    ("@60.1s..@60.4s", "on the trace's own clock, as nsys shows it"),
    ("first:2s, last:2s", "the first, or the last, two seconds"),
    ("step:100..110", "these steps; step:37 is one, step:100.. all from there on"),
    ("pattern:3..5", "iterations of a pattern of kernels, where no steps are known"),
    ("range:forward", "an NVTX range; #2 behind it is the second of its name"),
    ("range:/regex/", "by a regular expression; range:x@NCCL is of that domain"),
    ("step:7 & range:forward", "the second inside the first"),
    ("steady", "the steps without the leading warm-up (the default where steps are known)"),
    ("active", "from the first to the last operation of any device"),
    ("all", "everything"),
)


def _options_of(names: frozenset[str]) -> Iterator[tuple[str, str]]:
    """Yield the options called ``names`` of a command that has them all."""
    command = next(one for one in COMMANDS if one.name == "show")
    app = typer.Typer(add_completion=False)
    app.command()(function_of(command))
    for one in typer.main.get_command(app).params:
        if one.name in names:
            yield option_told(one)


@with_options
def help_command(
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="COMMAND", help="A command; or a topic: options, windows."),
    ] = None,
) -> None:
    """What one command does: `traceprof help timeline`, `help runs add`, `help options`."""
    from traceprof.cli.output import out

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
    found = root
    for word in words:
        below = found.get_command(context, word) if hasattr(found, "get_command") else None
        if below is None:
            raise UsageError(f"no command {' '.join(words)!r}: `traceprof help` lists them")
        found = below
        settings = found.context_settings
        context = root.context_class(found, info_name=word, parent=context, **settings)
    return f"{found.get_help(context)}\n"


def _options_topic(formatter: Any) -> None:
    with formatter.section("Options that every command takes which reads traces"):
        formatter.write_dl(list(_options_of(SHARED)), GAP)
    with formatter.section("Options that every command takes"):
        formatter.write_dl(list(_options_of(frozenset({"quiet", "verbose"}))), GAP)
        formatter.write_dl([("-h, --help", "What the command does, and its options.")], GAP)
    with formatter.section("Options of what prints tables"):
        names = ("output", "force", "as_json", "as_csv", "as_markdown", "rows", "wide", "columns")
        formatter.write_dl(list(_options_of(frozenset(names))), GAP)


def _windows_topic(formatter: Any) -> None:
    with formatter.section("What --window takes (times such as 250us, 12ms, 1.5s)"):
        formatter.write_dl(list(_WINDOWS), GAP)
