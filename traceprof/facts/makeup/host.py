"""What the time of the hosts is made of: the phases, and what lies between two steps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, TypeAlias

import numpy as np
import pandas as pd

from traceprof.facts.host.phases import find_host_phases, inferred_backward_on_host
from traceprof.model.intervals import Intervals
from traceprof.model.ranks import Ranks
from traceprof.model.timing import TimeWindow
from traceprof.names.ranges import PHASES, UNCLAIMED

__all__ = ["BETWEEN_STEPS", "HostSpans", "makeup_of_hosts"]

HostSpans: TypeAlias = Mapping[int, tuple[TimeWindow, int]]
"""By process: its time on the host, and how much more until its next step, in ns."""

_BACKWARD: Final = "backward"
BETWEEN_STEPS: Final = "(between steps)"


def makeup_of_hosts(ranks: Ranks, spans: HostSpans) -> pd.DataFrame:
    """Return what the main threads of the processes that name phases were in during ``spans``.

    Columns: phase (of `PHASES`, `UNCLAIMED`, or `BETWEEN_STEPS`) and ns, added up over these
    processes: the spans with what lies behind them.
    """
    sums: dict[str, int] = {}
    for trace in ranks.whole:
        inferred = inferred_backward_on_host(trace)
        for host in find_host_phases(trace):
            if host.process not in spans:
                continue
            window, between_ns = spans[host.process]
            times = dict(host.times)
            known = inferred.get(host.process, Intervals.empty())
            times[_BACKWARD] = times.get(_BACKWARD, Intervals.empty()) | known
            first, last = np.array([window.start_ns]), np.array([window.end_ns])
            own = {name: int(time.covered_ns(first, last)[0]) for name, time in times.items()}
            own[UNCLAIMED] = window.duration_ns - sum(own.values())
            own[BETWEEN_STEPS] = between_ns
            for name, ns in own.items():
                sums[name] = sums.get(name, 0) + ns
    order = [name for name in (*PHASES, UNCLAIMED, BETWEEN_STEPS) if sums.get(name)]
    return pd.DataFrame({"phase": order, "ns": np.array([sums[n] for n in order], np.int64)})
