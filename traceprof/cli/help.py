"""Write the help of commands: description, two examples, arguments, and options.

Each page only names the options that many commands share. `traceprof help options` explains them.
click's formatter writes all help texts, without Python types.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from traceprof.cli.options import SHARED
from traceprof.cli.registry import Command

PROGRAM: Final = "traceprof"
GAP: Final = 30
"""The largest column, in characters, in which help texts of options start."""


def write_command(command: Any, registered: Command, ctx: Any, formatter: Any) -> None:
    """Write the help of one command."""
    params = command.get_params(ctx)
    arguments = [
        param for param in params if param.param_type_name == "argument" and not param.hidden
    ]
    options = [param for param in params if param.param_type_name == "option" and not param.hidden]
    operands = " ".join(map(_usage_operand, arguments))
    dashes = "-- " if registered.takes_program else ""
    formatter.write_usage(ctx.command_path, f"[OPTIONS] {dashes}{operands}".strip())
    formatter.write_paragraph()
    with formatter.indentation():
        formatter.write_text(command.help or "")
    _write_examples(registered.examples, formatter)
    if arguments:
        with formatter.section("Arguments"):
            formatter.write_dl(
                [(_argument_name(param), param.help or "") for param in arguments], GAP
            )
    shared = SHARED if {param.name for param in options} >= SHARED else frozenset[str]()
    common = {"quiet", "verbose", "help"}
    if command_options := [param for param in options if param.name not in shared | common]:
        with formatter.section("Options"):
            formatter.write_dl(list(map(describe_option, command_options)), GAP)
    brief_options = [param for param in options if param.name in shared] if shared else []
    brief_options += [param for param in options if param.name in common]
    heading = "Options for reading traces" if shared else "Common options"
    with formatter.section(f"{heading} (see `{PROGRAM} help options`)"):
        formatter.write_text("  ".join(_flags(param).replace(", ", "/") for param in brief_options))


def write_group(group: Any, ctx: Any, formatter: Any) -> None:
    """Write the help of a command group: its commands by purpose, with their summaries."""
    known: Sequence[Command] = group.known
    is_root = ctx.parent is None
    formatter.write_usage(ctx.command_path, "COMMAND [OPTIONS] …")
    if is_root:
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
    if is_root:
        formatter.write(
            f"Run `{PROGRAM} help COMMAND`, `help options`, or `help windows` for details.\n"
        )
        formatter.write("-V, --version  --install-completion  --show-completion  -h, --help\n")
    else:
        formatter.write(f"Run `{ctx.command_path} COMMAND --help` for details.\n")


def _write_examples(examples: Iterable[str], formatter: Any) -> None:
    if lines := [f"  {PROGRAM} {example}\n" for example in examples]:
        formatter.write("\nExamples:\n" + "".join(lines))


def _argument_name(argument: Any) -> str:
    return str(argument.metavar or argument.name.upper())


def _usage_operand(argument: Any) -> str:
    """Return an argument as the usage line shows it: TRACE..., [NOUN]."""
    name = _argument_name(argument)
    if argument.nargs == -1 and " " not in name:
        name += "..."
    return name if argument.required or name.startswith("[") else f"[{name}]"


def _flags(option: Any) -> str:
    """Return the flags of an option, "-o, --output", without its former names."""
    short = [flag for flag in option.opts if not flag.startswith("--")]
    long = [flag for flag in option.opts if flag.startswith("--")][:1]
    return ", ".join((*short, *long)) + "".join(f"/{flag}" for flag in option.secondary_opts)


def describe_option(option: Any) -> tuple[str, str]:
    """Return an option with the name of its value, and its help text with the default."""
    value = "" if option.is_flag else f" {option.metavar or option.name.upper()}"
    help_text, default = option.help or "", option.default
    is_default_described = (
        "efault" in help_text or isinstance(default, bool) or not isinstance(default, int | str)
    )
    default_text = "" if is_default_described or default == "" else f"  [default: {default}]"
    return f"{_flags(option)}{value}", f"{help_text}{default_text}"
