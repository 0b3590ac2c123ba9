"""Open two runs, or two ranks of one run, for a side-by-side view."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from traceprof.comparison.comparing import SIDE_SEPARATOR, split_sides
from traceprof.errors import UsageError
from traceprof.model.ranks import of_process
from traceprof.model.timing import TimeWindow
from traceprof.model.trace import Trace
from traceprof.session.options import Opening
from traceprof.session.run import Run, open_run
from traceprof.session.selection import check_ranks


@dataclass(frozen=True, slots=True, eq=False)
class OpenedSide:
    """An opened recording for a side-by-side view.

    ``name`` is "A", "B" or "rank 3". ``title`` is the file name. ``window`` is the requested
    window, None for the whole recording.
    """

    name: str
    title: str
    trace: Trace
    window: TimeWindow | None


def sides_of_paths(paths: Sequence[Path]) -> tuple[Sequence[Path], Sequence[Path]] | None:
    """Split ``paths`` at "vs" into base and new; return None without "vs"."""
    if Path(SIDE_SEPARATOR) not in paths:
        return None
    base, new = split_sides(list(map(str, paths)))
    return list(map(Path, base)), list(map(Path, new))


def open_two_runs(
    sides: Sequence[Sequence[Path]], opening: Opening, window: str | None
) -> list[OpenedSide]:
    """Open the run of each side, and select the same window in each."""
    return [
        _side(name, _title(paths), open_run(list(paths), opening), window)
        for name, paths in zip("AB", sides, strict=True)
    ]


def open_two_ranks(
    paths: Sequence[Path], opening: Opening, window: str | None, ranks: Sequence[int]
) -> list[OpenedSide]:
    """Open the run in ``paths``, and return two of its ranks as sides.

    Raises:
        UsageError: ``ranks`` are not two different ranks of the run.
    """
    if len(ranks) != 2 or ranks[0] == ranks[1]:
        raise UsageError("--ranks needs two different ranks, for example --ranks 0,3")
    whole = _side("", "", open_run(list(paths), opening), window)
    return [
        replace(whole, name=f"rank {rank}", trace=_of_rank(whole.trace, rank)) for rank in ranks
    ]


def _side(name: str, title: str, run: Run, window: str | None) -> OpenedSide:
    hull = run.within(window).selection.window.hull if window else None
    return OpenedSide(name, title, run.within("all").trace(), hull)


def _title(paths: Sequence[Path]) -> str:
    more = f" and {len(paths) - 1} more" if len(paths) > 1 else ""
    return f"{paths[0].name or paths[0]}{more}"


def _of_rank(trace: Trace, rank: int) -> Trace:
    """Return the trace with the events and the steps of one rank."""
    ranks = trace.processes["rank"]
    check_ranks([rank], ranks)
    process = int(trace.processes["process"][ranks == rank][0])
    rank_trace = of_process(trace, process)
    if rank_trace.steps is None:
        return rank_trace
    table = rank_trace.steps.table
    return replace(
        rank_trace, steps=replace(rank_trace.steps, table=table.take(table["process"] == process))
    )
