"""How a command line finds its command, which is loaded when it is called.

What is plain on the command line is read at once: texts, paths and numbers that are just that.

typer reads every value by pydantic, which takes longer to import than an answer from the cache
takes. Whatever is not plain, or is wrong, is left to typer, which says so. Versions of typer that
do not tell what a parameter expects, or read it by themselves, are left alone.
"""

from __future__ import annotations

import os
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

from traceprof.cli.options import OLD_NAMES, looks_like_a_path
from traceprof.cli.registry import COMMANDS, HELP, Command, meant_by, near_words
from traceprof.errors import TraceprofError, UsageError
from traceprof.measures import analysis_names, nouns

__all__ = ["COMMANDS", "OLD_NAMES", "Command", "Commands", "looks_like_a_path"]


_FORMS: Final[dict[type, re.Pattern[str]]] = {
    int: re.compile(r"(0|-?[1-9][0-9]{0,17})", re.ASCII),
    float: re.compile(r"-?[0-9]{1,15}(\.[0-9]{1,15})?", re.ASCII),
}


class _Plain:
    def parse_args(self: Any, ctx: Any, args: list[str]) -> Any:
        """Read the command line."""
        for one in self.get_params(ctx):
            described = getattr(one, "type_descriptor", None)
            if described is None or described.parameter_info.parser or "process_value" in vars(one):
                continue
            kind = described.annotation
            kind = get_args(kind)[0] if get_origin(kind) is list else kind
            if kind in (bool, str, Path, *_FORMS):
                one.process_value = partial(_processed, one, kind, one.process_value)
        return super().parse_args(ctx, args)  # type: ignore[misc]


class PlainCommand(_Plain, TyperCommand):
    """A command that reads plain values itself."""

    registered: Command
    """Its line in the registry: what the help shows beside its options."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write what it does, with examples; of the options that all take only the names."""
        from traceprof.cli.help import write_command

        write_command(self, self.registered, ctx, formatter)


class PlainGroup(_Plain, TyperGroup):
    """Commands, before whose names plain values are read by themselves."""


class _NotPlainError(Exception):
    pass


def _processed(
    parameter: Any, kind: type, by_typer: Callable[..., Any], context: Any, value: Any
) -> Any:
    """Return what the parameter is given, once its callback saw it."""
    is_many = parameter.multiple or parameter.nargs == -1
    try:
        if value is None:
            found: Any = () if is_many else None
        elif is_many and not isinstance(value, str):
            found = [_read(one, parameter, kind) for one in value]
        else:
            found = _read(None if is_many else value, parameter, kind)
    except _NotPlainError:
        return by_typer(context, value)
    if parameter.required and parameter.value_is_missing(found):
        return by_typer(context, value)
    return found if parameter.callback is None else parameter.callback(context, parameter, found)


def _read(value: Any, parameter: Any, kind: type) -> Any:
    """Return a value of this kind."""
    described = parameter.type_descriptor.parameter_info
    if kind in _FORMS:
        if isinstance(value, str) and _FORMS[kind].fullmatch(value):
            value = kind(value)
        is_plain = type(value) is kind and not described.clamp
        is_plain = is_plain and (described.min is None or value >= described.min)
        is_plain = is_plain and (described.max is None or value <= described.max)
    elif kind is bool:
        is_plain = isinstance(value, bool)
    else:
        # Python gives bytes that are no text as halves of characters.
        is_plain = isinstance(value, str) and not any("\ud800" <= one <= "\udfff" for one in value)
    if kind is Path and is_plain:
        asked = ("exists", "writable", "resolve_path", "allow_dash", "path_type")
        is_any = described.file_okay and described.dir_okay
        is_plain = is_any and not any(getattr(described, name, True) for name in asked)
        value = Path(value)
        is_plain = is_plain and (not value.exists() or os.access(value, os.R_OK))
    if not is_plain:
        raise _NotPlainError
    return value


class LoadedLate(PlainGroup):
    """Commands that are loaded when they are called."""

    known: ClassVar[Sequence[Command]] = COMMANDS
    """The commands in the order of the help."""

    examples: ClassVar[tuple[str, ...]] = ("record -- python train.py", "trace.sqlite")

    def list_commands(self, _ctx: Any) -> list[str]:
        """Return the names of the commands in the order of the help."""
        return [command.name for command in self.known]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a command."""
        for command in self.known:
            if command.name == cmd_name and command.commands:
                return _group(command)
            if command.name == cmd_name:
                return _made(command, function_of(command))
        return super().get_command(ctx, cmd_name)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the list of commands without loading any."""
        from traceprof.cli.help import write_group

        write_group(self, ctx, formatter)


class Commands(LoadedLate):
    """The commands; turns errors of the library into one line and a code."""

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a command, or a noun or a table of that name as one."""
        found = super().get_command(ctx, cmd_name)
        if found is not None:
            return found
        if cmd_name == HELP.name:
            return _made(HELP, function_of(HELP))
        if cmd_name in nouns() or OLD_NAMES.get(cmd_name, cmd_name) in analysis_names():
            from traceprof.cli.answers import shown_alone

            shown = meant_by(cmd_name) or ""
            examples = (f"{shown} trace.sqlite", f"{shown} run/ --window steady --json")
            return _made(Command(cmd_name, "", "", examples), shown_alone(cmd_name))
        return None

    def parse_args(self, ctx: Any, args: list[str]) -> Any:
        """Read the command line; options of a command may stand before it, or before a trace."""
        with _ending_with_codes():  # --help and --version print
            return super().parse_args(ctx, self._command_first(ctx, args))

    def _command_first(self, ctx: Any, args: list[str]) -> list[str]:
        own = {flag for one in self.get_params(ctx) for flag in (*one.opts, *one.secondary_opts)}
        if not args or not args[0].startswith("-") or args[0].partition("=")[0] in own:
            return args
        takes_value = {
            flag: not one.is_flag
            for one in self.get_command(ctx, "analyze").get_params(ctx)
            if one.param_type_name == "option"
            for flag in one.opts
        }
        place = 0
        while place < len(args) and args[place].startswith("-"):
            known = takes_value.get(args[place])
            place += 1 + (self._has_value(ctx, args[place:]) if known is None else known)
        if place >= len(args):
            return ["analyze", *args]
        leading, word, rest = args[:place], args[place], args[place + 1 :]
        if self.get_command(ctx, word) is None and looks_like_a_path(word):
            return ["analyze", *leading, word, *rest]
        return [word, *leading, *rest]

    def _has_value(self, ctx: Any, args: list[str]) -> bool:
        """Return whether a value follows the option of another command that ``args`` begin with."""
        word, after = [*args[1:3], "", ""][:2]
        is_value = "=" not in args[0] and self.get_command(ctx, word) is None
        return is_value and (after.startswith("-") or self.get_command(ctx, after) is not None)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the command that ``args`` begin with, or mean; a trace alone is analyzed."""
        if args and self.get_command(ctx, args[0]) is None:
            args = ["analyze", *args] if looks_like_a_path(args[0]) else _guessed(args)
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """Run a command."""
        with _ending_with_codes():
            return super().invoke(ctx)


@contextmanager
def _ending_with_codes() -> Iterator[None]:
    """Turn an error of the library into a line and its exit code."""
    try:
        yield
    except TraceprofError as error:
        from traceprof.cli.output import error_message

        error_message(str(error))
        raise typer.Exit(error.exit_code) from None
    except BrokenPipeError:  # the reader of standard output left (| head)
        raise typer.Exit(0) from None


def function_of(command: Command) -> Callable[..., None]:
    """Return the function that runs ``command``."""
    name = command.name.replace("-", "_")
    module = import_module(f"traceprof.cli.{command.module or name}")
    found: Callable[..., None] = getattr(module, command.function or name)
    return found


def _made(command: Command, function: Callable[..., None]) -> Any:
    app = typer.Typer(rich_markup_mode=None, add_completion=False)
    settings = {"help_option_names": ["-h", "--help"]}
    more = {"allow_interspersed_args": False} if command.takes_program else {}
    app.command(command.name, cls=PlainCommand, context_settings={**settings, **more})(function)
    made: Any = typer.main.get_command(app)
    made.name, made.registered = command.name, command
    return made


def _group(command: Command) -> Any:
    """Return a command that has others below it."""

    class Below(LoadedLate):
        known = command.commands
        examples = command.examples

    app = typer.Typer(
        cls=Below,
        no_args_is_help=True,
        rich_markup_mode=None,
        add_completion=False,
        help=import_module(f"traceprof.cli.{command.module}").__doc__,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(lambda: None)
    made = typer.main.get_group(app)
    made.name = command.name
    return made


def _guessed(args: list[str]) -> list[str]:
    """Return the command line that is meant by one that begins with no command, and say so."""
    name = args[0]
    meant = near_words().get(name.lower())
    programs = [command.name for command in COMMANDS if command.takes_program]
    if meant is None or meant in programs:
        raise UsageError(_unknown(name, meant))
    from traceprof.cli.output import message, speak

    speak(quiet=not {"-q", "--quiet"}.isdisjoint(args), verbose=False)
    message(f"running `traceprof {meant}` for {name!r}")
    return [*meant.split(), *args[1:]]


def _unknown(name: str, meant: str | None) -> str:
    """Return what was meant by a name that is no command."""
    if meant is not None:
        return f"unknown command {name!r}; did you mean `traceprof {meant} -- COMMAND`?"
    known = [command.name for command in COMMANDS]
    close = get_close_matches(name, [*known, *analysis_names()], n=1)
    if not close:
        return f"unknown command or trace {name!r}; use {', '.join(known)}"
    command = close[0] if close[0] in known else meant_by(close[0])
    return f"unknown command or trace {name!r}; did you mean `traceprof {command} TRACE`?"
