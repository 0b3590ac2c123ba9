"""A handler for ``on_trace_ready`` of torch.profiler: write the traces and print a summary."""

from __future__ import annotations

import os
import sys
from itertools import count
from pathlib import Path
from typing import Any

from traceprof.api.database import runs
from traceprof.api.results import Page
from traceprof.api.run import open as open_files
from traceprof.errors import UsageError


class Handler:
    """Write each trace of a profiler to a folder, and print the headline of its page.

    ``files`` lists the traces written so far.
    """

    def __init__(self, folder: Path, *, keep: bool, quiet: bool | None, compress: bool) -> None:
        self._folder = folder
        self._keep, self._quiet = keep, quiet
        self._suffix = ".pt.trace.json.gz" if compress else ".pt.trace.json"
        self.files: list[Path] = []

    def __call__(self, profile: Any) -> Page | None:
        """Write the trace of ``profile``; return its page, or None if this rank prints nothing.

        Errors are printed on standard error. The program keeps running.
        """
        rank = _rank()
        try:
            path = self._write(profile, rank)
            is_quiet = rank > 0 if self._quiet is None else self._quiet
            page = None if is_quiet else open_files(path).page()
            if self._keep:
                runs().add(path)
        except Exception as error:
            sys.stderr.write(f"traceprof: cannot write the torch.profiler trace: {error}\n")
            return None
        if page is not None:
            print("\n".join((f"traceprof: {path}", *(f"  {line}" for line in page.headline))))
        return page

    def _write(self, profile: Any, rank: int) -> Path:
        path = self._free_path(f"rank{rank}-step{profile.step_num}")
        profile.export_chrome_trace(str(path))
        self.files.append(path)
        return path

    def _free_path(self, name: str) -> Path:
        """Return a path in the folder that does not exist yet."""
        self._folder.mkdir(parents=True, exist_ok=True)
        for number in count(1):
            path = self._folder / f"{name}{f'-{number}' if number > 1 else ''}{self._suffix}"
            if not path.exists():
                break
        return path


def handler(
    folder: str | Path = "traces",
    *,
    keep: bool = False,
    quiet: bool | None = None,
    compress: bool = True,
) -> Handler:
    """Return a handler for ``on_trace_ready`` of torch.profiler that writes and summarizes traces.

    >>> with torch.profiler.profile(schedule=…, on_trace_ready=tp.handler("traces")) as profile:

    Every rank writes one file per cycle of the schedule, such as ``rank0-step12.pt.trace.json.gz``.
    You can open the folder as a run with `traceprof.open`. Rank 0 prints the headline of its page.

    Args:
        folder: the folder for the traces. The handler creates it if necessary.
        keep: add each trace to the database of runs.
        quiet: True: no rank prints. False: every rank prints. Default: only rank 0 prints.
        compress: compress the traces with gzip.

    Raises:
        UsageError: ``folder`` is a file.
    """
    place = Path(folder)
    if place.exists() and not place.is_dir():
        raise UsageError(f"{place} is not a folder: choose another name")
    return Handler(place, keep=keep, quiet=quiet, compress=compress)


def _rank() -> int:
    """Return the rank of this process, 0 if it has none."""
    distributed = getattr(sys.modules.get("torch"), "distributed", None)
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return int(distributed.get_rank())
    text = os.environ.get("RANK", "")
    return int(text) if text.isdecimal() else 0
