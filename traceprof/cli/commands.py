"""Find the command that a command line names, and load its module only when it is called.

This module converts plain values of the command line itself: texts, paths, and numbers in their
usual notation. typer converts every value with pydantic, and importing pydantic takes longer than
printing a cached answer. Values that are not plain, or are invalid, are passed to typer, which
reports the error. Parameters are left unchanged if the installed version of typer does not provide
the expected type, or defines `process_value` itself.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar, Final, get_args, get_origin

import typer
from typer.core import TyperCommand, TyperGroup

from traceprof.cli.options import looks_like_a_path, set_verbosity
from traceprof.cli.output import error_message, message
from traceprof.cli.registry import COMMANDS, HELP, Command, command_meant_by, near_words
from traceprof.errors import TraceprofError, UsageError
from traceprof.measures import FORMER_NAMES, analysis_names, nouns

__all__ = ["COMMANDS", "Command", "Commands"]


_NUMBER_PATTERNS: Final[dict[type, re.Pattern[str]]] = {
    int: re.compile(r"(0|-?[1-9][0-9]{0,17})", re.ASCII),
    float: re.compile(r"-?[0-9]{1,15}(\.[0-9]{1,15})?", re.ASCII),
}


class _PlainValues:
    """A mixin for click commands that converts plain values without pydantic."""

    def parse_args(self: Any, ctx: Any, args: list[str]) -> Any:
        """Parse the command line after replacing the conversion of plain parameters."""
        for param in self.get_params(ctx):
            descriptor = getattr(param, "type_descriptor", None)
            if (
                descriptor is None
                or descriptor.parameter_info.parser
                or "process_value" in vars(param)
            ):
                continue
            kind = descriptor.annotation
            kind = get_args(kind)[0] if get_origin(kind) is list else kind
            if kind in (bool, str, Path, *_NUMBER_PATTERNS):
                param.process_value = partial(_process_value, param, kind, param.process_value)
        return super().parse_args(ctx, args)  # type: ignore[misc]


class PlainCommand(_PlainValues, TyperCommand):
    """A command that converts plain values itself."""

    registered: Command
    """The registry entry of the command. The help shows its examples."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help of the command. Options of every command are listed by name only."""
        from traceprof.cli.help import write_command

        write_command(self, self.registered, ctx, formatter)


class _NotPlainError(Exception):
    """A value is not plain: typer must convert it."""


def _process_value(
    parameter: Any, kind: type, typer_process_value: Callable[..., Any], context: Any, value: Any
) -> Any:
    """Return the value of a parameter, converted to ``kind`` and passed through its callback.

    ``typer_process_value`` converts values that are not plain.
    """
    is_many = parameter.multiple or parameter.nargs == -1
    try:
        if value is None:
            converted: Any = () if is_many else None
        elif is_many and not isinstance(value, str):
            converted = [_convert_plain(item, parameter, kind) for item in value]
        else:
            converted = _convert_plain(None if is_many else value, parameter, kind)
    except _NotPlainError:
        return typer_process_value(context, value)
    if parameter.required and parameter.value_is_missing(converted):
        return typer_process_value(context, value)
    callback = parameter.callback
    return converted if callback is None else callback(context, parameter, converted)


def _convert_plain(value: Any, parameter: Any, kind: type) -> Any:
    """Return ``value`` converted to ``kind``: a number, bool, str, or Path.

    Raises:
        _NotPlainError: typer must convert or reject the value.
    """
    info = parameter.type_descriptor.parameter_info
    if kind in _NUMBER_PATTERNS:
        if isinstance(value, str) and _NUMBER_PATTERNS[kind].fullmatch(value):
            value = kind(value)
        is_plain = (
            type(value) is kind
            and not info.clamp
            and (info.min is None or value >= info.min)
            and (info.max is None or value <= info.max)
        )
    elif kind is bool:
        is_plain = isinstance(value, bool)
    else:
        # Python represents undecodable bytes of arguments as lone surrogates.
        is_plain = isinstance(value, str) and not any(
            "\ud800" <= letter <= "\udfff" for letter in value
        )
    if kind is Path and is_plain:
        path_checks = ("exists", "writable", "resolve_path", "allow_dash", "path_type")
        allows_any_file = info.file_okay and info.dir_okay
        is_plain = allows_any_file and not any(getattr(info, name, True) for name in path_checks)
        if not value:
            raise UsageError("a path is empty; is a variable of the shell not set?")
        value = Path(value)
    if not is_plain:
        raise _NotPlainError
    return value


class LazyGroup(_PlainValues, TyperGroup):
    """A command group that imports the module of a command when the command is called.

    It converts plain values of the options before the command name itself.
    """

    known: ClassVar[Sequence[Command]] = COMMANDS
    """The commands of the group, in the order of the help."""

    examples: ClassVar[tuple[str, ...]] = ("record -- python train.py", "trace.sqlite")

    def list_commands(self, _ctx: Any) -> list[str]:
        """Return the names of the commands in the order of the help."""
        return [command.name for command in self.known]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return the command called ``cmd_name``, or None."""
        for command in self.known:
            if command.name == cmd_name and command.commands:
                return _make_group(command)
            if command.name == cmd_name:
                return _make_command(command, function_of(command))
        return super().get_command(ctx, cmd_name)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the list of commands without importing their modules."""
        from traceprof.cli.help import write_group

        write_group(self, ctx, formatter)


class Commands(LazyGroup):
    """The root command group. It prints an error as one line and exits with the error's code."""

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return the command ``cmd_name``, or a command that shows the table of this name."""
        command = super().get_command(ctx, cmd_name)
        if command is not None:
            return command
        if cmd_name == HELP.name:
            return _make_command(HELP, function_of(HELP))
        # Every table is also a command, which the help does not list.
        if cmd_name in nouns() or FORMER_NAMES.get(cmd_name, cmd_name) in analysis_names():
            from traceprof.cli.answers import table_command

            shown = command_meant_by(cmd_name) or ""
            examples = (f"{shown} trace.sqlite", f"{shown} run/ --window steady --json")
            return _make_command(Command(cmd_name, "", "", examples), table_command(cmd_name))
        return None

    def parse_args(self, ctx: Any, args: list[str]) -> Any:
        """Parse the command line. Options of a command may precede its name or the trace."""
        with _errors_as_exit_codes():  # --help and --version print
            return super().parse_args(ctx, self._command_first(ctx, args))

    def _command_first(self, ctx: Any, args: list[str]) -> list[str]:
        """Return ``args`` with the command name moved before its options.

        Arguments that name no command are arguments of `analyze`.
        """
        group_flags = {
            flag for param in self.get_params(ctx) for flag in (*param.opts, *param.secondary_opts)
        }
        if not args or not args[0].startswith("-") or args[0].partition("=")[0] in group_flags:
            return args
        takes_value = {
            flag: not param.is_flag
            for param in self.get_command(ctx, "analyze").get_params(ctx)
            if param.param_type_name == "option"
            for flag in param.opts
        }
        position = 0
        while position < len(args) and args[position].startswith("-"):
            known = takes_value.get(args[position])
            position += 1 + (self._has_value(ctx, args[position:]) if known is None else known)
        if position >= len(args):
            return ["analyze", *args]
        leading, word, rest = args[:position], args[position], args[position + 1 :]
        if self.get_command(ctx, word) is None and looks_like_a_path(word):
            return ["analyze", *leading, word, *rest]
        return [word, *leading, *rest]

    def _has_value(self, ctx: Any, args: list[str]) -> bool:
        """Return whether the option ``args[0]``, which `analyze` does not have, takes a value.

        The option takes ``args[1]`` as its value if a command or an option follows in ``args[2]``.
        """
        word, next_word = [*args[1:3], "", ""][:2]
        is_value = "=" not in args[0] and self.get_command(ctx, word) is None
        return is_value and (
            next_word.startswith("-") or self.get_command(ctx, next_word) is not None
        )

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the command that ``args`` begin with.

        If ``args`` begin with a trace, the command is `analyze`. A word of another tool is replaced
        by the corresponding command.
        """
        if args and self.get_command(ctx, args[0]) is None:
            args = ["analyze", *args] if looks_like_a_path(args[0]) else _replace_near_word(args)
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """Run the command."""
        with _errors_as_exit_codes():
            return super().invoke(ctx)


@contextmanager
def _errors_as_exit_codes() -> Iterator[None]:
    """Print an error of the library as one line, and exit with its exit code."""
    try:
        yield
    except TraceprofError as error:
        error_message(str(error))
        raise typer.Exit(error.exit_code) from None
    except _CommandLineError as error:
        if type(error).__name__ == "NoArgsIsHelpError":
            raise
        error_message(_describe_command_line_error(error))
        raise typer.Exit(UsageError.exit_code) from None
    except BrokenPipeError:  # the reader of standard output ended (`| head`)
        raise typer.Exit(0) from None


_CommandLineError: Any = typer.BadParameter.__mro__[1]
"""The class of typer's errors about a command line; typer does not export it."""


def _describe_command_line_error(error: Any) -> str:
    """Return typer's message about a command line as one line, and where its options are listed.

    The help of a missing option says which values it can have.
    """
    text = error.format_message().rstrip(".")
    meaning = getattr(getattr(error, "param", None), "help", None)
    if meaning and text.startswith("Missing "):
        text += f" ({meaning.rstrip('.')})"
    where = f"; see `{error.ctx.command_path} -h`" if error.ctx else ""
    return f"{text[0].lower()}{text[1:]}{where}"


def function_of(command: Command) -> Callable[..., None]:
    """Import the module of ``command``, and return the function that runs it."""
    name = command.name.replace("-", "_")
    module = import_module(f"traceprof.cli.{command.module or name}")
    function: Callable[..., None] = getattr(module, command.function or name)
    return function


def _make_command(command: Command, function: Callable[..., None]) -> Any:
    """Return the click command that runs ``function``."""
    app = typer.Typer(rich_markup_mode=None, add_completion=False)
    settings: dict[str, Any] = {"help_option_names": ["-h", "--help"]}
    if command.takes_program:
        settings["allow_interspersed_args"] = False
    app.command(command.name, cls=PlainCommand, context_settings=settings)(function)
    loaded: Any = typer.main.get_command(app)
    loaded.name, loaded.registered = command.name, command
    return loaded


def _make_group(command: Command) -> Any:
    """Return the click group of a command that has subcommands."""

    class Subcommands(LazyGroup):
        known = command.commands
        examples = command.examples

    app = typer.Typer(
        cls=Subcommands,
        no_args_is_help=True,
        rich_markup_mode=None,
        add_completion=False,
        help=import_module(f"traceprof.cli.{command.module}").__doc__,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(lambda: None)
    group = typer.main.get_group(app)
    group.name = command.name
    return group


def _replace_near_word(args: list[str]) -> list[str]:
    """Return ``args`` with a word of another tool replaced by our command, and print a message.

    Raises:
        UsageError: no command corresponds to the word, or the command would run a program.
    """
    name = args[0]
    meant = near_words().get(name.lower())
    programs = [command.name for command in COMMANDS if command.takes_program]
    if meant is None or meant in programs:
        raise UsageError(_unknown_command_message(name, meant))

    set_verbosity(quiet=not {"-q", "--quiet"}.isdisjoint(args), verbose=False)
    message(f"running `traceprof {meant}` for {name!r}")
    return [*meant.split(), *args[1:]]


def _unknown_command_message(name: str, meant: str | None) -> str:
    """Return the error message for an unknown command, with the closest command or table."""
    if meant is not None:
        return f"unknown command {name!r}; did you mean `traceprof {meant} -- COMMAND`?"
    known = [command.name for command in COMMANDS]
    close = get_close_matches(name, [*known, *analysis_names()], n=1)
    if not close:
        return f"unknown command or trace {name!r}; use {', '.join(known)}"
    command = close[0] if close[0] in known else command_meant_by(close[0])
    return f"unknown command or trace {name!r}; did you mean `traceprof {command} TRACE`?"
