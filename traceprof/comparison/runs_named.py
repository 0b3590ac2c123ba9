"""What the user means by the runs that he names: traces, files, names in the database.

And how files get into that database.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Final

from traceprof.errors import StoreError, TraceError, TraceprofError, UsageError
from traceprof.files import is_there
from traceprof.formats import recognised
from traceprof.formats.runs.files import is_run
from traceprof.formats.shared.files import examine, is_packed_database
from traceprof.model.summary import Summary
from traceprof.session.kept_answers import KeptAnswers
from traceprof.session.options import Opening
from traceprof.session.run import Run, open_run
from traceprof.store import Store, as_name, is_exported, read_exported

_READERS: Final = {
    "table of rates": ("traceprof.logs.rates", "read_table"),
    "log": ("traceprof.logs", "read_log"),
}
"""What reads text: loaded only for it."""
_LABEL: Final = "label:"
_NEXT_LABEL: Final = re.compile(r",(?=[^,=]+=)")  # a comma may stand in a value
_WILDCARDS: Final = re.compile(r"[*?\[]")
_SUFFIXES: Final = (
    *(".gz", ".json", ".sqlite", ".sqlite3", ".db", ".nvprof", ".nvvp", ".nsys-rep", ".qdrep"),
    *(".qdstrm", ".trace", ".pt", ".log", ".txt", ".csv", ".tsv", ".out"),
)


def summaries_of(
    texts: Sequence[str | Path],
    opening: Opening | None = None,
    db: Path | str | None = None,
    window: str | None = None,
) -> list[Summary]:
    """Return the runs that ``texts`` mean, in their order.

    Each text is a trace or a run (file, directory, pattern, manifest: it is summarised, seen
    through its default window), a file of ``traceprof runs export``, a table of rates, a training
    log, the name of a run in the database (its number or the beginning of its name, too), or
    ``label:key=value[,key=value …]`` for all runs of the database with these labels. What is there
    as a file is taken as a file, unless nothing can be read from it and the database knows it.

    Args:
        texts: what the user wrote.
        opening: how traces are opened.
        db: the database of runs; None: TRACEPROF_RUNS, else the user's own.
        window: what traces are seen through; what is kept already stays as it is.

    Raises:
        TraceprofError: one is none of these; the message says what was tried.
    """
    store = Store.at(db)
    return [run for text in texts for run in _runs_of(text, opening or Opening(), store, window)]


def name_of(path: Path | str) -> str:
    """Return what a run in ``path`` is called where nobody says: its name without suffixes."""
    path = Path(path)
    name = path.name or path.absolute().name
    while (stem := Path(name)).suffix.lower() in _SUFFIXES and stem.stem:
        name = stem.stem
    return _WILDCARDS.sub("", name).strip("-_. ") or "run"


def summaries_in(
    path: Path, opening: Opening | None = None, window: str | None = None
) -> list[Summary]:
    """Return the runs in files: of a trace or of the traces of a run one, else what they tell.

    Raises:
        TraceprofError: it is nothing that can be read; the message says what was tried.
    """
    if _is_trace(path):
        return [summary_of(open_run([path], opening).within(window), name_of(path), {})]
    if is_exported(path):
        return read_exported(path)
    return _of_text(path)


def summary_of(run: Run, name: str, labels: Mapping[str, str]) -> Summary:
    """Return what is kept of ``run``, about the window that it is seen through."""
    kept = KeptAnswers(run.cache, run.window)
    what = ("summary", name, *sorted(labels.items()))
    known: Summary | None = kept.value(what)
    if known is not None:
        return known
    summarise = import_module("traceprof.comparison.summary.summarise").summarise
    found: Summary = summarise(run, name=name, labels=labels)
    kept.keep({what: found})
    return found


def _runs_of(text: str | Path, opening: Opening, store: Store, window: str | None) -> list[Summary]:
    named = str(text)
    if named.startswith(_LABEL):
        return _labelled(named, store)
    is_path = isinstance(text, Path) or is_there(named) or _WILDCARDS.search(named)
    if not is_path:
        return [store.get(named)]
    try:
        return summaries_in(Path(named), opening, window)
    except TraceprofError:
        if named in store.names():
            return [store.get(named)]
        raise


def _labelled(text: str, store: Store) -> list[Summary]:
    labels = {}
    for part in _NEXT_LABEL.split(text.removeprefix(_LABEL)):
        name, equals, value = part.partition("=")
        if not (name and equals):
            raise UsageError(f"{text}: expected label:KEY=VALUE")
        labels[name] = value
    names = store.names(labels)
    if not names:
        raise StoreError(f"{text}: no run in {store.path} has this label")
    return [store.get(name) for name in names]


def _is_trace(path: Path) -> bool:
    if is_run([path]):
        return True
    found = examine(path)
    return bool(found.tables) or recognised(found) is not None or is_packed_database(found)


def _of_text(path: Path) -> list[Summary]:
    """Return the runs that a table of rates or a log tells of."""
    tried = []
    for what, (module, function) in _READERS.items():
        try:
            runs: list[Summary] = getattr(import_module(module), function)(path)
        except TraceprofError as error:
            tried.append(f"as a {what}: {str(error).removeprefix(f'{path}: ')}")
            continue
        if runs:
            return runs
        tried.append(f"as a {what}: contains no data")
    raise TraceError(f"{path}: not a trace and not exported runs; {'; '.join(tried)}")


def keep_file(
    store: Store,
    path: str | Path,
    opening: Opening | None,
    name: str | None,
    labels: Mapping[str, str],
    *,
    replaces: bool = False,
) -> Sequence[str]:
    """Keep the run in ``path``, or the runs that it tells of, and return their names.

    A name that was chosen (``name``, or that of an exported run) must be free, unless it
    ``replaces``; one that follows from the file gets a number.

    Raises:
        TraceprofError: it cannot be read, a name is taken, or the database not be written.
    """
    path = Path(path)
    runs = called(summaries_in(path, opening), name, labels)
    is_chosen = name is not None or is_exported(path)
    return keep_runs(store, runs, is_chosen=is_chosen, replaces=replaces)


def name_of_files(paths: Sequence[Path]) -> str:
    """Return what a run in ``paths`` is called: as its file, or as the folder of its files."""
    folders = [path.absolute().parent for path in paths]
    return as_name(name_of(paths[0] if len(paths) == 1 else os.path.commonpath(folders)))


def with_places(run: Summary) -> Summary:
    """Return ``run`` with the whole paths of its files, as far as these are here."""
    sources = (
        replace(source, path=str(Path(source.path).absolute()))
        if Path(source.path).exists()
        else source
        for source in run.sources
    )
    return replace(run, sources=tuple(sources))


def keep_runs(
    store: Store, runs: Sequence[Summary], *, is_chosen: bool, replaces: bool
) -> Sequence[str]:
    """Keep ``runs``, and return their names.

    Those that nobody chose are made fit, and numbered where they are taken.
    """
    placed = [with_places(run) for run in runs]
    if is_chosen:
        return store.add_all(placed, replaces=replaces)
    fit = [replace(run, name=as_name(run.name)) for run in placed]
    return store.add_all(fit, numbered=not replaces, replaces=replaces)


def called(runs: Sequence[Summary], name: str | None, labels: Mapping[str, str]) -> list[Summary]:
    """Return ``runs`` with the labels, and the name, which must be of one alone.

    Raises:
        UsageError: there are several, or none.
    """
    if name is not None and len(runs) != 1:
        raise UsageError(f"--name {name}: expected one run for the name, got {len(runs)} runs")
    named = [run if name is None else replace(run, name=name) for run in runs]
    return [replace(run, labels={**run.labels, **labels}) for run in named]
