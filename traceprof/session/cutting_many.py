"""Several windows of one file: the half of a file that half of them need is cut first.

So a file is not read once for each window, but as often as their number can be halved.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import field, replace
from pathlib import Path
from typing import Final

from traceprof.formats import cut
from traceprof.model.cutting import CutProgress, CutReport, CutRequest, no_progress
from traceprof.model.timing import TimeWindow
from traceprof.values import dataclass

__all__ = ["Part", "Parts", "cut_parts"]

_FEW: Final = 2


@dataclass(frozen=True, slots=True)
class Part:
    """One window of a file, and the empty file that it goes to."""

    target: Path
    request: CutRequest


@dataclass(slots=True)
class Parts:
    """What was written."""

    reports: list[tuple[Part, CutReport]] = field(default_factory=list)


def cut_parts(source: Path, parts: Sequence[Part], progress: CutProgress) -> Parts:
    """Write the parts of ``source``, which are in the order of their windows.

    Raises:
        TraceError: ``source`` cannot be cut.
        UsageError: a target cannot be written.
    """
    done = Parts()
    _cut(source, parts, len(parts), progress, done)
    return done


def _cut(
    source: Path, parts: Sequence[Part], n_parts: int, progress: CutProgress, done: Parts
) -> None:
    # Of one file it is told how much of it is read, of many how many are there.
    within = progress if n_parts == 1 else no_progress
    if len(parts) <= _FEW:
        for part in parts:
            done.reports.append((part, cut(source, part.target, part.request, within)))
            if n_parts > 1:
                progress(len(done.reports), n_parts, "files")
        return
    middle = len(parts) // 2
    for half in (parts[:middle], parts[middle:]):
        with tempfile.TemporaryDirectory(prefix=".traceprof-", dir=half[0].target.parent) as folder:
            between = Path(folder, half[0].target.name)
            between.touch()
            report = cut(source, between, _around(half), within)
            own = [
                replace(part, request=replace(part.request, zero_ns=report.zero_ns))
                for part in half
            ]
            _cut(between, own, n_parts, progress, done)


def _around(parts: Sequence[Part]) -> CutRequest:
    """Return the request for all that ``parts`` need."""
    requests = [part.request for part in parts]
    first = min(request.window.start_ns for request in requests)
    last = max(request.window.end_ns for request in requests)
    hull = TimeWindow(first, last)
    return replace(requests[0], window=hull, clip=False, is_packed=False, is_noted=False)
