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
        typer.Argument(help="The program and its arguments, after --.", metavar="COMMAND"),
    ],
    change: Annotated[
        list[str] | None,
        option(
            "--change -c",
            "What to try: channels_last,workers=8. Default: what applies to the program.",
            "NAME[=VALUE]",
        ),
    ] = None,
    trace: Annotated[
        Path | None,
        option("--from", "A trace of the program: its advice is tried, best first.", "TRACE"),
    ] = None,
    steps: Annotated[
        int | None,
        option("--steps", "Steps of each run. Default: until it is known to 2 %.", "N", min=2),
    ] = None,
    minutes: Annotated[
        float, option("--minutes", "No run begins that would end later.", "N", min=0)
    ] = 15.0,
    step_from: Annotated[
        str | None, option("--step-from", "What a step is, as for record.", "WHAT")
    ] = None,
    scratch: Annotated[
        bool, option("--scratch", "Run it in a copy of this folder, which goes afterwards.")
    ] = False,
    *,
    printing: Printing,
    saving: Saving,
) -> None:
    """Apply changes to a program, one at a time, and measure what each really saves.

    The program runs again and again, as it is and changed, without a profiler, and is ended after
    its steps.
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
