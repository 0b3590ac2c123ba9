"""Which crew looks at a run: none, processes of this machine, or those of a Dask cluster."""

from __future__ import annotations

import os
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Final, Protocol

from traceprof.cluster.pool import Pool
from traceprof.cluster.progress import Progress
from traceprof.model.elsewhere import Crew

__all__ = ["LOCAL", "crew_for", "dismiss"]

LOCAL: Final = "local"
"""Instead of an address: a Dask cluster that is started here."""
_WORTH_BYTES: Final = 200_000_000
"""Of smaller runs the start of the processes, a second each, costs more than they save."""


class _Closable(Crew, Protocol):
    def close(self) -> None: ...


_crews: dict[tuple[str, int], _Closable] = {}
"""Those that were started; runs that are opened one after another share them."""


def crew_for(files: Sequence[Path], jobs: int | None, scheduler: str) -> Crew | None:
    """Return who looks at the ranks of the run in ``files``; None: we do, all of them in memory.

    ``jobs`` is how many processes there are, None for as many as make sense; ``scheduler`` is the
    address of a Dask cluster, `LOCAL` for one that is started here, "" for none.

    Raises:
        UsageError: Dask is not installed.
    """
    n_jobs = _sensible(files) if jobs is None and not scheduler else jobs or n_processors()
    if n_jobs < 2 and not scheduler:
        return None
    key = scheduler, n_jobs
    if key not in _crews:
        _crews[key] = _started(scheduler, n_jobs)
    return _crews[key]


def _started(scheduler: str, n_jobs: int) -> _Closable:
    if not scheduler:
        return Pool(n_jobs, Progress())
    address = "" if scheduler == LOCAL else scheduler
    # Dask is slow to import, and an extra.
    crew: _Closable = import_module("traceprof.cluster.on_dask").DaskCrew(
        address, n_jobs, Progress()
    )
    return crew


def _sensible(files: Sequence[Path]) -> int:
    """Return how many processes make sense: 1 for a run that is small."""
    n_bytes = sum(path.stat().st_size for path in files if path.is_file())
    if len(files) < 2 or n_bytes < _WORTH_BYTES:
        return 1
    return min(len(files), n_processors())


def n_processors() -> int:
    """Return how many processors this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def dismiss() -> None:
    """End all processes that were started here."""
    while _crews:
        _crews.popitem()[1].close()
