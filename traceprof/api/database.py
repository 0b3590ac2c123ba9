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
    """The database of runs: their environment and results, without their traces.

    >>> kept = traceprof.runs()
    >>> kept.add("night/", network="calico")
    >>> kept.list(network="calico")[["name", "samples_per_s"]]
    """

    def __init__(self, store: Store) -> None:
        self._store = store

    def list(self, **labels: str) -> pd.DataFrame:
        """Return the runs that have all of ``labels``, with their key measures.

        Raises:
            StoreError: the file is not a database of runs.
        """
        return list_of_runs(self._store, labels).results["runs"].to_frame()

    def get(self, name: str) -> Summary:
        """Return the saved summary of a run, by its name, its number, or the start of its name.

        Raises:
            StoreError: no run matches.
            UsageError: several runs match.
        """
        return self._store.get(name)

    def add(
        self, run: str | Path | SessionRun | Summary, name: str | None = None, **labels: str
    ) -> str:
        """Add a run (a path, an opened run, or a summary), and return its name.

        ``name`` must be unused. Without ``name``, traceprof adds a number to a name that is taken.

        Raises:
            UsageError: the name is taken, or the files contain several runs.
            TraceError: the run cannot be read.
        """
        if isinstance(run, str | Path):
            return keep_file(self._store, run, None, name, labels)[0]
        if isinstance(run, SessionRun):
            summary = summary_of(run, name or name_of_files(run.paths), labels)
        else:
            summary = replace(run, name=name or run.name).labelled(**labels)
        return self._store.add(with_places(summary), numbered=name is None)

    def remove(self, name: str) -> None:
        """Remove a run, by its full name or its number.

        Raises:
            StoreError: the run does not exist.
        """
        self._store.remove([name])

    def __repr__(self) -> str:
        return f"<traceprof runs in {self._store.path}>"


def runs(db: str | Path | None = None) -> Runs:
    """Return the database of runs in the file ``db``. Adding the first run creates the file.

    Default: the file in ``TRACEPROF_RUNS``, else your personal database.
    """
    return Runs(Store.at(db))
