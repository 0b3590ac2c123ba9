"""What a run pays once and not in every step: loading, compiling, warm-up, evaluation, saving."""

from __future__ import annotations

from typing import Final

import pandas as pd

from traceprof.facts.cache import of_window
from traceprof.facts.steps.costs import costs_of_processes
from traceprof.model.ranks import Ranks

__all__ = ["one_off_costs"]

_LEAST: Final = 0.001
"""What takes a smaller share of the recording is no cost that anybody would mend."""
_COLUMNS: Final = ("kind", "count", "total_ns", "outside_ns", "start_ns", "end_ns", "process")


@of_window
def one_off_costs(ranks: Ranks) -> pd.DataFrame:
    """Return what each process paid once, in the whole recording.

    Columns: kind (of `traceprof.facts.steps.costs.ONE_OFF_KINDS`), count (how often), total_ns
    (how long: no time counts for two kinds), outside_ns (how much of that lies outside the window),
    start_ns and end_ns (of the first and the last of it, on the clock of the run) and process. The
    longest come first.
    What takes less than a thousandth of the recording is left out.
    """
    least_ns = _LEAST * ranks.whole.span.duration_ns
    tables = [costs_of_processes(part) for part in ranks]
    rows = [
        {
            "kind": kind,
            "count": count,
            "total_ns": time.total_ns,
            "outside_ns": time.total_ns
            - time.clip(ranks.span.start_ns, ranks.span.end_ns).total_ns,
            "start_ns": int(time.starts[0]),
            "end_ns": int(time.ends[-1]),
            "process": process,
        }
        for table in tables
        for (process, kind), (count, time) in table.items()
        if time.total_ns >= least_ns
    ]
    table = pd.DataFrame(rows, columns=list(_COLUMNS))
    return table.sort_values(
        ["total_ns", "process", "kind"], ascending=[False, True, True], ignore_index=True
    )
