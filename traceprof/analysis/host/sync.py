"""Where the host waits for a device: synchronising calls and blocking copies, by range."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
import pandas as pd

from traceprof.analysis.base import Analysis
from traceprof.facts.host.waits import READS_A_VALUE, find_waits
from traceprof.facts.idle.waits import idle_in_waits
from traceprof.facts.steps.find import find_steps
from traceprof.model.results import (
    Note,
    Result,
    ResultSpec,
    TableSpec,
    Unit,
    derived,
    key,
    largest,
    total,
)
from traceprof.model.trace import DEVICE_TABLES, Trace

__all__ = ["ANALYSIS"]

_KEYS: Final = ("call", "pattern", "host_range")
SPEC: Final = ResultSpec(
    tables=(
        TableSpec(
            "waits",
            "one row per call, pattern and range, by total host time",
            (
                key("call", "the call that waits"),
                key(
                    "pattern",
                    "synchronise, blocking copy, or .item(): a copy of a few bytes to the host "
                    "that is waited for at once",
                ),
                key("host_range", "the innermost range around the call"),
                total("count", Unit.COUNT, "how many calls"),
                derived("per_step", Unit.NUMBER, "how many calls in a step"),
                total("total_ns", Unit.NS, "the length of all calls added up"),
                derived("mean_ns", Unit.NS, "the mean length of a call"),
                largest("max_ns", Unit.NS, "the longest call"),
                total(
                    "idle_ns",
                    Unit.NS,
                    "how long devices had nothing to do meanwhile, added up over devices: what "
                    "`idle` calls synchronising; empty where no device's work was recorded",
                ),
            ),
        ),
    ),
    scalars=(total("steps_count", Unit.COUNT, "the steps of all processes in the window"),),
)


def measure_sync(trace: Trace) -> Result:
    """Return the waits of the host by call, pattern and range."""
    waits = find_waits(trace).rename(columns={"name": "call"})
    table = _by_keys(waits, idle_in_waits(trace))
    if not trace.recorded & set(DEVICE_TABLES):
        table = table.assign(idle_ns=np.nan)
    return Result(
        "sync",
        SPEC,
        tables={"waits": SPEC.tables[0].frame(table)},
        scalars={"steps_count": len(find_steps(trace))},
    )


def _by_keys(waits: pd.DataFrame, idle: npt.NDArray[np.int64]) -> pd.DataFrame:
    """Return number, sum and longest of the waits of each call, pattern and range."""
    keys = [waits[name].cat for name in _KEYS]
    sizes = [max(1, len(own.categories)) for own in keys]
    packed = np.ravel_multi_index([own.codes.to_numpy(np.int64) for own in keys], sizes)
    place, distinct = pd.factorize(packed)
    duration = (waits["end_ns"] - waits["start_ns"]).to_numpy(np.int64)
    total_ns, max_ns, idle_ns = (np.zeros(len(distinct), np.int64) for _ in range(3))
    np.add.at(total_ns, place, duration)
    np.maximum.at(max_ns, place, duration)
    np.add.at(idle_ns, place, idle)
    codes = np.unravel_index(distinct, sizes)
    labels = {
        name: own.categories.to_numpy(object)[code]
        for name, own, code in zip(_KEYS, keys, codes, strict=True)
    }
    count = np.bincount(place, minlength=len(distinct))
    sums = {"count": count, "total_ns": total_ns, "max_ns": max_ns, "idle_ns": idle_ns}
    return pd.DataFrame({**labels, **sums})


def _finish(result: Result) -> Result:
    table = result.table
    n_steps = int(result.scalars["steps_count"])
    table = table.assign(
        per_step=table["count"] / n_steps if n_steps else np.nan,
        mean_ns=table["total_ns"] / table["count"],
    )
    order = [False, *(True for _ in _KEYS)]
    table = table.sort_values(["total_ns", *_KEYS], ascending=order, ignore_index=True)
    return result.with_table(table).with_notes(*_notes(table))


def _notes(table: pd.DataFrame) -> list[Note]:
    values = table[table["pattern"] == READS_A_VALUE]
    if values.empty:
        return []
    note = Note.of(
        "{n:count} waits for a few bytes from the device ({lost:ns}) look like .item(), .cpu() "
        "of a scalar, or `if tensor:`",
        n=int(values["count"].sum()),
        lost=int(values["total_ns"].sum()),
    )
    return [note]


ANALYSIS = Analysis(
    name="sync",
    spec=SPEC,
    needs=("api_calls",),
    uses=("copies", "ranges", "kernels", "overheads", "devices"),
    whole=("api_calls", "copies", "kernels"),
    of_steps=True,
    of_rank=measure_sync,
    finish=_finish,
)
