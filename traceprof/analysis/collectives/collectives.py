"""Collectives by operation, group and message size: time, bandwidth, and what compute hides."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Final

import numpy as np
import pandas as pd

from traceprof.analysis.base import Analysis
from traceprof.analysis.communication.remarks import remark_on_collectives
from traceprof.analysis.communication.size_classes import classify_sizes, order_of_size
from traceprof.errors import NotRecordedError
from traceprof.facts.collectives.matches import find_matches
from traceprof.facts.collectives.rates import peak_of_group
from traceprof.model.links import Peak
from traceprof.model.tables import ABSENT
from traceprof.model.trace import HOW_TO_RECORD, Trace

__all__ = [
    "ANALYSIS",
    "UNRECORDED",
    "CollectiveClass",
    "Collectives",
    "is_recorded",
    "measure_collectives",
]

UNRECORDED: Final = f"no collectives recorded: {HOW_TO_RECORD['collectives']}"

_KEYS: Final = ["op", "group", "group_size", "sizes"]


@dataclass(frozen=True, slots=True)
class CollectiveClass:
    """The collectives of one operation, group and class of message sizes.

    Count, ``size_bytes`` (what a rank hands in), ``total_ns``, ``waited_ns`` (for the last rank)
    and ``exposed_ns`` (what compute on the same device does not hide) add up over all ranks of
    the trace. ``algbw_bytes_per_s`` and ``busbw_bytes_per_s`` are as nccl-tests define them, sizes
    over times of all together: of collectives that ranks share the shortest time of the ranks,
    which holds no waiting, else the time as it is. None where sizes, times or the number of ranks
    are not known. ``peak_ratio`` is busbw over the peak of the link, never cut off at 100 %.
    """

    op: str
    sizes: str
    count: int
    size_bytes: int | None
    total_ns: int | None
    busbw_bytes_per_s: float | None
    peak_ratio: float | None
    exposed_ns: int | None
    waited_ns: int | None
    algbw_bytes_per_s: float | None
    median_ns: float | None
    group: str
    group_size: int | None
    algorithm: str
    dtype: str
    peak_bytes_per_s: float | None


@dataclass(frozen=True, slots=True)
class Collectives:
    """The classes, those that took the most time first."""

    classes: tuple[CollectiveClass, ...]
    notes: tuple[str, ...] = ()

    def to_frame(self) -> pd.DataFrame:
        """Return one row per class."""
        columns = list(CollectiveClass.__dataclass_fields__)
        return pd.DataFrame([asdict(row) for row in self.classes], columns=columns)


def measure_collectives(trace: Trace) -> Collectives:
    """Return the collectives of the window by operation, group and size.

    Raises:
        NotRecordedError: neither collectives nor kernels were recorded.
    """
    if not is_recorded(trace):
        raise NotRecordedError(UNRECORDED)
    matches = find_matches(trace)
    work = matches.rows
    if work.empty:
        return Collectives((), ("no collective starts in this window",))
    work = work.assign(sizes=classify_sizes(work["n_bytes"].to_numpy(np.int64)))
    peaks: dict[str, Peak] = {}
    classes = []
    for _, rows in work.groupby(_KEYS, sort=False):
        first = rows.iloc[0]
        peak = peak_of_group(trace, int(rows["device"].max()), int(first["group_size"]))
        row = _measure(rows, matches.table, peak)
        if peak is not None and row.busbw_bytes_per_s is not None:
            peaks[f"{row.group_size} ranks"] = peak
        classes.append(row)
    classes.sort(key=lambda row: (-(row.total_ns or 0), row.op, order_of_size(row.sizes)))
    return Collectives(tuple(classes), remark_on_collectives(trace, work, peaks))


def is_recorded(trace: Trace) -> bool:
    """Return whether collectives could be in the trace, as calls or as kernels."""
    return bool(trace.recorded & {"collectives", "kernels"})


def _measure(rows: pd.DataFrame, shared: pd.DataFrame, peak: Peak | None) -> CollectiveClass:
    first = rows.iloc[0]
    timed = rows[rows["is_timed"]]
    moved = _without_waiting(timed, shared)
    durations = timed["end_ns"] - timed["start_ns"]
    sizes = rows["n_bytes"].to_numpy(np.int64)
    busbw = _rate(moved, "bus_bytes")
    return CollectiveClass(
        op=str(first["op"]),
        group=str(first["group"]),
        group_size=None if first["group_size"] == ABSENT else int(first["group_size"]),
        sizes=str(first["sizes"]),
        algorithm=_distinct(rows["algorithm"] + " " + rows["protocol"]),
        dtype=_distinct(rows["dtype"]),
        count=len(rows),
        size_bytes=None if (sizes < 0).any() else int(sizes.sum()),
        total_ns=int(durations.sum()) if len(timed) else None,
        waited_ns=_waited(timed, shared),
        exposed_ns=_sum(timed["exposed_ns"]),
        median_ns=float(durations.median()) if len(timed) else None,
        algbw_bytes_per_s=_rate(moved, "operation_bytes"),
        busbw_bytes_per_s=busbw,
        peak_bytes_per_s=None if peak is None else peak.bytes_per_s,
        peak_ratio=None if peak is None or busbw is None else busbw / peak.bytes_per_s,
    )


def _without_waiting(timed: pd.DataFrame, shared: pd.DataFrame) -> pd.DataFrame:
    """Return the collectives that ranks share, with the shortest time of the ranks; else all."""
    matched = shared.loc[shared.index.isin(timed["match"])]
    if len(matched):
        return matched
    return timed.assign(duration_ns=timed["end_ns"] - timed["start_ns"])


def _rate(moved: pd.DataFrame, column: str) -> float | None:
    known = moved[moved[column].notna()]
    total_ns = int(known["duration_ns"].sum())
    return float(known[column].sum()) / total_ns * 1e9 if total_ns else None


def _waited(timed: pd.DataFrame, shared: pd.DataFrame) -> int | None:
    matched = timed[timed["match"] >= 0]
    if matched.empty:
        return None
    last_start = shared["last_start_ns"].loc[matched["match"]].to_numpy(np.int64)
    return int((last_start - matched["start_ns"].to_numpy(np.int64)).sum())


def _sum(values: pd.Series) -> int | None:
    known = values.dropna()
    return int(known.sum()) if len(known) else None


def _distinct(values: pd.Series) -> str:
    return ", ".join(sorted({str(value).strip() for value in values} - {""}))


ANALYSIS = Analysis(
    name="collectives",
    needs=(),
    run=measure_collectives,
)
