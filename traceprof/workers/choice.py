"""Choose where ranks are analyzed: this process, local processes, or a Dask cluster."""

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
"""Value of --cluster that starts a Dask cluster on this machine."""
_MIN_POOL_BYTES: Final = 200_000_000
"""For smaller runs, starting the processes (a second each) costs more than it saves."""
_MIN_POOL_BYTES_PER_FILE: Final = 4_000_000
"""For smaller files, communication costs more than the parallel work saves."""
_MEMORY_PER_FILE_BYTE: Final = 4
"""Memory that a rank needs while a page is computed, per byte of its nsys export."""
_FIRST_LINE_AFTER_S: Final = 1.0
_MIN_LINE_INTERVAL_S: Final = 0.2
_WIDTH: Final = 79


_pools: dict[tuple[str, int], Pool] = {}
"""The running pools; runs that are opened one after another share them."""


def pool_for(files: Sequence[Path], jobs: int | None, scheduler: str) -> Pool | None:
    """Return the pool for the ranks in ``files``; None: analyze them in this process, in memory.

    A run that does not fit in memory is analyzed by one separate process, which spills ranks to
    disk.

    ``jobs`` is the number of processes, None for a suitable number. ``scheduler`` is the address of
    a Dask cluster, `LOCAL` to start one here, or "" for none.

    Raises:
        UsageError: Dask is not installed.
    """
    n_bytes = sum(path.stat().st_size for path in files if path.is_file()) if len(files) > 1 else 0
    n_jobs = jobs or n_processors()
    if jobs is None and not scheduler:
        pays_off = n_bytes >= max(_MIN_POOL_BYTES, _MIN_POOL_BYTES_PER_FILE * len(files))
        n_jobs = min(len(files), n_jobs) if pays_off else 1
    # True if all ranks and the values computed from them fit in memory
    if (
        n_jobs < 2
        and not scheduler
        and (not n_bytes or _MEMORY_PER_FILE_BYTE * n_bytes < usable_bytes(1))
    ):
        return None
    # Import lazily: few runs need processes, and Dask is an optional package that imports slowly.
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
    """Progress line on standard error, if that is a terminal: ranks done, rate, time left."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self._begun_s = self._shown_s = 0.0
        self._is_shown = False

    def __call__(self, done: int, total: int) -> None:
        """Report that ``done`` of ``total`` ranks are finished. The first rank may take a while."""
        if not self._stream.isatty():
            return
        now_s = time.monotonic()
        if done == 0:
            PROGRESS.has_progress_line = True
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
