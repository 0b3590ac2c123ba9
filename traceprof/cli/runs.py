"""Manage a database of runs, which keeps the environment and results of runs without their traces.

Refer to a run by its name, its number, or the beginning of its name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from traceprof.cli import completion
from traceprof.cli.options import (
    DatabaseFile,
    Force,
    LabelTexts,
    Output,
    option,
    print_saved,
    with_options,
)
from traceprof.cli.output import Printing, error_message, message, out, print_answer, print_notes
from traceprof.cli.parsing import labels_of
from traceprof.errors import TraceprofError, UsageError
from traceprof.files import write_file

if TYPE_CHECKING:
    from traceprof.model.summary import Summary
    from traceprof.session.options import Opening
    from traceprof.store import Store

RunName: TypeAlias = Annotated[
    str | None, option("--name", "Name of the run. Default: the name of the file.", "NAME")
]
Replace: TypeAlias = Annotated[
    bool, option("--force -f", "Replace the run that has the same name.")
]


@with_options
def add(
    opening: Opening,
    run: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN",
            autocompletion=completion.runs,
            help="Runs to add: traces, directories, patterns, or manifests of ranks, exported "
            "runs, logs, and tables of rates.",
        ),
    ],
    name: RunName = None,
    label: LabelTexts = None,
    force: Replace = False,
    db: DatabaseFile = None,
) -> None:
    """Add runs from traces, logs, tables, and exported runs to the database.

    A name from --name must be unused. If the name of a file is taken, traceprof adds a number.
    """
    from traceprof.comparison.runs_named import keep_file
    from traceprof.store import Store

    store = Store.at(db)
    labels = labels_of(label)
    _save_each(
        store, run, lambda path: keep_file(store, path, opening, name, labels, replaces=force), name
    )


@with_options
def import_log(
    log: Annotated[
        list[Path],
        typer.Argument(metavar="LOG", help="Output of training programs, one file per run."),
    ],
    source: Annotated[
        str | None,
        option("--source", "Tool that wrote the log, if traceprof does not recognize it.", "NAME"),
    ] = None,
    pattern: Annotated[
        list[str] | None,
        option(
            "--pattern",
            "Read numbers from your own log lines with named groups: "
            r"'(?P<step>\d+) loss (?P<loss>[\d.]+)'.",
            "REGEX",
        ),
    ] = None,
    column: Annotated[
        list[str] | None,
        option(
            "--column -c",
            "Map a column of a table by steps to a measure: 'thr=samples_per_s'.",
            "NAME=WHAT",
        ),
    ] = None,
    name: RunName = None,
    label: LabelTexts = None,
    force: Replace = False,
    is_dry: Annotated[
        bool, option("--dry-run", "Show what would be saved, without saving it.")
    ] = False,
    db: DatabaseFile = None,
) -> None:
    """Add runs from the logs of training programs: throughput, accuracy, epochs, events."""
    from traceprof.comparison.runs_named import called, keep_runs
    from traceprof.logs.documents import read_log_or_document
    from traceprof.store import Store

    patterns = {str(number): text for number, text in enumerate(pattern or ())} or None
    labels, columns = labels_of(label), labels_of(column)

    def runs_in(path: Path | str) -> list[Summary]:
        summaries = read_log_or_document(
            Path(path), source=source, patterns=patterns, columns=columns
        )
        return called(summaries, name, labels)

    if is_dry:
        _print_record([run for path in log for run in runs_in(path)])
        return
    store, is_chosen = Store.at(db), name is not None
    _save_each(
        store,
        log,
        lambda path: keep_runs(store, runs_in(path), is_chosen=is_chosen, replaces=force),
        name,
    )


def _print_record(runs: list[Summary]) -> None:
    """Print the record of ``runs``, as `runs show` does."""
    from traceprof.comparison.records import record_of_runs

    print_answer(lambda: record_of_runs(runs), Printing(rows=40))


def _save_each(
    store: Store,
    files: Sequence[Path | str],
    save_file: Callable[[Path | str], Iterable[str]],
    name: str | None,
) -> None:
    """Save the runs in each of ``files``, print a message, and then the errors of unreadable files.

    ``save_file`` saves the runs of one file and returns their names. ``name`` is that of --name.

    Raises:
        UsageError: ``name`` was given for several files.
        TraceprofError: the only file cannot be read.
    """
    from traceprof.model.summary import UNREAD

    if len(files) > 1 and name is not None:
        raise UsageError(f"--name {name} names one run, but there are several: remove --name")
    saved: list[str] = []
    failed: list[TraceprofError] = []
    for file in files:
        try:
            saved += save_file(file)
        except TraceprofError as error:
            if len(files) == 1:
                raise
            failed.append(error)
    if len(saved) == 1:
        print_saved(store, saved[0])
    else:
        message(f"saved {len(saved)} runs in {store.path}; list them with `traceprof runs list`")
    notes = [note for saved_name in saved for note in store.get(saved_name).notes]
    print_notes({str(note): note for note in notes if note.text.startswith(UNREAD)}.values())
    for problem in failed:
        error_message(str(problem))
    if failed:
        raise typer.Exit(failed[-1].exit_code)


@partial(with_options, rows=100)
def list_runs(
    label: Annotated[
        list[str] | None,
        option("--label -l", "List only runs with this label. * matches any text.", "KEY=VALUE"),
    ] = None,
    column: Annotated[
        list[str] | None, option("--column -c", "Show this label in its own column.", "LABEL")
    ] = None,
    is_typed: Annotated[
        bool, option("--as-typed", "Print only the rows of imported tables, verbatim.")
    ] = False,
    measure: Annotated[
        list[str] | None, option("--measure -m", "Also show this measure.", "NAME")
    ] = None,
    sort: Annotated[
        str | None,
        option("--sort -s", "Sort by this column. Default: the order of addition.", "COLUMN"),
    ] = None,
    is_reversed: Annotated[bool, option("--reverse -r", "Reverse the order.")] = False,
    *,
    printing: Printing,
    db: DatabaseFile = None,
) -> None:
    """List the saved runs with their labels and key measures."""
    from traceprof.comparison.records import as_typed, list_of_runs
    from traceprof.store import Store

    store = Store.at(db)
    listing = list_of_runs(
        store,
        labels_of(label),
        measure or (),
        shown=column or (),
        sort=sort,
        is_reversed=is_reversed,
    )
    if is_typed:
        names = listing.results["runs"].table["name"].tolist()
        listing = as_typed([store.get(name) for name in names])
    print_answer(lambda: listing, printing)


@partial(with_options, rows=40)
def show(
    run: Annotated[
        list[str],
        typer.Argument(
            metavar="NAME",
            autocompletion=completion.runs,
            help="One or more runs, or label:KEY=VALUE.",
        ),
    ],
    table: Annotated[
        str | None, option("--table -t", "Show a saved table: steps, kernels …", "TABLE")
    ] = None,
    *,
    printing: Printing,
    db: DatabaseFile = None,
) -> None:
    """Show saved runs side by side: environment, results, labels, notes, and saved tables."""
    from traceprof.comparison.records import record_of_runs, table_of_runs
    from traceprof.comparison.runs_named import summaries_of

    runs = summaries_of(run, db=db)
    record = record_of_runs(runs) if table is None else table_of_runs(runs, table)
    print_answer(lambda: record, printing)


@with_options
def tag(
    run: Annotated[
        str, typer.Argument(metavar="NAME", autocompletion=completion.runs, help="Run to label.")
    ],
    label: Annotated[
        list[str] | None, typer.Argument(metavar="KEY=VALUE", help="Labels: network=calico.")
    ] = None,
    drop: Annotated[list[str] | None, option("--drop -d", "Remove a label.", "KEY")] = None,
    db: DatabaseFile = None,
) -> None:
    """Add labels to a run, or remove them, and print all labels of the run.

    You can list and compare runs by their labels.
    """
    from traceprof.render.escape import plain_text
    from traceprof.store import Store

    labels = Store.at(db).label(run, labels_of(label), drop or ())
    out("".join(f"{plain_text(name)}={plain_text(text)}\n" for name, text in labels.items()))


@with_options
def rm(
    run: Annotated[
        list[str],
        typer.Argument(
            metavar="NAME",
            autocompletion=completion.runs,
            help="Runs to remove, by full name or number.",
        ),
    ],
    db: DatabaseFile = None,
) -> None:
    """Remove runs from the database.

    If one of the names does not exist, traceprof removes no run. It never deletes traces.
    """
    from traceprof.store import Store

    store = Store.at(db)
    for name in store.remove(run):
        message(f"removed {name} from {store.path}")


@with_options
def export(
    run: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="NAME",
            autocompletion=completion.runs,
            help="Runs, or label:KEY=VALUE. Default: all runs.",
        ),
    ] = None,
    output: Output = None,
    table: Annotated[
        str | None, option("--table -t", "Export this table as CSV: steps, kernels …", "TABLE")
    ] = None,
    force: Force = False,
    db: DatabaseFile = None,
) -> None:
    """Export runs as JSON for `traceprof runs add`, or one of their tables as CSV."""
    from traceprof.comparison.records import table_of_runs
    from traceprof.comparison.runs_named import summaries_of
    from traceprof.render.registry import render
    from traceprof.store import Store, exported_runs

    is_csv = output is not None and output.suffix.lower() in (".csv", ".tsv")
    if table is None and is_csv:
        raise UsageError(
            f"{output}: runs are exported as JSON. Use a name that ends with .json, or export a "
            "table as CSV, for example --table measures"
        )
    runs = summaries_of(run or Store.at(db).names(), db=db)
    text = exported_runs(runs) if table is None else render("csv", table_of_runs(runs, table))
    if output is None:
        out(text)
        return
    write_file(output, text, force=force)
    message(f"wrote {output}: {len(runs)} {'run' if len(runs) == 1 else 'runs'}")
