"""The commands that compare runs: two runs, numbers of GPUs, elastic jobs, accuracy, and nodes."""

from __future__ import annotations

from contextlib import suppress
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
    open_traces,
    option,
    with_options,
)
from traceprof.cli.output import Printing, out, print_answer, write_output
from traceprof.cli.parsing import split_lists
from traceprof.errors import TraceprofError, UsageError

if TYPE_CHECKING:
    from traceprof.render.timeline.beside import SideBySideTimeline
    from traceprof.session.options import Opening


def _compare_times(runs: list[str], at: str | None, other: str | None) -> None:
    """Print the comparison of two times of one run.

    Raises:
        UsageError: a time is missing or unknown, or there are several runs.
        TraceError: the run has no history.
    """
    from traceprof.recording.live.history import parse_span, read_history
    from traceprof.render.history_text import compared_text

    if at is None or other is None or len(runs) != 1:
        raise UsageError("comparing times needs one run, --at TIME, and --with TIME")
    history = read_history(Path(runs[0]))
    base, new = parse_span(at, history), parse_span(other, history)
    out(compared_text(history, base, new, (at, other)))


def _timelines_of(
    base: list[str], new: list[str], opening: Opening, window: str | None
) -> SideBySideTimeline | None:
    """Return the timelines of two traces; None for repeats, exported runs, and logs."""
    from traceprof.cli.pages import timelines_of

    runs = [[Path(text) for text in side] for side in (base, new)]
    if len(base) + len(new) > 2 or not all(path.exists() for (path,) in runs):
        return None
    with suppress(TraceprofError):
        return timelines_of(runs, opening, window)
    return None


@partial(with_options, rows=5)
def compare(
    opening: Opening,
    runs: Annotated[
        list[str],
        typer.Argument(
            metavar="BASE NEW",
            autocompletion=completion.runs,
            help="Two traces, runs, exported runs, or names in the database of runs. For several "
            "on each side, put `vs` between them: b1 b2 vs n1 n2.",
        ),
    ],
    max_regression: Annotated[
        list[str] | None,
        option(
            "--max-regression",
            "Exit with code 6 if NEW is worse than BASE by more than LIMIT (7: undecided): 5% (of "
            "throughput, else of step time), or 5% of one measure: step_without_waits_ns=5%.",
            "LIMIT",
        ),
    ] = None,
    page: Annotated[
        Path | None,
        option("--html", "Write an HTML page with charts, and also print.", "FILE", hidden=True),
    ] = None,
    table: Annotated[
        str | None, option("--table", "Table to print with --csv, such as causes.", "TABLE")
    ] = None,
    db: DatabaseFile = None,
    window: WindowText = None,
    at: Annotated[
        str | None,
        option("--at", "Compare times of a `record --always` run: monday 14:00..16:00.", "TIME"),
    ] = None,
    other: Annotated[
        str | None, option("--with", "With --at, the other time, for example tuesday.", "TIME")
    ] = None,
    *,
    printing: Printing,
    full: Annotated[
        bool, option("--full", "Also compare phases, layers, collectives, copies, and ranks.")
    ] = False,
) -> None:
    """Compare two runs, test whether the difference is significant, and show its causes."""
    from traceprof.comparison.comparing import brief, compare_named, failed_limits, split_sides

    if at is not None or other is not None:
        if printing.renderer != "text":
            raise UsageError("the comparison of two times can only be printed as text")
        _compare_times(runs, at, other)
        return
    if table and printing.renderer != "csv":
        raise UsageError("--table needs --csv: add --csv, or remove --table")
    base, new = split_sides(runs)
    inputs = [Path(text) for text in (*base, *new)]
    if page is None and printing.renderer == "html":
        page, printing = printing.output, replace(printing, output=None)
    to_page = replace(printing, output=page)
    to_page.check(inputs)
    printing.check(inputs)
    comparison = compare_named(
        base, new, limits=max_regression or (), opening=opening, window=window, db=db
    )
    is_whole = full or printing.renderer in ("json", "csv")
    shown = replace(printing, tables=(table,) if table else (), cuts_markdown=True)
    print_answer(lambda: comparison if is_whole else brief(comparison), shown, inputs)
    if page is not None:
        from traceprof.render.registry import Options
        from traceprof.render.report.compared import render_compared

        beside = _timelines_of(base, new, opening, window)
        write_output(
            page,
            render_compared(comparison, Options(rows=None), beside),
            force=printing.force,
            inputs=inputs,
            is_page=True,
        )
    failed_limits(comparison)


@partial(with_options, rows=40)
def scaling(
    opening: Opening,
    runs: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN",
            autocompletion=completion.runs,
            help="Traces, runs, tables of rates (CSV), logs, names in the database of runs, or "
            "label:KEY=VALUE.",
        ),
    ],
    base: Annotated[
        float | None,
        option(
            "--base",
            "Number of GPUs (or nodes) that counts as 100% efficient. Default: the smallest "
            "size of each group.",
            "N",
            min=0,
        ),
    ] = None,
    by: Annotated[
        list[str] | None,
        option(
            "--by",
            "Measure of size (gpus or nodes), and labels to compare: network,batch. program and "
            "command are labels of every recorded run.",
            "WHAT",
        ),
    ] = None,
    ignore: Annotated[
        list[str] | None,
        option("--ignore", "Treat runs that differ only in this label as repeats.", "LABEL"),
    ] = None,
    kind: Annotated[
        str,
        option("--scaling", "Assume weak or strong scaling if batch sizes are unknown.", "KIND"),
    ] = "",
    db: DatabaseFile = None,
    *,
    printing: Printing,
) -> None:
    """Compare throughput by number of GPUs: speedup, efficiency, and where efficiency is lost.

    traceprof compares each run with the smallest run that has the same labels and program.
    """
    from traceprof.comparison.runs_named import summaries_of
    from traceprof.comparison.scaling.compared import scaling as compared

    print_answer(
        lambda: compared(
            summaries_of(runs, opening, db),
            base=base,
            by=split_lists(by),
            ignored=split_lists(ignore),
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
            help="Run (the folder of a recording), log, or name in the database of runs. If you "
            "name two, traceprof compares the second with the first.",
        ),
    ],
    db: DatabaseFile = None,
    *,
    printing: Printing,
) -> None:
    """Show the epochs, restarts, lost time, and causes of an elastic job, whose ranks come and go.

    A job and its restarts are one run. Name two runs to compare them epoch by epoch.
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
            help="Logs, traces, runs, names in the database of runs, or label:KEY=VALUE.",
        ),
    ],
    to: Annotated[
        str | None,
        option(
            "--to",
            "Target value: 0.759 or 75.9%. Default: the target recorded in the runs, else the "
            "best value that all runs reach.",
            "VALUE",
        ),
    ] = None,
    metric: Annotated[
        str | None,
        option(
            "--metric",
            "Metric to compare: top1, val_loss … Default: an accuracy, else a loss.",
            "NAME",
        ),
    ] = None,
    is_lower: Annotated[
        bool | None,
        option("--lower/--higher", "Whether lower is better. Default: from the metric's name."),
    ] = None,
    base: Annotated[
        str | None,
        option(
            "--base",
            "Baseline of speedups: a run, or a number of GPUs. Default: the fewest GPUs.",
            "RUN|N",
        ),
    ] = None,
    db: DatabaseFile = None,
    *,
    printing: Printing,
) -> None:
    """Compare time, epochs, steps, and samples that each run needs to reach a target accuracy.

    Speedups are relative to the run with the fewest GPUs.
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
    """Return the target value of ``text``: "0.759", or "75.9%" as 0.759.

    Raises:
        UsageError: ``text`` is not a number.
    """
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
            help="Traces or runs to compare (forward only, independent ranks …), names in the "
            "database of runs, or label:KEY=VALUE.",
            callback=check_paths,
        ),
    ],
    db: DatabaseFile = None,
    *,
    printing: Printing,
    independent: Annotated[
        bool,
        option("--independent", "Average the runs as nodes of one job that do not synchronize."),
    ] = False,
) -> None:
    """Compare iterations across nodes, with independent or synchronized ranks.

    Iterations are forward only, or forward and backward. traceprof excludes warm-up. It averages
    independent ranks, but not synchronized ranks.
    """
    from traceprof.comparison.iterations import iterations_of_run
    from traceprof.comparison.nodes import nodes as compared
    from traceprof.comparison.runs_named import traces_named

    named = traces_named(runs, db)
    each = (iterations_of_run(open_traces(paths, opening), name) for name, paths in named)
    print_answer(
        lambda: compared(list(chain.from_iterable(each)), are_independent=independent),
        printing,
        runs,
    )
