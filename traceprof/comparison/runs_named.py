"""Resolve the runs that a user names: traces, files, names in the database.

It also adds files to the database.
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
from traceprof.formats import recognized
from traceprof.formats.runs.files import is_run
from traceprof.formats.shared.files import examine, is_packed_database
from traceprof.formats.unread import name_kind
from traceprof.model.summary import Summary
from traceprof.session.kept_answers import KeptAnswers
from traceprof.session.options import Opening
from traceprof.session.run import Run, open_run
from traceprof.store import Store, as_name, is_exported, read_exported

_READERS: Final = {
    "table of rates": ("traceprof.logs.rates", "read_table"),
    "log": ("traceprof.logs", "read_log"),
}
"""Readers of text files; they are imported only if needed."""
_DOCUMENTS: Final = (".md", ".markdown", ".mdx", ".rst", ".org", ".html", ".htm", ".adoc")
_LABEL: Final = "label:"
_NEXT_LABEL: Final = re.compile(r",(?=[^,=]+=)")  # a value may contain a comma
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
    """Return the runs that ``texts`` name, in order.

    Each text is a trace or a run (file, directory, pattern, manifest), a file of ``traceprof runs
    export``, a table of rates, a training log, the name of a run in the database (also its number
    or the beginning of its name), or ``label:key=value[,key=value …]`` for all runs of the database
    with these labels. A trace is summarized in its default window. An existing file takes
    precedence over the database, unless the file cannot be read and the database has a run with
    this name.

    Args:
        texts: the texts that the user entered.
        opening: the options for opening traces.
        db: the database of runs; None: TRACEPROF_RUNS, otherwise the user's own database.
        window: the window of traces; stored summaries are unchanged.

    Raises:
        TraceprofError: a text names no run; the message lists the attempts.
    """
    store = Store.at(db)
    return [run for text in texts for run in _runs_of(text, opening or Opening(), store, window)]


def name_of(path: Path | str) -> str:
    """Return the default name of a run in ``path``: the file name without suffixes."""
    path = Path(path)
    name = path.name or path.absolute().name
    while (stem := Path(name)).suffix.lower() in _SUFFIXES and stem.stem:
        name = stem.stem
    return _WILDCARDS.sub("", name).strip("-_. ") or "run"


def summaries_in(
    path: Path, opening: Opening | None = None, window: str | None = None
) -> list[Summary]:
    """Return the runs in a file: one for a trace or a run, otherwise those in the text.

    Raises:
        TraceprofError: the file cannot be read; the message lists the attempts.
    """
    if _is_trace(path):
        return [summary_of(open_run([path], opening).within(window), name_of(path), {})]
    if is_exported(path):
        return read_exported(path)
    return _of_text(path)


def summary_of(run: Run, name: str, labels: Mapping[str, str]) -> Summary:
    """Return the summary of ``run`` in its selected window, from the cache if it is there."""
    kept = KeptAnswers(run.cache, run.window)
    what = ("summary", name, *sorted(labels.items()))
    known: Summary | None = kept.value(what)
    if known is not None:
        return known
    summarize = import_module("traceprof.comparison.summary.summarize").summarize
    found: Summary = summarize(run, name=name, labels=labels)
    kept.keep({what: found})
    return found


def _runs_of(text: str | Path, opening: Opening, store: Store, window: str | None) -> list[Summary]:
    """Return the runs that one text names: by label, by path, or by name in the database."""
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
    """Return the runs of the database with the labels in ``text``."""
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


def traces_named(
    texts: Sequence[str | Path], db: Path | str | None = None
) -> list[tuple[str, list[Path]]]:
    """Return the name and the trace files of each run that ``texts`` name.

    Each text is a trace, a run, the name of a run in the database, or ``label:KEY=VALUE``.

    Raises:
        TraceprofError: a text names no run, or the traces of a stored run do not exist.
    """
    store, found = Store.at(db), []
    for text in texts:
        named = str(text)
        if named.startswith(_LABEL):
            found += [_stored_traces(run) for run in _labelled(named, store)]
        elif not is_there(named) and not _WILDCARDS.search(named) and named in store.names():
            found.append(_stored_traces(store.get(named)))
        else:
            found.append((name_of(named), [Path(named)]))
    return found


def _stored_traces(run: Summary) -> tuple[str, list[Path]]:
    """Return the name and the trace files of a stored run."""
    paths = [Path(source.path) for source in run.sources]
    missing = [path for path in paths if not path.exists()]
    if missing or not paths:
        where = f": {missing[0]} does not exist" if missing else ""
        raise TraceError(
            f"the database has only a summary of run {run.name!r}, and this command needs its "
            f"traces{where}"
        )
    return run.name, paths


def _is_trace(path: Path) -> bool:
    """Return whether ``path`` is a trace or a run, recognized by content."""
    if is_run([path]):
        return True
    found = examine(path)
    return bool(found.tables) or recognized(found) is not None or is_packed_database(found)


def _of_text(path: Path) -> list[Summary]:
    """Return the runs in a document with several parts, a table of rates, or a log."""
    tried = []
    read_document = import_module("traceprof.logs.documents").read_document
    found: list[Summary] = read_document(path)
    if found:
        return found
    for what, (module, function) in _READERS.items():
        try:
            runs: list[Summary] = getattr(import_module(module), function)(path)
        except TraceprofError as error:
            tried.append(f"as a {what}: {str(error).removeprefix(f'{path}: ')}")
            continue
        if runs:
            return runs
        tried.append(f"as a {what}: contains no data")
    if kind := name_kind(examine(path)):
        raise TraceError(f"{path}: {kind}")
    if path.suffix.lower() in _DOCUMENTS:
        raise TraceError(
            f"{path}: the document contains no table of runs and no lines of a known log; "
            "`traceprof runs import-log FILE --pattern REGEX` reads other lines"
        )
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
    """Store the run or the runs in ``path``, and return their names.

    A chosen name (``name``, or the name of an exported run) must be unused, unless ``replaces`` is
    set. A name derived from the file gets a number if it is used.

    Raises:
        TraceprofError: the file cannot be read, a name is used, or the database is not writable.
    """
    path = Path(path)
    runs = called(summaries_in(path, opening), name, labels)
    return keep_runs(
        store, runs, is_chosen=name is not None or is_exported(path), replaces=replaces
    )


def name_of_files(paths: Sequence[Path]) -> str:
    """Return the default name of a run in ``paths``: that of its file, or of the common folder."""
    folders = [path.absolute().parent for path in paths]
    return as_name(name_of(paths[0] if len(paths) == 1 else os.path.commonpath(folders)))


def with_places(run: Summary) -> Summary:
    """Return ``run`` with absolute paths for files that exist on this machine."""
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
    """Store ``runs``, and return their names.

    Names that were not chosen are made valid, and numbered if they are used.
    """
    placed = [with_places(run) for run in runs]
    if is_chosen:
        return store.add_all(placed, replaces=replaces)
    fit = [replace(run, name=as_name(run.name)) for run in placed]
    return store.add_all(fit, numbered=not replaces, replaces=replaces)


def called(runs: Sequence[Summary], name: str | None, labels: Mapping[str, str]) -> list[Summary]:
    """Return ``runs`` with the labels and, if there is only one run, the name.

    Raises:
        UsageError: a name is given for no run or for several runs.
    """
    if name is not None and len(runs) != 1:
        raise UsageError(f"--name {name}: expected one run for the name, got {len(runs)} runs")
    named = [run if name is None else replace(run, name=name) for run in runs]
    return [replace(run, labels={**run.labels, **labels}) for run in named]
