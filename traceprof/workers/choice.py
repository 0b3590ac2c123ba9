"""Who looks at a run: this process, processes of this machine, or workers of a Dask cluster."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Final, TextIO

from traceprof.processes import PROGRESS, n_processors, usable_bytes
from traceprof.units import format_duration
from traceprof.workers.remote import Pool

LOCAL: Final = "local"
"""Instead of an address: a Dask cluster that is started here."""
_MIN_POOL_BYTES: Final = 200_000_000
"""Of smaller runs the start of the processes, a second each, costs more than they save."""
_MIN_POOL_BYTES_PER_FILE: Final = 4_000_000
"""Of smaller files what processes ask one another costs more than what they answer."""
_MEMORY_PER_FILE_BYTE: Final = 4
"""So many times the bytes of an nsys export takes its rank, while a page is made of it."""
_FIRST_LINE_AFTER_S: Final = 1.0
_MIN_LINE_INTERVAL_S: Final = 0.2
_WIDTH: Final = 79


_pools: dict[tuple[str, int], Pool] = {}
"""Those that were started; runs that are opened one after another share them."""


def pool_for(files: Sequence[Path], jobs: int | None, scheduler: str) -> Pool | None:
    """Return who looks at the ranks of the run in ``files``; None: we do, all of them in memory.

    Of a run that does not fit there one process does, which spills ranks to the disk.

    ``jobs`` is how many processes there are, None for as many as make sense; ``scheduler`` is the
    address of a Dask cluster, `LOCAL` for one that is started here, "" for none.

    Raises:
        UsageError: Dask is not installed.
    """
    n_bytes = sum(path.stat().st_size for path in files if path.is_file()) if len(files) > 1 else 0
    n_jobs = jobs or n_processors()
    if jobs is None and not scheduler:
        pays_off = n_bytes >= max(_MIN_POOL_BYTES, _MIN_POOL_BYTES_PER_FILE * len(files))
        n_jobs = min(len(files), n_jobs) if pays_off else 1
    # Whether all ranks together, with what is computed of them, fit into memory
    if (
        n_jobs < 2
        and not scheduler
        and (not n_bytes or _MEMORY_PER_FILE_BYTE * n_bytes < usable_bytes(1))
    ):
        return None
    # Processes are needed for few runs, and Dask, which is slow to import, is an extra.
    if (scheduler, n_jobs) not in _pools and not scheduler:
        pool = import_module("traceprof.workers.pool").ProcessPool(n_jobs, RankProgress())
        _pools[scheduler, n_jobs] = pool
    elif (scheduler, n_jobs) not in _pools:
        address = "" if scheduler == LOCAL else scheduler
        pool = import_module("traceprof.workers.dask").DaskPool(address, n_jobs, RankProgress())
        _pools[scheduler, n_jobs] = pool
    return _pools[scheduler, n_jobs]


def dismiss() -> None:
    """End all processes that were started here."""
    while _pools:
        _pools.popitem()[1].close()


class RankProgress:
    """A line on standard error, where somebody looks at it: how many ranks are done.

    It says how many a second, and how long the rest takes, too.
    """

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self._begun_s = self._shown_s = 0.0
        self._is_shown = False

    def __call__(self, done: int, total: int) -> None:
        """Say that ``done`` of ``total`` ranks are done; the first of them may take a while."""
        if not self._stream.isatty():
            return
        now_s = time.monotonic()
        if done == 0:
            PROGRESS.is_told = True
            self._begun_s = self._shown_s = now_s
        if done == total:
            if self._is_shown:
                self._write("", "\r")
            self._is_shown = False
        elif (
            now_s - self._begun_s > _FIRST_LINE_AFTER_S
            and now_s - self._shown_s > _MIN_LINE_INTERVAL_S
        ):
            self._shown_s, self._is_shown = now_s, True
            self._write(_progress_text(done, total, now_s - self._begun_s))

    def _write(self, text: str, end: str = "") -> None:
        self._stream.write(f"\r{text:{_WIDTH}}{end}")
        self._stream.flush()


def _progress_text(done: int, total: int, taken_s: float) -> str:
    text = f"traceprof: {done} of {total} ranks"
    if not done:
        return text
    left = format_duration(round((total - done) * taken_s / done * 1e9))
    return f"{text}, {done / taken_s:.3g} ranks/s, {left} left"
