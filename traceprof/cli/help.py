"""The help of commands: what they do, two examples, their own options.

Options that every command takes are named on each page and explained once: `help options`. All
is written by the formatter of the command line's library, without the types of Python.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

from traceprof.cli.options import SHARED

if TYPE_CHECKING:
    from traceprof.cli.registry import Command

PROGRAM: Final = "traceprof"
GAP: Final = 30
"""Where the words of an option begin at the furthest."""


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
            formatter.write_dl([(_name(one), one.help or "") for one in arguments], GAP)
    shared = SHARED if {one.name for one in options} >= SHARED else frozenset[str]()
    everywhere = {"quiet", "verbose", "help"}
    if own := [one for one in options if one.name not in shared | everywhere]:
        with formatter.section("Options"):
            formatter.write_dl(list(map(describe_option, own)), GAP)
    others = [one for one in options if one.name in shared] if shared else []
    others += [one for one in options if one.name in everywhere]
    where = "Options for reading traces" if shared else "Common options"
    with formatter.section(f"{where} (see `{PROGRAM} help options`)"):
        formatter.write_text("  ".join(_flags(one).replace(", ", "/") for one in others))


def write_group(group: Any, ctx: Any, formatter: Any) -> None:
    """Write the help of commands that have others below them, by what they are for."""
    known: Sequence[Command] = group.known
    is_all = ctx.parent is None
    formatter.write_usage(ctx.command_path, "COMMAND [OPTIONS] …")
    if is_all:
        formatter.write_usage(ctx.command_path, "TRACE       (same as `analyze TRACE`)", "       ")
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
        formatter.write(
            f"Run `{PROGRAM} help COMMAND`, `help options`, or `help windows` for details.\n"
        )
        formatter.write("-V, --version  --install-completion  --show-completion  -h, --help\n")
    else:
        formatter.write(f"Run `{ctx.command_path} COMMAND --help` for details.\n")


def _write_examples(examples: Iterable[str], formatter: Any) -> None:
    if lines := [f"  {PROGRAM} {example}\n" for example in examples]:
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


def describe_option(option: Any) -> tuple[str, str]:
    """Return an option, what its value is called, and its help."""
    value = "" if option.is_flag else f" {option.metavar or option.name.upper()}"
    words, default = option.help or "", option.default
    is_said = "efault" in words or isinstance(default, bool) or not isinstance(default, int | str)
    more = "" if is_said or default == "" else f"  [default: {default}]"
    return f"{_flags(option)}{value}", f"{words}{more}"
