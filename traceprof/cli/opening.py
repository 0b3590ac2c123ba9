"""Opening what the user named: one trace, or a run of several."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from traceprof.formats import ReadOptions
    from traceprof.model.run import Run
    from traceprof.model.trace import Trace

__all__ = ["open_members", "open_named"]


def open_members(paths: Sequence[Path | str], options: ReadOptions | None = None) -> Run:
    """Return the run in ``paths``; a single file is a run of one member, however many processes.

    Raises:
        TraceError: nothing is found, or what is found cannot be read.
    """
    from traceprof.formats import open_trace
    from traceprof.formats.run_files import is_run, open_run
    from traceprof.model.run import RankTrace, Run

    if is_run(paths):
        return open_run(paths, options)
    return Run(str(paths[0]), (RankTrace(open_trace(paths[0], options)),))


def open_named(paths: Sequence[Path | str], options: ReadOptions | None = None) -> Trace:
    """Return the Trace of one file, or of all ranks of a run (directory, pattern, manifest).

    Raises:
        TraceError: nothing is found, or what is found cannot be read.
    """
    from traceprof.model.merge import merge_run

    trace = merge_run(open_members(paths, options))
    return replace(trace, info=replace(trace.info, path=" ".join(map(str, paths))))
