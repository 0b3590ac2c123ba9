"""Who looks at a run: this process, processes of this machine, or workers of a Dask cluster."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Final, Protocol

from traceprof.processes import n_processors, usable_bytes
from traceprof.workers.pool import RankProgress
from traceprof.workers.remote import Crew

LOCAL: Final = "local"
"""Instead of an address: a Dask cluster that is started here."""
_WORTH_BYTES: Final = 200_000_000
"""Of smaller runs the start of the processes, a second each, costs more than they save."""


_IN_MEMORY: Final = 4
"""So many times the bytes of an nsys export takes its rank, while a page is made of it."""


class _Closable(Crew, Protocol):
    def close(self) -> None: ...


_crews: dict[tuple[str, int], _Closable] = {}
"""Those that were started; runs that are opened one after another share them."""


def pool_for(files: Sequence[Path], jobs: int | None, scheduler: str) -> Crew | None:
    """Return who looks at the ranks of the run in ``files``; None: we do, all of them in memory.

    Of a run that does not fit there one process does, which lays ranks down on the disk.

    ``jobs`` is how many processes there are, None for as many as make sense; ``scheduler`` is the
    address of a Dask cluster, `LOCAL` for one that is started here, "" for none.

    Raises:
        UsageError: Dask is not installed.
    """
    n_jobs = _sensible(files) if jobs is None and not scheduler else jobs or n_processors()
    if n_jobs < 2 and not scheduler and _fits(files):
        return None
    key = scheduler, n_jobs
    if key not in _crews:
        _crews[key] = _started(scheduler, n_jobs)
    return _crews[key]


def _started(scheduler: str, n_jobs: int) -> _Closable:
    # Processes are needed for few runs, and Dask, which is slow to import, is an extra.
    crew: _Closable
    if not scheduler:
        crew = import_module("traceprof.workers.pool").Pool(n_jobs, RankProgress())
    else:
        address = "" if scheduler == LOCAL else scheduler
        crew = import_module("traceprof.workers.dask").DaskCrew(address, n_jobs, RankProgress())
    return crew


def _sensible(files: Sequence[Path]) -> int:
    """Return how many processes make sense: 1 for a run that is small."""
    if len(files) < 2 or _n_bytes(files) < _WORTH_BYTES:
        return 1
    return min(len(files), n_processors())


def _fits(files: Sequence[Path]) -> bool:
    """Return whether all ranks together, with what is computed of them, fit into memory."""
    return len(files) < 2 or _IN_MEMORY * _n_bytes(files) < usable_bytes(1)


def _n_bytes(files: Sequence[Path]) -> int:
    return sum(path.stat().st_size for path in files if path.is_file())


def dismiss() -> None:
    """End all processes that were started here."""
    while _crews:
        _crews.popitem()[1].close()
