"""The commands that analyze one trace or run: its page, tables, findings, and slow steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Annotated, Final, TypeAlias

import typer

from traceprof import measures
from traceprof.cli import completion
from traceprof.cli.options import (
    AsJson,
    AsMarkdown,
    Force,
    FormattedOutput,
    RowCount,
    Saving,
    TracePaths,
    Wide,
    WindowText,
    check_paths,
    open_traces,
    option,
    with_options,
)
from traceprof.cli.output import (
    Printing,
    check_suffix,
    out,
    print_answer,
    print_cached_answer,
    terminal_options,
)
from traceprof.errors import UsageError

if TYPE_CHECKING:
    from traceprof.render.registry import Answered
    from traceprof.session.options import Opening


@with_options
def analyze(
    opening: Opening,
    trace: TracePaths,
    window: WindowText = None,
    as_json: AsJson = False,
    as_markdown: AsMarkdown = False,
    rows: RowCount = 5,
    is_full: Annotated[bool, option("--full", "Also print all tables.")] = False,
    wide: Wide = False,
    output: FormattedOutput = None,
    force: Force = False,
    *,
    saving: Saving,
) -> None:
    """Report where the step time of a trace or run goes and what would fix it, on one page.

    For the folder of `record --always`, the page shows the step time over time and its changes.
    """
    if len(trace) == 1 and (trace[0] / "live").is_dir():
        from traceprof.recording.live.history import is_history, read_history

        if is_history(trace[0]):
            from traceprof.render.history_text import history_json, history_text

            if output or as_markdown or window or saving.is_wanted:
                raise UsageError(f"{trace[0]}: a history can only be printed, as text or --json")
            history = read_history(trace[0])
            out(history_json(history) if as_json else history_text(history, str(trace[0])))
            return

    def compute_answer() -> Answered:
        from traceprof.session.answer import page

        return page(open_traces(trace, opening, window))

    printing = Printing(
        as_json=as_json,
        as_markdown=as_markdown,
        rows=rows,
        is_full=is_full,
        is_wide=wide,
        output=output,
        force=force,
    )
    print_cached_answer(("page", window), trace, opening, compute_answer, printing)
    if saving.is_wanted:
        saving.keep(open_traces(trace, opening, window), trace)


By: TypeAlias = Annotated[
    str | None,
    option(
        "--by",
        "Grouping of the table. `traceprof show` lists the choices.",
        "WHAT",
        autocompletion=completion.ways,
    ),
]


@with_options
def show(
    opening: Opening,
    noun: Annotated[
        str | None,
        typer.Argument(
            metavar="NOUN",
            help="One or more tables: steps,kernels. Without NOUN, list all tables.",
            autocompletion=completion.nouns,
        ),
    ] = None,
    trace: Annotated[
        list[Path] | None,
        typer.Argument(metavar="TRACE", help="Trace file, or run (its directory or files)."),
    ] = None,
    by: By = None,
    window: WindowText = None,
    *,
    printing: Printing,
) -> None:
    """Print one or more tables about a trace or run.

    With no arguments, list the available tables.
    """
    if noun is None:
        _list_tables()
        return
    names = _analyses_of(noun, by, trace or [])
    if not check_paths(trace or []):
        raise UsageError(f"missing TRACE: run `{_show_command(noun, by)} TRACE`")
    print_answers(names, trace or [], opening, window, printing)


def _list_tables() -> None:
    """Print the nouns of `traceprof show` with their summaries."""
    entries = [
        entry
        for noun, noun_entries in measures.nouns().items()
        if noun != "findings"
        for entry in noun_entries
    ]
    width = max(len(entry.words) for entry in entries)
    line_width = max(terminal_options().line_width, 2 * width)
    margin = " " * (width + 2)
    paragraphs = (
        wrap(f"{entry.words:{width}}  {entry.summary}", line_width, subsequent_indent=margin)
        for entry in entries
    )
    out("".join(f"{line}\n" for lines in paragraphs for line in lines))


def _show_command(noun: str, by: str | None) -> str:
    return f"traceprof show {noun}" + (f" --by {by}" if by else "")


def table_command(noun: str) -> Callable[..., None]:
    """Return a command that prints the table ``noun`` as `traceprof show NOUN` does.

    ``noun`` is also accepted if it is the name of an analysis.
    """

    def command(
        opening: Opening,
        trace: TracePaths,
        by: By = None,
        window: WindowText = None,
        *,
        printing: Printing,
    ) -> None:
        print_answers(measures.names_shown(noun, by), trace, opening, window, printing)

    command.__doc__ = f"Print the table of `{measures.shown_by(noun)}`."
    return with_options(command)


@with_options
def findings(
    opening: Opening, trace: TracePaths, window: WindowText = None, *, printing: Printing
) -> None:
    """List ranked advice: what costs time, the evidence, what to do, and when it does not apply."""
    print_answers(["findings"], trace, opening, window, printing)


def print_answers(
    names: Sequence[str],
    paths: Sequence[Path],
    opening: Opening,
    window: str | None,
    printing: Printing,
) -> None:
    """Run the analyses ``names`` on the trace or run in ``paths``, and print their tables.

    Raises:
        UsageError: several tables were requested as CSV, or the output cannot be written.
    """
    if printing.renderer == "csv" and len(names) > 1:
        raise UsageError(
            "CSV output contains one table: name one, as in `traceprof show kernels TRACE --csv`"
        )

    def compute_answer() -> Answered:
        from traceprof.session.answer import answer

        return answer(open_traces(paths, opening, window), names, strict=True)

    print_cached_answer(("answers", tuple(names), window), paths, opening, compute_answer, printing)


def _analyses_of(nouns: str, by: str | None, paths: list[Path]) -> list[str]:
    """Return the names of the analyses for a comma-separated list of nouns, without repeats.

    Raises:
        UsageError: a file is named where a table is expected, or a noun does not exist.
    """
    known = {*measures.nouns(), *measures.analysis_names(), *measures.FORMER_NAMES}
    names: dict[str, None] = {}
    for noun in filter(None, nouns.split(",")):
        if noun not in known and Path(noun).exists():
            table = next((str(path) for path in paths if str(path) in known), "NOUN")
            raise UsageError(
                f"expected the name of a table before {noun}, which is a file: run "
                f"`{_show_command(table, by)} {noun}`"
            )
        names |= dict.fromkeys(measures.names_shown(noun, by))
    return [*names]


_EXPLAIN_ROWS: Final = 4
_WATERFALL_ROWS: Final = 40


@partial(with_options, rows=_EXPLAIN_ROWS)
def explain(
    opening: Opening,
    trace: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="TRACE",
            help="Trace file, or run (its directory or files).",
            autocompletion=completion.steps,
        ),
    ] = None,
    window: Annotated[
        str | None,
        typer.Argument(
            metavar="STEP",
            help="Step to explain: step:37, slowest (the default), or pattern:3. With --against, "
            "any window.",
        ),
    ] = None,
    against: Annotated[
        str | None,
        option(
            "--against",
            "Compare with this window: step:12, 1s..2s, range:NAME … Default: the steady step "
            "of median length.",
            "WINDOW",
            autocompletion=completion.steps,
        ),
    ] = None,
    ideal: Annotated[
        bool,
        option(
            "--ideal",
            "Compare STEP with the hardware peaks. Without STEP, compare the mean step.",
        ),
    ] = False,
    *,
    printing: Printing,
) -> None:
    """Break down why a step was slower than a typical step, or than the hardware allows.

    The listed causes add up to the difference.
    """
    paths = list(trace or ())
    if window is not None and (not paths or Path(window).exists()):
        paths, window = [*paths, Path(window)], None
    check_paths(paths)
    if not paths:
        raise UsageError("missing TRACE: run `traceprof explain TRACE step:37`")
    window = "slowest" if window is None and not ideal else window
    if ideal and against is not None:
        raise UsageError("--ideal compares a step with the hardware peaks: remove --against")

    def compute_answer() -> Answered:
        from traceprof.comparison.explaining import explain as explain_step
        from traceprof.session.answer import answer

        run = open_traces(paths, opening)
        if ideal:
            return answer(run.within(window), ["ideal"], strict=True)
        return explain_step(run, str(window), against)

    if ideal and printing.rows == _EXPLAIN_ROWS:  # a waterfall needs all of its rows
        printing = replace(printing, rows=_WATERFALL_ROWS)
    print_cached_answer(
        ("explain", window, against, ideal), paths, opening, compute_answer, printing
    )


@partial(with_options, rows=12)
def memory(
    opening: Opening,
    trace: Annotated[
        list[Path],
        typer.Argument(
            metavar="SNAPSHOT", help="File from torch.cuda.memory._dump_snapshot, or a trace."
        ),
    ],
    window: WindowText = None,
    *,
    printing: Printing,
) -> None:
    """Show what used GPU memory at the peak or when memory ran out: by kind, line, and layer.

    For a trace, use the snapshots that `record --memory` saved next to it. If there are none, use
    the memory samples in the trace.
    """
    from traceprof.snapshots.measured import memory as measure_memory
    from traceprof.snapshots.reading import snapshots_of

    snapshots = snapshots_of(trace)
    if snapshots and window is not None:
        raise UsageError("--window does not apply to a memory snapshot: remove it, or name a trace")
    if snapshots:
        print_answer(lambda: measure_memory(snapshots), printing, snapshots)
    else:
        print_answers(["memory"], check_paths(trace), opening, window, printing)


@with_options
def info(
    opening: Opening,
    trace: TracePaths,
    as_json: AsJson = False,
    rows: RowCount = 8,
    output: FormattedOutput = None,
    force: Force = False,
) -> None:
    """List the contents of a trace or run: profiler, machines, ranks, tables.

    traceprof does not read whole databases for this list.
    """
    from traceprof.session.run_cache import RunCache

    printing = Printing(as_json, output=output, force=force)
    if output is not None:
        check_suffix(output, ".json", ".txt")
    printing.check(trace)
    is_file = output is not None
    options = None if printing.renderer == "json" else terminal_options(rows, is_file=is_file)

    def render_text() -> list[str]:
        from traceprof.session.contents import describe

        contents = describe(trace, opening)
        if options is None:
            from traceprof.render.formatting import plain, to_json

            return [to_json(plain(contents.to_dict()))]
        from traceprof.render.text.contents import render_contents

        return [render_contents(contents, options)]

    printing.put(RunCache.of(trace, opening).texts(("info", options), render_text)[0], trace)
