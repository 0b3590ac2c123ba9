"""The files of a run: each with what turns what is said of the run into what it calls its own."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import field
from pathlib import Path
from typing import Final

import numpy as np

from traceprof.errors import UsageError
from traceprof.formats.runs.files import is_run
from traceprof.model.ranks import Ranks
from traceprof.model.tables import ABSENT, TABLES
from traceprof.model.timing import ClockCorrection, TimeWindow
from traceprof.model.trace import Trace
from traceprof.session.opening import Align
from traceprof.session.run import Run
from traceprof.values import dataclass

__all__ = ["FileOfRun", "files_of_run"]

_APART: Final = 100_000_000
"""By what a run tells processes of different files apart: `traceprof.model.placement`."""
_OF_FILES: Final = frozenset(name for name, table in TABLES.items() if not table.has_times)
_TIMES: Final = 4
"""How often an instant is corrected to find where it lies on the clock of a file."""


@dataclass(frozen=True, slots=True)
class FileOfRun:
    """One file of a run, with what turns a window of the run into one of its own."""

    path: Path
    parts: tuple[Trace, ...]
    offset_ns: int = 0
    correction: ClockCorrection = field(default_factory=ClockCorrection)

    def own(self, window: TimeWindow) -> TimeWindow:
        """Return ``window`` on the clock of the file."""
        return TimeWindow(*(self._own_instant(t) for t in (window.start_ns, window.end_ns)))

    def _own_instant(self, common_ns: int) -> int:
        shown = common_ns
        for _ in range(_TIMES):
            error = float(self.correction.error_ns(np.array([shown], np.int64))[0])
            shown = common_ns + round(error)
        return shown - self.offset_ns

    @property
    def ranks(self) -> list[int]:
        """The ranks in it."""
        found = {int(r) for part in self.parts for r in part.processes["rank"] if r != ABSENT}
        return sorted(found)

    @property
    def devices(self) -> Mapping[int, int]:
        """The devices that worked in it, by their number in the run: their own."""
        return {
            int(device): part.own_devices.get(int(device), int(device))
            for part in self.parts
            for device in part.devices.loc[part.devices["used"] == 1, "device"]
        }

    def processes_of(self, ranks: Collection[int]) -> frozenset[int]:
        """Return its processes, by their own ids, that are these ranks."""
        rows = [part.processes for part in self.parts]
        return frozenset(
            int(process) % _APART
            for frame in rows
            for process in frame.loc[frame["rank"].isin(list(ranks)), "process"]
        )


def files_of_run(run: Run, wanted: Collection[int] | None) -> list[FileOfRun]:
    """Return the files that hold the ranks that are asked for, None for all.

    Raises:
        UsageError: a rank is not there.
    """
    ranks = run.within("all").of_ranks(_OF_FILES).whole
    offsets = _offsets(ranks, run.opening.align, several=is_run(run.paths))
    by_path: dict[Path, list[int]] = {}
    for index, part in enumerate(ranks):
        by_path.setdefault(Path(part.info.path), []).append(index)
    if not is_run(run.paths):
        by_path = {run.paths[0]: list(range(len(ranks)))}
    files = [
        FileOfRun(
            path,
            tuple(ranks.parts[i] for i in places),
            offsets[places[0]],
            _correction(ranks, places[0]),
        )
        for path, places in by_path.items()
    ]
    if wanted is None:
        return files
    known = {rank for file in files for rank in file.ranks}
    missing = sorted(set(wanted) - known)
    if missing:
        here = ", ".join(map(str, sorted(known))) or "none"
        raise UsageError(f"no rank {', '.join(map(str, missing))}: the trace has {here}")
    return [file for file in files if not set(file.ranks).isdisjoint(wanted)]


def _offsets(ranks: Ranks, align: Align, *, several: bool) -> list[int]:
    """Return what was added to the times of each file to put all on one clock."""
    epochs = [part.info.utc_epoch_ns for part in ranks]
    known = [epoch for epoch in epochs if epoch is not None]
    if not several or len(ranks) < 2 or align is Align.NONE or len(known) < len(epochs):
        return [0] * len(epochs)
    return [epoch - min(known) for epoch in known]


def _correction(ranks: Ranks, index: int) -> ClockCorrection:
    for process in ranks.parts[index].processes["process"]:
        if int(process) in ranks.clocks:
            return ranks.clocks[int(process)]
    return ClockCorrection()
