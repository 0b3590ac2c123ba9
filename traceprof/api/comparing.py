"""Compare runs in Python."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from pathlib import Path

from traceprof.api.results import Comparison, displayable_comparison
from traceprof.api.run import as_path_list, path_of
from traceprof.comparison.accuracy import accuracy as reached
from traceprof.comparison.comparing import compare_named
from traceprof.comparison.elastic import elastic as restarted
from traceprof.comparison.iterations import iterations_of_run
from traceprof.comparison.nodes import nodes as rounds
from traceprof.comparison.runs_named import summaries_of, traces_named
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
    """Compare ``new`` with ``base``, and test whether the difference is significant.

    Args:
        base: a trace, a run, a file from ``traceprof runs export``, or the name of a run in the
            database. Pass several to use the run as the unit of the statistics.
        new: the trace, run, file, or name to compare with ``base``.
        max_regression: the limit for a regression: "5%", or "step_without_waits_ns=5%" for one
            measure. The result "limits" reports whether a limit is exceeded (``is_exceeded``), or
            whether the data is not sufficient to check it (``is_undecided``).
        window: analyze only this window of each trace.
        db: the database of runs. Default: TRACEPROF_RUNS, else your personal database.

    Raises:
        TraceprofError: a run cannot be found or read, or a limit is invalid.
    """
    limits = [max_regression] if isinstance(max_regression, str) else max_regression
    comparison = compare_named(
        as_path_list(base), as_path_list(new), limits=limits, window=window, db=path_of(db)
    )
    return displayable_comparison(comparison)


def scaling(
    *runs: str | Path | Summary,
    base: float | None = None,
    by: Sequence[str] = (),
    ignored: Sequence[str] = (),
    assumed: str = "",
    db: str | Path | None = None,
) -> Comparison:
    """Compare the throughput of ``runs`` by number of GPUs, and show where efficiency is lost.

    >>> tp.scaling("1gpu/", "2gpu/", "4gpu/").to_frame("losses")

    Args:
        runs: traces, runs, tables of rates, logs, names in the database, or summaries from it.
        base: the size that counts as 100% efficient. Default: the smallest size of each group.
        by: the measure of size ("gpus" or "nodes"), and labels to compare.
        ignored: labels to ignore. Runs that differ only in these labels are repeats.
        assumed: "weak" or "strong": the scaling to assume if batch sizes are unknown.
        db: the database of runs. Default: TRACEPROF_RUNS, else your personal database.

    Raises:
        TraceprofError: a run cannot be found or read, or no run has a size and a throughput.
    """
    summaries = _summaries(runs, db)
    return displayable_comparison(
        sizes_compared(summaries, base=base, by=by, ignored=ignored, assumed=assumed)
    )


def accuracy(
    *runs: str | Path | Summary,
    to: float | None = None,
    metric: str | None = None,
    is_lower: bool | None = None,
    base: str | None = None,
    db: str | Path | None = None,
) -> Comparison:
    """Return when each of ``runs`` first reached a target, and the speedup from more GPUs.

    >>> tp.accuracy("1node.log", "8nodes.log", to=0.759).to_frame("reached")

    Args:
        runs: logs, traces, runs, names in the database, or summaries from it.
        to: the target value. Default: the target recorded in the runs, else the best value that
            all runs reach.
        metric: the metric, such as top1 or val_loss. Default: an accuracy, else a loss.
        is_lower: whether lower is better. Default: from the name of the metric.
        base: the baseline of speedups: a name or a number of GPUs. Default: the fewest GPUs.
        db: the database of runs. Default: TRACEPROF_RUNS, else your personal database.

    Raises:
        TraceprofError: a run cannot be found or read, or none has the metric.
    """
    summaries = _summaries(runs, db)
    return displayable_comparison(
        reached(summaries, target=to, metric=metric, is_lower=is_lower, base=base)
    )


def elastic(*runs: str | Path | Summary, db: str | Path | None = None) -> Comparison:
    """Return the epochs, restarts, lost time, and causes of an elastic job.

    Args:
        runs: a run, a log, or a name in the database. If there are two, traceprof compares the
            second with the first.
        db: the database of runs. Default: TRACEPROF_RUNS, else your personal database.

    Raises:
        TraceprofError: a run cannot be found or read.
    """
    return displayable_comparison(restarted(_summaries(runs, db)))


def nodes(
    *runs: str | Path, are_independent: bool = False, db: str | Path | None = None
) -> Comparison:
    """Compare iterations across nodes, with independent or synchronized ranks.

    Args:
        runs: traces, runs, names in the database, or "label:KEY=VALUE".
        are_independent: average the runs as nodes of one job that do not synchronize.
        db: the database of runs. Default: TRACEPROF_RUNS, else your personal database.

    Raises:
        TraceprofError: a run cannot be found or read.
    """
    named = traces_named(runs, path_of(db))
    iterations = (iterations_of_run(open_run(paths), name) for name, paths in named)
    found = rounds(list(chain.from_iterable(iterations)), are_independent=are_independent)
    return displayable_comparison(found)


def memory(*snapshots: str | Path) -> Comparison:
    """Return what used GPU memory, from snapshots of the PyTorch allocator.

    Raises:
        TraceprofError: a file cannot be read, or is not a snapshot.
    """
    return displayable_comparison(memory_held([Path(path) for path in snapshots]))


def _summaries(runs: Sequence[str | Path | Summary], db: str | Path | None) -> list[Summary]:
    """Return ``runs`` as summaries: measure or look up those that are not summaries yet."""
    groups = ([r] if isinstance(r, Summary) else summaries_of([r], db=path_of(db)) for r in runs)
    return list(chain.from_iterable(groups))
