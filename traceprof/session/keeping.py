"""Files into the database of runs."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from importlib import import_module
from pathlib import Path

from traceprof.errors import UsageError
from traceprof.model.summary import Summary
from traceprof.session.opening import Opening
from traceprof.session.runs_named import name_of, summaries_in
from traceprof.store import Store, as_name, is_exported
from traceprof.values import dataclass

__all__ = ["LogReading", "keep_file", "keep_log", "name_of_files", "runs_of_log", "with_places"]


@dataclass(frozen=True, slots=True)
class LogReading:
    """How logs are read: who wrote them ("": by their content), and patterns of the user's."""

    source: str | None = None
    patterns: Mapping[str, str] = field(default_factory=dict)


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
    runs = _called(summaries_in(path, opening), name, labels)
    is_chosen = name is not None or is_exported(path)
    return _kept(store, runs, is_chosen=is_chosen, replaces=replaces)


def keep_log(
    store: Store,
    path: str | Path,
    reading: LogReading,
    name: str | None,
    labels: Mapping[str, str],
    *,
    replaces: bool = False,
) -> Sequence[str]:
    """Keep what the log ``path`` tells, and return the names, as `keep_file` does."""
    runs = runs_of_log(path, reading, name, labels)
    return _kept(store, runs, is_chosen=name is not None, replaces=replaces)


def runs_of_log(
    path: str | Path, reading: LogReading, name: str | None, labels: Mapping[str, str]
) -> Sequence[Summary]:
    """Return the runs that a log tells of, by the name and with the labels to keep them under.

    Raises:
        TraceprofError: it cannot be read, or is of no program whose logs are known.
    """
    read_log = import_module("traceprof.logs").read_log
    found = read_log(Path(path), source=reading.source, patterns=reading.patterns or None)
    return _called(found, name, labels)


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


def _kept(
    store: Store, runs: Sequence[Summary], *, is_chosen: bool, replaces: bool
) -> Sequence[str]:
    """Keep ``runs``; names that nobody chose are made fit, and numbered where they are taken."""
    placed = [with_places(run) for run in runs]
    if is_chosen:
        return store.add_all(placed, replaces=replaces)
    fit = [replace(run, name=as_name(run.name)) for run in placed]
    return store.add_all(fit, numbered=not replaces, replaces=replaces)


def _called(runs: Sequence[Summary], name: str | None, labels: Mapping[str, str]) -> list[Summary]:
    """Return ``runs`` with the labels, and the name, which must be of one alone."""
    if name is not None and len(runs) != 1:
        raise UsageError(f"--name {name}: there are {len(runs)} runs, and a name is of one")
    named = [run if name is None else replace(run, name=name) for run in runs]
    return [replace(run, labels={**run.labels, **labels}) for run in named]
