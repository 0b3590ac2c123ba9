"""Files into the database of runs."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path

from traceprof.errors import UsageError
from traceprof.model.summary import Summary
from traceprof.session.opening import Opening
from traceprof.session.runs_named import name_of, summaries_in
from traceprof.store import Store, as_name, is_exported

__all__ = ["LogReading", "keep_files", "keep_logs", "name_of_files"]


@dataclass(frozen=True, slots=True)
class LogReading:
    """How logs are read: who wrote them ("": by their content), and patterns of the user's."""

    source: str | None = None
    patterns: Mapping[str, str] = field(default_factory=dict)


def keep_files(
    store: Store,
    paths: Sequence[str | Path],
    opening: Opening | None,
    name: str | None,
    labels: Mapping[str, str],
    *,
    replaces: bool = False,
) -> Iterator[str]:
    """Keep the runs in ``paths``, one after the other, and yield their names.

    A name that was chosen (``name``, or that of an exported run) must be free, unless it
    ``replaces``; one that follows from the file gets a number.

    Raises:
        TraceprofError: one cannot be read, its name is taken, or the database not be written.
    """
    for path in map(Path, paths):
        runs = _called(summaries_in(path, opening), name, labels, is_alone=len(paths) == 1)
        is_chosen = name is not None or is_exported(path)
        yield from _kept(store, runs, is_chosen=is_chosen, replaces=replaces)


def keep_logs(
    store: Store,
    paths: Sequence[Path],
    reading: LogReading,
    name: str | None,
    labels: Mapping[str, str],
    *,
    replaces: bool = False,
) -> Iterator[str]:
    """Keep what the logs in ``paths`` tell, and yield the names, as `keep_files` does."""
    read_log = import_module("traceprof.logs").read_log
    for path in paths:
        found = read_log(path, source=reading.source, patterns=reading.patterns or None)
        runs = _called(found, name, labels, is_alone=len(paths) == 1)
        yield from _kept(store, runs, is_chosen=name is not None, replaces=replaces)


def name_of_files(paths: Sequence[Path]) -> str:
    """Return what a run in ``paths`` is called: as its file, or as the folder of its files."""
    if len(paths) == 1:
        return name_of(paths[0])
    return name_of(Path(os.path.commonpath([path.absolute().parent for path in paths])))


def _kept(
    store: Store, runs: Sequence[Summary], *, is_chosen: bool, replaces: bool
) -> Sequence[str]:
    """Keep ``runs``; names that nobody chose are made fit, and numbered where they are taken."""
    if is_chosen:
        return store.add_all(runs, replaces=replaces)
    fit = [replace(run, name=as_name(run.name)) for run in runs]
    return store.add_all(fit, numbered=not replaces, replaces=replaces)


def _called(
    runs: Sequence[Summary], name: str | None, labels: Mapping[str, str], *, is_alone: bool
) -> list[Summary]:
    """Return ``runs`` with the labels, and the name, which must be of one alone."""
    if name is not None and not (is_alone and len(runs) == 1):
        raise UsageError(f"--name {name}: these are several runs, and a name is of one")
    named = [run if name is None else replace(run, name=name) for run in runs]
    return [run.labelled(**labels) for run in named]
