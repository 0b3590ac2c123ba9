"""Collectives by whose code called them: which phase and layer, and what compute hides of them."""

from __future__ import annotations

from dataclasses import asdict, dataclass

import numpy as np
import pandas as pd

from traceprof.analysis.base import Analysis
from traceprof.analysis.communication.collectives import UNRECORDED, is_recorded
from traceprof.errors import NotRecordedError
from traceprof.facts.collectives.callers import callers_of_collectives, phases_of_collectives
from traceprof.facts.collectives.work import find_collectives
from traceprof.model.trace import Trace

__all__ = ["ANALYSIS", "Caller", "Callers", "measure_callers"]


@dataclass(frozen=True, slots=True)
class Caller:
    """The collectives of one operation that one range called ("" outside any), in one phase.

    Sums over all ranks of the trace. ``exposed_ns`` is the time that compute on the same device
    does not hide, ``hidden_ns`` the rest of ``total_ns``; None where a device's part is not
    recorded. ``size_bytes`` is what ranks handed in, None where a size was not recorded.
    """

    phase: str
    caller: str
    op: str
    count: int
    size_bytes: int | None
    total_ns: int | None
    exposed_ns: int | None
    hidden_ns: int | None
    exposed_ratio: float | None


@dataclass(frozen=True, slots=True)
class Callers:
    """The callers, those with the most exposed time first."""

    callers: tuple[Caller, ...]
    notes: tuple[str, ...] = ()

    def to_frame(self) -> pd.DataFrame:
        """Return one row per phase, caller and operation."""
        columns = list(Caller.__dataclass_fields__)
        return pd.DataFrame([asdict(caller) for caller in self.callers], columns=columns)


def measure_callers(trace: Trace) -> Callers:
    """Return the collectives that start in the window by the code that called them.

    Raises:
        NotRecordedError: neither collectives nor kernels were recorded.
    """
    if not is_recorded(trace):
        raise NotRecordedError(UNRECORDED)
    work = find_collectives(trace)
    if work.empty:
        return Callers((), ("no collective starts in this window",))
    work = work.assign(
        phase=phases_of_collectives(trace, work), caller=callers_of_collectives(trace, work)
    )
    rows = [_measure(own) for _, own in work.groupby(["phase", "caller", "op"], sort=False)]
    rows.sort(key=lambda row: (-(row.exposed_ns or 0), -(row.total_ns or 0), row.caller, row.op))
    return Callers(tuple(rows))


def _measure(rows: pd.DataFrame) -> Caller:
    first = rows.iloc[0]
    sizes = rows["n_bytes"].to_numpy(np.int64)
    timed = rows[rows["is_timed"]]
    total = int((timed["end_ns"] - timed["start_ns"]).sum()) if len(timed) else None
    is_known = len(timed) > 0 and bool(timed["exposed_ns"].notna().all())
    exposed = int(timed["exposed_ns"].sum()) if is_known else None
    hidden = None if total is None or exposed is None else total - exposed
    return Caller(
        phase=str(first["phase"]),
        caller=str(first["caller"]),
        op=str(first["op"]),
        count=len(rows),
        size_bytes=None if (sizes < 0).any() else int(sizes.sum()),
        total_ns=total,
        exposed_ns=exposed,
        hidden_ns=hidden,
        exposed_ratio=exposed / total if total and exposed is not None else None,
    )


ANALYSIS = Analysis(
    name="callers",
    needs=(),
    run=measure_callers,
)
