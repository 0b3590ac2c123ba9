"""The command that tries changes in a program."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from traceprof.cli.options import Saving, option, say_kept, with_options
from traceprof.cli.output import Printing, message, print_answer

if TYPE_CHECKING:
    from traceprof.render.registry import Answered


@partial(with_options, rows=40)
def try_(
    command: Annotated[
        list[str],
        typer.Argument(help="Program to run, with its arguments, after --.", metavar="COMMAND"),
    ],
    change: Annotated[
        list[str] | None,
        option(
            "--change -c",
            "Try these changes: channels_last,workers=8. Default: all changes that apply.",
            "NAME[=VALUE]",
        ),
    ] = None,
    trace: Annotated[
        Path | None,
        option("--from", "Try the advice from this trace of the program, best first.", "TRACE"),
    ] = None,
    steps: Annotated[
        int | None,
        option("--steps", "Measure N steps per run. Default: enough for 2% precision.", "N", min=2),
    ] = None,
    minutes: Annotated[
        float,
        option(
            "--minutes",
            "Time limit in minutes. No new run starts if it would exceed the limit.",
            "N",
            min=0,
        ),
    ] = 15.0,
    step_from: Annotated[
        str | None,
        option(
            "--step-from",
            "Define a step by: optimizer (or optimizer#2), backward, loader, every-forward, or "
            "range:NAME.",
            "WHAT",
        ),
    ] = None,
    scratch: Annotated[
        bool, option("--scratch", "Run in a temporary copy of the current folder.")
    ] = False,
    *,
    printing: Printing,
    saving: Saving,
) -> None:
    """Apply changes to a program, one at a time, and measure how much each one saves.

    traceprof runs the program repeatedly without a profiler, unchanged and with one change
    applied, and stops each run after its steps.
    """
    from traceprof.recording.request import parse_step_from
    from traceprof.trying.answer import TryRequest, try_changes
    from traceprof.trying.experiment import Wanted

    request = TryRequest(
        command,
        tuple(change or ()),
        trace,
        Wanted(steps, minutes, message),
        parse_step_from(step_from),
        scratch,
    )
    found = []

    def answered() -> Answered:
        compared, experiment = try_changes(request)
        found.append(experiment)
        return compared

    print_answer(answered, printing, [] if trace is None else [trace])
    if saving.is_wanted:
        from traceprof.store import Store
        from traceprof.trying.kept import summaries_of

        name = saving.name or "try"
        store = Store.at(saving.db)
        for run in summaries_of(found[0], name, saving.labels):
            say_kept(store, store.add(run, numbered=True))
