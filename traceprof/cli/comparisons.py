"""The commands that hold runs against one another: two of them, or sizes, jobs, targets, nodes."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from traceprof.cli import completion
from traceprof.cli.options import (
    DatabaseFile,
    WindowText,
    check_paths,
    each_of,
    option,
    with_options,
)
from traceprof.cli.output import Printing, print_answer, write_page
from traceprof.errors import UsageError

if TYPE_CHECKING:
    from traceprof.session.options import Opening


@partial(with_options, rows=5)
def compare(
    opening: Opening,
    runs: Annotated[
        list[str],
        typer.Argument(
            metavar="BASE NEW",
            autocompletion=completion.runs,
            help="Traces, runs, exported runs, or names in the database; several of each with "
            "`vs` between them: b1 b2 vs n1 n2.",
        ),
    ],
    max_regression: Annotated[
        list[str] | None,
        option(
            "--max-regression",
            "Exit with 6 if it gets worse by more: 5% (of throughput, else of the time of a "
            "step), or of a measure: step_own_ns=5%.",
            "LIMIT",
        ),
    ] = None,
    page: Annotated[
        Path | None, option("--html", "Write a page with charts, and print.", "FILE", hidden=True)
    ] = None,
    table: Annotated[
        str | None, option("--table", "The table that --csv prints, such as causes.", "TABLE")
    ] = None,
    db: Annotated[Path | None, option("--db", "The database that knows the runs.", "FILE")] = None,
    window: WindowText = None,
    *,
    printing: Printing,
    full: Annotated[
        bool, option("--full", "Phases, layers, collectives, copies, ranks, too.")
    ] = False,
) -> None:
    """What changed from one run to another, and is it more than chance: faster, slower, and why."""
    from traceprof.comparison.comparing import brief, compare_named, failed_limits, sides_named

    if table and printing.renderer != "csv":
        raise UsageError("--table says which table --csv prints")
    base, new = sides_named(runs)
    inputs = [Path(text) for text in (*base, *new)]
    if page is None and printing.renderer == "html":
        page, printing = printing.output, replace(printing, output=None)
    to_page = replace(printing, output=page)
    to_page.check(inputs)
    printing.check(inputs)
    found = compare_named(
        base, new, limits=max_regression or (), opening=opening, window=window, db=db
    )
    is_whole = full or printing.renderer in ("json", "csv")
    shown = replace(printing, tables=(table,) if table else (), cuts_markdown=True)
    print_answer(lambda: found if is_whole else brief(found), shown, inputs)
    if page is not None:
        from traceprof.render.registry import Options
        from traceprof.render.report.compared import render_compared

        write_page(
            page, render_compared(found, Options(rows=None)), force=printing.force, inputs=inputs
        )
    failed_limits(found)


@partial(with_options, rows=40)
def scaling(
    opening: Opening,
    runs: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN",
            autocompletion=completion.runs,
            help="Traces, runs, tables of rates (CSV), logs, names in the database, "
            "label:KEY=VALUE.",
        ),
    ],
    base: Annotated[
        float | None,
        option(
            "--base",
            "The size that is held for ideal; default: the smallest of each group.",
            "N",
            min=0,
        ),
    ] = None,
    by: Annotated[
        list[str] | None,
        option(
            "--by", "The size: gpus or nodes; and labels to compare (network, batch …).", "WHAT"
        ),
    ] = None,
    ignore: Annotated[
        list[str] | None,
        option("--ignore", "Runs that differ in this label alone are repeats.", "LABEL"),
    ] = None,
    kind: Annotated[
        str, option("--scaling", "weak or strong, where batches are not known.", "KIND")
    ] = "",
    db: DatabaseFile = None,
    *,
    printing: Printing,
) -> None:
    """Throughput by number of devices: speed-up, efficiency, and where the rest was lost.

    Runs are held against the smallest one that has the same labels.
    """
    from traceprof.comparison.runs_named import summaries_of
    from traceprof.comparison.scaling.compared import scaling as compared

    print_answer(
        lambda: compared(
            summaries_of(runs, opening, db),
            base=base,
            by=each_of(by),
            ignored=each_of(ignore),
            assumed=kind,
        ),
        printing,
        runs,
    )


@partial(with_options, rows=60)
def elastic(
    opening: Opening,
    runs: Annotated[
        list[str],
        typer.Argument(
            metavar="[BASE] RUN",
            autocompletion=completion.runs,
            help="A run (the folder of a recording), a log, or a name in the database. Of two the "
            "first is what it is held against.",
        ),
    ],
    db: Annotated[Path | None, option("--db", "The database of runs.", "FILE")] = None,
    *,
    printing: Printing,
) -> None:
    """A job whose ranks come and go: epochs, restarts, the time lost and why.

    A job that was restarted is one run; two stand beside one another, epoch by epoch.
    """
    from traceprof.comparison.elastic import elastic as compared
    from traceprof.comparison.runs_named import summaries_of

    print_answer(lambda: compared(summaries_of(runs, opening, db)), printing, runs)


@partial(with_options, rows=20)
def accuracy(
    opening: Opening,
    runs: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN",
            autocompletion=completion.runs,
            help="Logs, traces, runs, names in the database, label:KEY=VALUE.",
        ),
    ],
    to: Annotated[
        str | None,
        option(
            "--to",
            "The target: 0.759, 75.9%. Default: that of the runs, else what all reach.",
            "VALUE",
        ),
    ] = None,
    metric: Annotated[
        str | None,
        option("--metric", "top1, val_loss … Default: an accuracy, else a loss.", "NAME"),
    ] = None,
    is_lower: Annotated[
        bool | None, option("--lower/--higher", "Which way is better. Default: by the name.")
    ] = None,
    base: Annotated[
        str | None,
        option(
            "--base",
            "What speed-ups are against: a run, or a number of devices. Default: the fewest.",
            "RUN|N",
        ),
    ] = None,
    db: DatabaseFile = None,
    *,
    printing: Printing,
) -> None:
    """Time to accuracy: time, epochs, steps and samples to a target, and what more devices gave.

    Speed-ups are against the fewest devices.
    """
    from traceprof.comparison.accuracy import accuracy as compared
    from traceprof.comparison.runs_named import summaries_of

    print_answer(
        lambda: compared(
            summaries_of(runs, opening, db),
            target=_target(to),
            metric=metric,
            is_lower=is_lower,
            base=base,
        ),
        printing,
        runs,
    )


def _target(text: str | None) -> float | None:
    if text is None:
        return None
    try:
        value = float(text.strip().removesuffix("%"))
    except ValueError:
        raise UsageError(f"--to {text}: expected a number, such as 0.759 or 75.9%") from None
    return value / 100 if text.strip().endswith("%") else value


@partial(with_options, rows=60)
def nodes(
    opening: Opening,
    runs: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN",
            autocompletion=completion.runs,
            help="Traces or runs, each by itself: forward only, independent ranks …",
            callback=check_paths,
        ),
    ],
    *,
    printing: Printing,
) -> None:
    """Rounds of each node side by side: independent or synchronised, forward or with backward.

    Warm-up is left out. Independent ranks are averaged, synchronised ones are not.
    """
    from traceprof.comparison.iterations import iterations_of_run
    from traceprof.comparison.nodes import nodes as compared
    from traceprof.comparison.runs_named import name_of
    from traceprof.session.run import open_run

    each = (iterations_of_run(open_run([path], opening), name_of(path)) for path in runs)
    print_answer(lambda: compared(list(chain.from_iterable(each))), printing, runs)
