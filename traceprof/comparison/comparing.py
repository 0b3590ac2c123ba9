"""From what the user names to a comparison of runs, or to two recordings side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from traceprof.comparison import Comparison
from traceprof.comparison.compare import compare
from traceprof.comparison.judging import parse_limit
from traceprof.comparison.runs_named import summaries_of
from traceprof.errors import RegressionError, SeveralRunsError, UsageError
from traceprof.model.ranks import of_process
from traceprof.model.summary import Summary
from traceprof.model.timing import TimeWindow
from traceprof.model.trace import Trace
from traceprof.session.options import Opening
from traceprof.session.run import Run, open_run
from traceprof.session.selection import check_ranks
from traceprof.units import format_ratio

AGAINST: Final = "vs"
"""Stands between several runs of the base and several new ones."""


BRIEF: Final[Mapping[str, tuple[str, ...]]] = {
    "judged": ("larger_ratio", "better", "base_count", "new_count", "alike_ratio"),
    "limits": (),
    "difference": ("more_ns", "longer_ns", "class", "base_bytes", "new_bytes"),
    "settings": ("spoils",),
    "kernels": ("base_count", "activity"),
    "metrics": ("base_epoch", "new_epoch", "base_step", "new_step"),
}
"""The results that a terminal, or a pull request, shows, without these of their columns."""


_OF_HOSTS: Final = "phases"
"""What tells why where nothing is known of devices."""


def brief(found: Comparison) -> Comparison:
    """Return a comparison with the results that answer, their main columns alone."""
    results = {}
    difference = found.results.get("difference")
    knows_devices = difference is not None and len(difference.table) > 0
    for name, result in found.results.items():
        if not knows_devices and name == _OF_HOSTS:
            results[name] = result
        elif name in BRIEF:
            tables = {
                own: frame.drop(columns=[c for c in BRIEF[name] if c in frame])
                for own, frame in result.tables.items()
                if own not in ("kinds", "classes")
            }
            results[name] = replace(result, tables=tables)
    return replace(found, results=results)


def sides_named(texts: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return base and new: of two texts the first and the second, else what "vs" parts.

    Raises:
        UsageError: it cannot be told which runs are which.
    """
    if texts.count(AGAINST) == 1:
        place = texts.index(AGAINST)
        sides = list(texts[:place]), list(texts[place + 1 :])
        if all(sides):
            return sides
    elif len(texts) == 2 and AGAINST not in texts:
        return [texts[0]], [texts[1]]
    raise UsageError(
        "compare takes BASE NEW, or several of each: `traceprof compare base1 base2 vs new1 new2`"
    )


def compare_named(
    base: Sequence[str | Path],
    new: Sequence[str | Path],
    *,
    limits: Sequence[str] = (),
    opening: Opening | None = None,
    window: str | None = None,
    db: Path | str | None = None,
) -> Comparison:
    """Return what is different in the runs that ``new`` means (see `summaries_of`).

    ``limits`` are as `--max-regression` takes them; traces are seen through ``window``.

    Raises:
        TraceprofError: a run cannot be found or read, or a limit is not understood.
    """
    parsed = [parse_limit(text) for text in limits]
    first, second = (summaries_of(texts, opening, db, window) for texts in (base, new))
    return compare(*_told_apart(first, second), parsed)


def _told_apart(base: list[Summary], new: list[Summary]) -> tuple[list[Summary], list[Summary]]:
    """Return the runs, those of both sides that bear one name with the folder that they lie in."""
    both = {run.name for run in base} & {run.name for run in new}
    first, second = (
        [_with_folder(run) if run.name in both else run for run in side] for side in (base, new)
    )
    return first, second


def _with_folder(run: Summary) -> Summary:
    folder = Path(run.sources[0].path).absolute().parent.name if run.sources else ""
    return replace(run, name=f"{folder}/{run.name}") if folder else run


def failed_limits(found: Comparison) -> None:
    """Check the limits of a comparison.

    Raises:
        RegressionError: one is exceeded; the message says which, and by how much.
    """
    if "limits" not in found.results:
        return
    table = found.results["limits"].table
    failed = table[table["is_exceeded"].astype(bool)]
    if len(failed):
        told = ", ".join(
            f"{row['measure']} {format_ratio(row['worse_ratio'])} worse "
            f"(limit {format_ratio(row['limit_ratio'])})"
            for row in failed.to_dict("records")
        )
        raise RegressionError(f"regression in {found.title}: {told}")


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
    check_ranks([rank], processes["rank"])
    process = int(mine.iloc[0])
    own = of_process(trace, process)
    if own.steps is None:
        return own
    table = own.steps.table
    kept = table[table["process"] == process].reset_index(drop=True)
    return replace(own, steps=replace(own.steps, table=kept))
