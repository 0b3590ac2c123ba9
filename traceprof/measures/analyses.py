"""Runs analyses, which declare their tables and measure either each rank or all ranks together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

import numpy as np

from traceprof.errors import NotRecordedError, TraceError
from traceprof.measures.facts import fact
from traceprof.measures.rows import bounds
from traceprof.model.combining import combine, compacted
from traceprof.model.ranks import Ranks, measure_each
from traceprof.model.results import Result, ResultSpec
from traceprof.model.tables import TABLES
from traceprof.model.trace import Trace
from traceprof.processes import PROGRESS, run_in_threads

_MAX_TOTAL: Final = 1 << 62
_YEAR_NS: Final = 365 * 86_400 * 10**9


def check_sums(ranks: Ranks) -> None:
    """Check that no sum of durations, sizes, or GPU time over the run exceeds 62 bits.

    Raises:
        TraceError: a sum exceeds the limit; no valid recording does, so its times or sizes are
            wrong.
    """
    totals = Counter[str]()
    for part in ranks:
        totals.update(_totals(part.whole))
    for what, total in totals.items():
        if total >= _MAX_TOTAL:
            of_bytes = what.startswith("sizes")
            formatted = f"{total / 2**60:.0f} EiB" if of_bytes else f"{total / _YEAR_NS:.0f} years"
            raise TraceError(
                f"{ranks.info.path}: the {what} add up to {formatted}, so the trace is damaged: "
                "export or record it again"
            )


@fact
def _totals(trace: Trace) -> dict[str, int]:
    """Return upper bounds for the sums over each table, in ns and bytes."""
    n_devices = max(int(trace.devices["used"].sum()), 1)
    totals = {"times of its GPUs": trace.span.duration_ns * n_devices}
    for name, table in TABLES.items():
        rows = trace.table(name)
        if rows.empty:
            continue
        if table.has_spans:
            starts, ends = bounds(rows)
            most = len(rows) * (int(ends.max()) - int(starts[0]))
            if most >= _MAX_TOTAL >> 10:
                most = int((ends - starts).sum(dtype=np.float64))
            totals[f"durations of its {name}"] = most
        if "n_bytes" in rows:
            totals[f"sizes of its {name}"] = int(rows["n_bytes"].clip(0).sum(dtype=np.float64))
    return totals


STEP_TABLES: Final = frozenset({"ranges", "kernels", "copies", "api_calls"})
"""Tables needed to find steps: ranges or kernels mark steps, and launches assign work to them."""


_LARGE_TABLES: Final = ("kernels", "copies", "api_calls", "ranges", "host_ops")
_MIN_ROWS_FOR_THREADS: Final = 500_000
"""With fewer rows, Python code that holds the GIL takes most of the time, so threads do not help.
"""
_MAX_ROWS_FOR_THREADS: Final = 8_000_000
"""With more rows, memory matters more than time: each thread allocates arrays of table length."""


def _unchanged(result: Result) -> Result:
    return result


@dataclass(frozen=True, slots=True)
class Analysis:
    """One analysis: its tables, the data that it reads, and the functions that measure it.

    ``needs``: tables without which the analysis fails. ``uses``: tables that it reads if they were
    recorded. Readers load no other tables. ``whole``: tables of which it also reads rows outside
    the window, in addition to the launches of the work in the window. ``of_steps``: the analysis
    finds steps, so it also reads all of `STEP_TABLES`, including rows outside the window.

    Exactly one of two functions measures: ``of_rank`` measures one rank, and the results are
    combined as the columns of ``spec`` declare; ``of_ranks`` measures all ranks together, if ranks
    must be compared. ``finish`` receives the combined result, computes derived columns, sorts rows,
    and adds notes. ``n_parts``: number of units that the analysis adds to `PROGRESS`, including one
    for its end. ``beside``: slow facts that the analysis needs late; another thread may compute
    them early. ``sums_up``: the analysis covers the whole recording; if no steps are known, its
    default window is the whole recording.
    """

    name: str
    spec: ResultSpec
    needs: tuple[str, ...] = ()
    uses: tuple[str, ...] = ()
    whole: tuple[str, ...] = ()
    of_steps: bool = False
    of_rank: Callable[[Trace], Result] | None = None
    of_ranks: Callable[[Ranks], Result] | None = None
    finish: Callable[[Result], Result] = _unchanged
    n_parts: int = 1
    beside: tuple[Callable[[Ranks], object], ...] = ()
    sums_up: bool = False

    @property
    def tables(self) -> frozenset[str]:
        """Tables that the analysis reads."""
        names = frozenset((*self.needs, *self.uses))
        return names | STEP_TABLES if self.of_steps else names

    @property
    def whole_tables(self) -> frozenset[str]:
        """Tables that the analysis also reads outside the window."""
        return frozenset(self.whole) | (STEP_TABLES if self.of_steps else frozenset())


def run_analysis(analysis: Analysis, ranks: Ranks) -> Result:
    """Return the result of ``analysis`` for ``ranks``, whole or cut to a window.

    Raises:
        NotRecordedError: no rank has a table that the analysis needs.
        TraceError: times or sizes are so large that their sums would overflow.
    """
    ranks.require(*analysis.needs)
    check_sums(ranks)
    if analysis.of_ranks is not None:
        return analysis.finish(analysis.of_ranks(ranks))
    if analysis.of_rank is None:
        raise TypeError(f"analysis {analysis.name} measures neither a rank nor all")
    return replace(analysis.finish(measured_by_rank(ranks, analysis.of_rank)), samples={})


def measured_by_rank(ranks: Ranks, of_rank: Callable[[Trace], Result]) -> Result:
    """Measure each rank that has the data with ``of_rank`` and return the combined result.

    Raises:
        NotRecordedError: no rank has the data.
    """
    found = measure_each(ranks.parts, _measured, of_rank, len(ranks.parts) > 1)
    measured = [result for result in found if isinstance(result, Result)]
    if not measured:
        raise next(result for result in reversed(found) if isinstance(result, NotRecordedError))
    return combine(measured)


def run_analyses(analyses: Sequence[Analysis], ranks: Ranks) -> list[Result | NotRecordedError]:
    """Return the result of each analysis, or the error why it has none.

    Large traces use threads.

    Raises:
        TraceError: times or sizes are so large that their sums would overflow.
    """
    found: dict[str, Result | NotRecordedError] = {}

    def run(analysis: Analysis) -> None:
        try:
            found[analysis.name] = run_analysis(analysis, ranks)
        except NotRecordedError as error:
            found[analysis.name] = error
        PROGRESS.done += 1

    tasks: list[Callable[[], object]] = []
    for analysis in analyses:
        tasks += [
            partial(run, analysis),
            *(partial(_compute_early, early_fact, ranks) for early_fact in analysis.beside),
        ]
    # Rows in other processes are already read in parallel.
    are_local = not any(part.is_remote for part in ranks.parts)
    n_rows = sum(len(p.table(n)) for p in ranks for n in _LARGE_TABLES) if are_local else 0
    if _MIN_ROWS_FOR_THREADS <= n_rows <= _MAX_ROWS_FOR_THREADS:
        run_in_threads(tasks)
    else:
        for analysis in analyses:
            run(analysis)
    return [found[analysis.name] for analysis in analyses]


def _compute_early(compute: Callable[[Ranks], object], ranks: Ranks) -> None:
    """Compute a fact and ignore errors; the analysis that needs the fact raises them again."""
    with suppress(Exception):
        compute(ranks)


def _measured(
    trace: Trace, of_rank: Callable[[Trace], Result], is_one_of_many: bool
) -> Result | NotRecordedError:
    """Return the result of ``of_rank``, compacted if there are several ranks, or its error."""
    try:
        found = of_rank(trace)
    except NotRecordedError as error:
        return error
    return compacted(found) if is_one_of_many else found
