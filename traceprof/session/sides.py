"""Two recordings that are looked at side by side: two runs, or two ranks of one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from traceprof.errors import SeveralRunsError, UsageError
from traceprof.model.ranks import of_process
from traceprof.model.timing import TimeWindow
from traceprof.model.trace import Trace
from traceprof.session.comparing import AGAINST, sides_named
from traceprof.session.opening import Opening
from traceprof.session.run import Run, open_run
from traceprof.values import dataclass

__all__ = ["OpenedSide", "ranks_beside", "runs_beside", "sides_of_paths"]


@dataclass(frozen=True, slots=True, eq=False)
class OpenedSide:
    """One of two: "A" or "rank 3", the file's name, its events, and the window asked for."""

    name: str
    title: str
    trace: Trace
    window: TimeWindow | None


def sides_of_paths(
    paths: Sequence[Path], opening: Opening
) -> tuple[Sequence[Path], Sequence[Path]] | None:
    """Return what the user put side by side; None where ``paths`` are one run.

    Two files that are no ranks of one run are two runs; "vs" says it of any paths.
    """
    if Path(AGAINST) in paths:
        base, new = sides_named(list(map(str, paths)))
        return list(map(Path, base)), list(map(Path, new))
    if len(paths) != 2:
        return None
    try:
        open_run(paths, opening).within("all").of_ranks(frozenset({"processes"}))
    except SeveralRunsError:
        return [paths[0]], [paths[1]]
    return None


def runs_beside(
    sides: Sequence[Sequence[Path]], opening: Opening, window: str | None
) -> list[OpenedSide]:
    """Return the runs, with the same window of each."""
    return [
        _side(name, _title(paths), open_run(list(paths), opening), window)
        for name, paths in zip("AB", sides, strict=True)
    ]


def ranks_beside(
    paths: Sequence[Path], opening: Opening, window: str | None, ranks: Sequence[int]
) -> list[OpenedSide]:
    """Return two ranks of the run in ``paths``.

    Raises:
        UsageError: these are not two, or one is not there.
    """
    if len(ranks) != 2 or ranks[0] == ranks[1]:
        raise UsageError("--ranks takes two ranks to put side by side, such as 0,3")
    whole = _side("", "", open_run(list(paths), opening), window)
    return [
        replace(whole, name=f"rank {rank}", trace=_of_rank(whole.trace, rank)) for rank in ranks
    ]


def _side(name: str, title: str, run: Run, window: str | None) -> OpenedSide:
    trace = run.within("all").trace()
    chosen = run.within(window).selection.window if window else None
    return OpenedSide(name, title, trace, chosen)


def _title(paths: Sequence[Path]) -> str:
    more = f" and {len(paths) - 1} more" if len(paths) > 1 else ""
    return f"{paths[0].name or paths[0]}{more}"


def _of_rank(trace: Trace, rank: int) -> Trace:
    processes = trace.processes
    mine = processes.loc[processes["rank"] == rank, "process"]
    if mine.empty:
        known = sorted(int(other) for other in set(processes["rank"]) if other >= 0)
        here = ", ".join(map(str, known)) or "no ranks"
        raise UsageError(f"no rank {rank}: the trace has {here}")
    process = int(mine.iloc[0])
    own = of_process(trace, process)
    if own.steps is None:
        return own
    table = own.steps.table
    kept = table[table["process"] == process].reset_index(drop=True)
    return replace(own, steps=replace(own.steps, table=kept))
