"""Runs against runs, in Python."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from pathlib import Path

from traceprof.api.results import Comparison, shown_comparison
from traceprof.api.run import path_of, several
from traceprof.comparison.accuracy import accuracy as reached
from traceprof.comparison.comparing import compare_named
from traceprof.comparison.elastic import elastic as restarted
from traceprof.comparison.iterations import iterations_of_run
from traceprof.comparison.nodes import nodes as rounds
from traceprof.comparison.runs_named import name_of, summaries_of
from traceprof.comparison.scaling.compared import scaling as sizes_compared
from traceprof.model.summary import Summary
from traceprof.session.run import open_run
from traceprof.snapshots.measured import memory as memory_held


def compare(
    base: str | Path | Sequence[str | Path],
    new: str | Path | Sequence[str | Path],
    *,
    max_regression: str | Sequence[str] = (),
    window: str | None = None,
    db: str | Path | None = None,
) -> Comparison:
    """Return what is different in ``new``, and whether that is more than chance.

    Args:
        base: a trace, a run, a file of ``traceprof runs export`` or the name of a run in the
            database; several of the same thing, and the run is the unit of the statistics.
        new: what is held against it.
        max_regression: how much worse it may get: "5%", or of a measure "step_own_ns=5%". The
            result "limits" says whether it is.
        window: what traces are seen through.
        db: the database of runs; left out, the user's own.

    Raises:
        TraceprofError: a run cannot be found or read, or a limit is not understood.
    """
    limits = [max_regression] if isinstance(max_regression, str) else max_regression
    found = compare_named(several(base), several(new), limits=limits, window=window, db=path_of(db))
    return shown_comparison(found)


def scaling(
    *runs: str | Path | Summary,
    base: float | None = None,
    by: Sequence[str] = (),
    ignored: Sequence[str] = (),
    assumed: str = "",
    db: str | Path | None = None,
) -> Comparison:
    """Return how the throughput of ``runs`` grows with their size, and where the rest was lost.

    >>> tp.scaling("1gpu/", "2gpu/", "4gpu/").to_frame("losses")

    Args:
        runs: traces, runs, tables of rates, logs, names in the database, or what it gives.
        base: the size that is held for ideal; left out, the smallest of each group.
        by: what the size is ("gpus" or "nodes"), and labels whose groups stand side by side.
        ignored: labels that make no groups: runs that differ in them alone are repeats.
        assumed: "weak" or "strong", where batches are not known.
        db: the database of runs; left out, the user's own.

    Raises:
        TraceprofError: a run cannot be found or read, or none tells its size and throughput.
    """
    found = _summaries(runs, db)
    return shown_comparison(
        sizes_compared(found, base=base, by=by, ignored=ignored, assumed=assumed)
    )


def accuracy(
    *runs: str | Path | Summary,
    to: float | None = None,
    metric: str | None = None,
    is_lower: bool | None = None,
    base: str | None = None,
    db: str | Path | None = None,
) -> Comparison:
    """Return when each of ``runs`` first reached a target, and what more devices gave.

    >>> tp.accuracy("1node.log", "8nodes.log", to=0.759).to_frame("reached")

    Args:
        runs: logs, traces, runs, names in the database, or what it gives.
        to: the target; left out, that of the runs, else the best that all of them reach.
        metric: top1, val_loss …; left out, an accuracy, else a loss.
        is_lower: whether lower is better; left out, by the name of the metric.
        base: what speed-ups are against, a name or a number; left out, the fewest devices.
        db: the database of runs; left out, the user's own.

    Raises:
        TraceprofError: a run cannot be found or read, or none has the metric.
    """
    found = _summaries(runs, db)
    return shown_comparison(reached(found, target=to, metric=metric, is_lower=is_lower, base=base))


def elastic(*runs: str | Path | Summary, db: str | Path | None = None) -> Comparison:
    """Return what a job lost whose ranks come and go: epochs, restarts, the time and why.

    Args:
        runs: a run, a log, or a name in the database; of two the first is what it is held against.
        db: the database of runs; left out, the user's own.

    Raises:
        TraceprofError: a run cannot be found or read.
    """
    return shown_comparison(restarted(_summaries(runs, db)))


def nodes(*runs: str | Path) -> Comparison:
    """Return the rounds of each node side by side: independent or synchronised ones.

    Raises:
        TraceprofError: one cannot be read.
    """
    each = (iterations_of_run(open_run([path]), name_of(Path(path))) for path in runs)
    return shown_comparison(rounds(list(chain.from_iterable(each))))


def memory(*snapshots: str | Path) -> Comparison:
    """Return what held a GPU's memory, by snapshots of PyTorch's allocator.

    Raises:
        TraceprofError: one cannot be read, or is no snapshot.
    """
    return shown_comparison(memory_held([Path(one) for one in snapshots]))


def _summaries(runs: Sequence[str | Path | Summary], db: str | Path | None) -> list[Summary]:
    each = ([r] if isinstance(r, Summary) else summaries_of([r], db=path_of(db)) for r in runs)
    return [own for found in each for own in found]
