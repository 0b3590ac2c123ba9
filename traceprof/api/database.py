"""The database of runs, in Python."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from traceprof.comparison.records import list_of_runs
from traceprof.comparison.runs_named import keep_file, name_of_files, summary_of, with_places
from traceprof.model.summary import Summary
from traceprof.session.run import Run as SessionRun
from traceprof.store import Store

if TYPE_CHECKING:
    import pandas as pd


class Runs:
    """The database of runs: what was kept of them when their traces are gone.

    >>> kept = traceprof.runs()
    >>> kept.add("night/", network="calico")
    >>> kept.list(network="calico")[["name", "samples_per_s"]]
    """

    def __init__(self, store: Store) -> None:
        self._store = store

    def list(self, **labels: str) -> pd.DataFrame:
        """Return the runs that have all of ``labels``, with their key measures.

        Raises:
            StoreError: the file is no database of runs.
        """
        return list_of_runs(self._store, labels).results["runs"].to_frame()

    def get(self, name: str) -> Summary:
        """Return what was kept of a run: by its name, its number, or how its name begins.

        Raises:
            StoreError: there is none.
            UsageError: there are several.
        """
        return self._store.get(name)

    def add(
        self, run: str | Path | SessionRun | Summary, name: str | None = None, **labels: str
    ) -> str:
        """Keep a run, in files or opened, and return its name.

        A ``name`` that is given must be free; left out, one that is taken gets a number.

        Raises:
            UsageError: the name is taken, or the files hold several runs.
            TraceError: it cannot be read.
        """
        if isinstance(run, str | Path):
            return keep_file(self._store, run, None, name, labels)[0]
        if isinstance(run, SessionRun):
            summary = summary_of(run, name or name_of_files(run.paths), labels)
        else:
            summary = replace(run, name=name or run.name).labelled(**labels)
        return self._store.add(with_places(summary), numbered=name is None)

    def remove(self, name: str) -> None:
        """Remove a run, by its whole name or its number.

        Raises:
            StoreError: there is none.
        """
        self._store.remove([name])

    def __repr__(self) -> str:
        return f"<traceprof runs in {self._store.path}>"


def runs(db: str | Path | None = None) -> Runs:
    """Return the database of runs in the file ``db``; it is made when the first run is added.

    Left out, it is the one that ``TRACEPROF_RUNS`` names, else the user's own.
    """
    return Runs(Store.at(db))
