"""The commands by name: loaded when they are called, so that ``--help`` costs next to nothing.

What is plain on the command line is read at once: texts, paths and numbers that are just that.

typer reads every value by pydantic, which takes longer to import than an answer from the cache
takes. Whatever is not plain, or is wrong, is left to typer, which says so. Versions of typer that
do not tell what a parameter expects, or read it by themselves, are left alone.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar, Final, get_args, get_origin

import typer
from typer.core import TyperCommand, TyperGroup

from traceprof.cli.options import OLD_NAMES, looks_like_a_path
from traceprof.errors import TraceprofError, UsageError
from traceprof.measures import analysis_names

__all__ = ["COMMANDS", "OLD_NAMES", "Command", "Commands", "looks_like_a_path"]


@dataclass(frozen=True, slots=True)
class Command:
    """One command: ``traceprof.cli.<module>`` has the function that bears the command's name.

    The module is called as the command where it is not named. ``function`` is what the function
    is called where that is not the command's name. Those below a command are in its module.
    """

    name: str
    summary: str
    module: str = ""
    takes_program: bool = False
    function: str = ""
    commands: tuple[Command, ...] = ()


_OF_RUNS: Final[tuple[Command, ...]] = (
    Command("add", "keep what traces, logs, tables and exported runs tell", "runs"),
    Command("list", "the runs that are kept, by label", "runs", function="list_runs"),
    Command("show", "the record of runs: environment, results, notes, side by side", "runs"),
    Command("tag", "give a run labels: network=calico", "runs"),
    Command("rm", "remove runs from the database", "runs"),
    Command("export", "runs as a JSON file, or a table of them as CSV", "runs"),
    Command("import-log", "keep what a training program printed", "runs"),
)


COMMANDS: Final[tuple[Command, ...]] = (
    Command("record", "run a program and leave its trace", "recording", takes_program=True),
    Command(
        "try",
        "apply changes to a program and measure what each saves",
        "trying",
        takes_program=True,
        function="try_",
    ),
    Command("analyze", "one page: where the time went, and what would fix it", "answers"),
    Command("findings", "ranked advice: what costs time, and what to do", "answers"),
    Command("show", "one table: breakdown, steps, kernels … (alone: what there is)", "answers"),
    Command("ops", "every kernel and copy one by one, as nvprof --print-gpu-trace", "rows"),
    Command("explain", "why a step took longer than the typical one, as a sum", "answers"),
    Command(
        "compare", "what changed from one run to another, and is it more than chance", "comparisons"
    ),
    Command("scaling", "throughput by number of GPUs, and where the rest was lost", "comparisons"),
    Command(
        "elastic", "a job whose ranks come and go: restarts, the time lost and why", "comparisons"
    ),
    Command("accuracy", "time, epochs, steps and samples to a target, by run", "comparisons"),
    Command("memory", "what held a GPU's memory: a snapshot of PyTorch, or samples", "answers"),
    Command(
        "nodes", "nodes side by side: independent or synchronised, forward or both", "comparisons"
    ),
    Command("report", "everything on one HTML page, offline", "pages"),
    Command("timeline", "an interactive timeline in one file; PNG and SVG, too", "pages"),
    Command("view", "the same live in a browser, traces of any size side by side", "pages"),
    Command("cut", "a window of a trace as a smaller trace of the same format", "exports"),
    Command("export", "a trace for other tools: Perfetto, TensorBoard, CSV …", "exports"),
    Command("query", "SQL about kernels, copies, ranges, steps …; --schema: the views", "rows"),
    Command(
        "runs", "a database of runs: add, list, show, tag, rm, export", "runs", commands=_OF_RUNS
    ),
    Command("info", "what is in a trace or a run", "answers"),
    Command("recover", "the trace of a recording that was broken off", "recording"),
    Command("mcp", "answer assistants about the traces in a folder", "pages"),
    Command("doctor", "what can be recorded on this machine", "recording"),
)


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
    """Return a value of this kind.

    Raises:
        _NotPlainError: typer may read it, or say what is wrong.
    """
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

    known: ClassVar = COMMANDS
    """The commands in the order of the help."""

    def list_commands(self, _ctx: Any) -> list[str]:
        """Return the names of the commands in the order of the help."""
        return [command.name for command in self.known]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a command."""
        for command in self.known:
            if command.name == cmd_name and command.commands:
                return _group(command)
            if command.name == cmd_name:
                name = cmd_name.replace("-", "_")
                module = import_module(f"traceprof.cli.{command.module or name}")
                function = getattr(module, command.function or name)
                return _made(cmd_name, function, takes_program=command.takes_program)
        return super().get_command(ctx, cmd_name)

    def format_commands(self, _ctx: Any, formatter: Any) -> None:
        """Write the list of commands without loading any."""
        with formatter.section("Commands"):
            formatter.write_dl([(command.name, command.summary) for command in self.known])


class Commands(LoadedLate):
    """The commands and tables; turns errors of the library into one line and a code."""

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a command, or the table of that name as one."""
        found = super().get_command(ctx, cmd_name)
        if found is not None:
            return found
        name = OLD_NAMES.get(cmd_name, cmd_name)
        if name in analysis_names():
            from traceprof.cli.answers import shown_alone

            return _made(cmd_name, shown_alone(name), hidden=True)
        return None

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the command that ``args`` begin with; a trace alone is analysed."""
        if args and self.get_command(ctx, args[0]) is None:
            if not looks_like_a_path(args[0]):
                raise UsageError(_unknown(args[0]))
            args = ["analyze", *args]
        return super().resolve_command(ctx, args)

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


def _made(
    name: str, function: Callable[..., None], *, takes_program: bool = False, hidden: bool = False
) -> Any:
    app = typer.Typer(rich_markup_mode=None, add_completion=False)
    settings = {"help_option_names": ["-h", "--help"]}
    more = {"allow_interspersed_args": False} if takes_program else {}
    app.command(name, cls=PlainCommand, hidden=hidden, context_settings={**settings, **more})(
        function
    )
    made = typer.main.get_command(app)
    made.name = name
    return made


def _group(command: Command) -> Any:
    """Return a command that has others below it."""

    class Below(LoadedLate):
        known = command.commands

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


def _unknown(name: str) -> str:
    """Return what was meant by a name that is no command."""
    known = [command.name for command in COMMANDS]
    close = get_close_matches(name, [*known, *analysis_names()], n=1)
    if not close:
        return f"no command and no trace {name!r}: commands are {', '.join(known)}"
    meant = close[0] if close[0] in known else f"show {close[0]}"
    return f"no command and no trace {name!r}: did you mean `traceprof {meant} TRACE`?"
