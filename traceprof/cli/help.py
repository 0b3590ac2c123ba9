"""The help of commands: what they do, two examples, their own options, and topics of their own.

Options that every command takes are named on each page and explained once: `help options`. All
is written by the formatter of the command line's library, without the types of Python.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from traceprof.cli.options import SHARED, with_options
from traceprof.errors import UsageError

if TYPE_CHECKING:
    from traceprof.cli.registry import Command

_PROGRAM: Final = "traceprof"
_GAP: Final = 30
"""Where the words of an option begin at the furthest."""

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


def write_command(command: Any, registered: Command, ctx: Any, formatter: Any) -> None:
    """Write the help of one command."""
    params = command.get_params(ctx)
    arguments = [one for one in params if one.param_type_name == "argument" and not one.hidden]
    options = [one for one in params if one.param_type_name == "option" and not one.hidden]
    said = " ".join(map(_operand, arguments))
    dashes = "-- " if registered.takes_program else ""
    formatter.write_usage(ctx.command_path, f"[OPTIONS] {dashes}{said}".strip())
    formatter.write_paragraph()
    with formatter.indentation():
        formatter.write_text(command.help or "")
    _write_examples(registered.examples, formatter)
    if arguments:
        with formatter.section("Arguments"):
            formatter.write_dl([(_name(one), one.help or "") for one in arguments], _GAP)
    shared = SHARED if {one.name for one in options} >= SHARED else frozenset[str]()
    everywhere = {"quiet", "verbose", "help"}
    if own := [one for one in options if one.name not in shared | everywhere]:
        with formatter.section("Options"):
            formatter.write_dl(list(map(_told, own)), _GAP)
    others = [one for one in options if one.name in shared] if shared else []
    others += [one for one in options if one.name in everywhere]
    where = "Options of all that reads traces" if shared else "Options of all commands"
    with formatter.section(f"{where} (`{_PROGRAM} help options` explains them)"):
        formatter.write_text("  ".join(_flags(one).replace(", ", "/") for one in others))


def write_group(group: Any, ctx: Any, formatter: Any) -> None:
    """Write the help of commands that have others below them, by what they are for."""
    known: Sequence[Command] = group.known
    is_all = ctx.parent is None
    formatter.write_usage(ctx.command_path, "COMMAND [OPTIONS] …")
    if is_all:
        formatter.write_usage(ctx.command_path, "TRACE       (the page of `analyze`)", "       ")
    formatter.write_paragraph()
    with formatter.indentation():
        formatter.write_text(group.help or "")
    _write_examples(group.examples, formatter)
    formatter.write_paragraph()
    width = max(len(command.name) for command in known)
    for name in dict.fromkeys(command.group for command in known):
        formatter.write(f"{name or 'Commands'}:\n")
        for command in known:
            if command.group == name:
                formatter.write(f"  {command.name:{width}}  {command.summary}\n")
    formatter.write_paragraph()
    if is_all:
        formatter.write(f"{_PROGRAM} help COMMAND: one of them. help options, windows: these.\n")
        formatter.write("-V, --version  --install-completion  --show-completion  -h, --help\n")
    else:
        formatter.write(f"{ctx.command_path} COMMAND --help: one of them.\n")


def _write_examples(examples: Iterable[str], formatter: Any) -> None:
    if lines := [f"  {_PROGRAM} {example}\n" for example in examples]:
        formatter.write("\nExamples:\n" + "".join(lines))


def _name(argument: Any) -> str:
    return str(argument.metavar or argument.name.upper())


def _operand(argument: Any) -> str:
    """Return an argument as the usage line has it: TRACE..., [NOUN]."""
    name = _name(argument)
    if argument.nargs == -1 and " " not in name:
        name += "..."
    return name if argument.required or name.startswith("[") else f"[{name}]"


def _flags(option: Any) -> str:
    """Return how an option is written: "-o, --output". Former names are left out."""
    short = [flag for flag in option.opts if not flag.startswith("--")]
    long = [flag for flag in option.opts if flag.startswith("--")][:1]
    return ", ".join((*short, *long)) + "".join(f"/{flag}" for flag in option.secondary_opts)


def _told(option: Any) -> tuple[str, str]:
    """Return an option, what its value is called, and its help."""
    value = "" if option.is_flag else f" {option.metavar or option.name.upper()}"
    words, default = option.help or "", option.default
    is_said = "efault" in words or isinstance(default, bool) or not isinstance(default, int | str)
    more = "" if is_said or default == "" else f"  [default: {default}]"
    return f"{_flags(option)}{value}", f"{words}{more}"


def _options_of(names: frozenset[str]) -> Iterator[tuple[str, str]]:
    """Yield the options called ``names`` of a command that has them all."""
    from traceprof.cli.commands import COMMANDS, function_of

    command = next(one for one in COMMANDS if one.name == "show")
    app = typer.Typer(add_completion=False)
    app.command()(function_of(command))
    for one in typer.main.get_command(app).params:
        if one.name in names:
            yield _told(one)


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
    context = root.context_class(root, info_name=_PROGRAM, **root.context_settings)
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
        formatter.write_dl(list(_options_of(SHARED)), _GAP)
    with formatter.section("Options that every command takes"):
        formatter.write_dl(list(_options_of(frozenset({"quiet", "verbose"}))), _GAP)
        formatter.write_dl([("-h, --help", "What the command does, and its options.")], _GAP)
    with formatter.section("Options of what prints tables"):
        names = ("output", "force", "as_json", "as_csv", "as_markdown", "rows", "wide", "columns")
        formatter.write_dl(list(_options_of(frozenset(names))), _GAP)


def _windows_topic(formatter: Any) -> None:
    with formatter.section("What --window takes (times such as 250us, 12ms, 1.5s)"):
        formatter.write_dl(list(_WINDOWS), _GAP)
