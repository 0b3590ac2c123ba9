"""Launches: how long the calls take, how late the device starts, how deep the queues are."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
import pandas as pd

from traceprof.analysis.base import Analysis
from traceprof.facts.launch_queue import launch_table
from traceprof.model.combining import medians_of
from traceprof.model.results import (
    Note,
    Result,
    ResultSpec,
    Samples,
    TableSpec,
    Unit,
    key,
    largest,
    mean,
    median,
    total,
)
from traceprof.model.trace import DEVICE_TABLES, Trace

__all__ = ["ANALYSIS"]

SPEC: Final = ResultSpec(
    tables=(
        TableSpec(
            "launches",
            "one row per device and launching call, by number",
            (
                key("device", "the number of the device in the run", Unit.NUMBER),
                key("api", "the call that launched the work"),
                total("count", Unit.COUNT, "how many kernels and copies it launched"),
                median("call_ns", Unit.NS, "the median length of the call"),
                total("call_total_ns", Unit.NS, "the length of all calls added up"),
                median(
                    "delay_ns",
                    Unit.NS,
                    "the median time from the end of the call to the start of the work, 0 where "
                    "it starts earlier",
                ),
                mean("short_ratio", Unit.RATIO, "the share of work shorter than its call", "count"),
                mean(
                    "queue_mean",
                    Unit.NUMBER,
                    "how many launched pieces of work of the device had not started, when one "
                    "more was launched",
                    "count",
                ),
                largest("queue_max", Unit.COUNT, "the most that had not started"),
                mean(
                    "empty_ratio",
                    Unit.RATIO,
                    "the share of launches that found nothing queued or running: launch-bound",
                    "count",
                ),
            ),
        ),
    ),
    scalars=(
        total("unlinked_count", Unit.COUNT, "kernels and copies whose launch was not recorded"),
    ),
)
_Int64Array = npt.NDArray[np.int64]
_MEDIANS: Final = ("call_ns", "delay_ns")


def measure_launches(trace: Trace) -> Result:
    """Return the launches by device and call."""
    rows = launch_table(trace)
    launched = rows["launched_ns"].to_numpy(np.int64)
    call = launched - rows["launch_ns"].to_numpy(np.int64)
    delay = np.maximum(rows["start_ns"].to_numpy(np.int64) - launched, 0)
    all_work = sum(len(trace.table(name)) for name in DEVICE_TABLES)
    table, place = _by_call(rows, call)
    return Result(
        "launches",
        SPEC,
        tables={"launches": SPEC.tables[0].frame(table)},
        scalars={"unlinked_count": all_work - len(rows)},
        samples={"launches": Samples(place, np.stack([call, delay], axis=1))},
    )


def _by_call(rows: pd.DataFrame, call: _Int64Array) -> tuple[pd.DataFrame, _Int64Array]:
    """Return the sums by device and call, and the row of them that each launch is part of."""
    apis = rows["api"].cat
    n_apis = max(1, len(apis.categories))
    packed = rows["device"].to_numpy(np.int64) * n_apis + np.asarray(apis.codes, np.int64)
    place, distinct = pd.factorize(packed)
    count = np.bincount(place, minlength=len(distinct))
    short = (rows["end_ns"] - rows["start_ns"]).to_numpy(np.int64) < call
    depth, empty = rows["queue_depth"].to_numpy(np.int64), rows["is_empty"].to_numpy(np.bool_)
    call_total, deepest = np.zeros(len(distinct), np.int64), np.zeros(len(distinct), np.int64)
    np.add.at(call_total, place, call)
    np.maximum.at(deepest, place, depth)
    means = {"short_ratio": short, "queue_mean": depth, "empty_ratio": empty}
    table = pd.DataFrame(
        {
            "device": distinct // n_apis,
            "api": apis.categories.to_numpy(object)[distinct % n_apis],
            "count": count,
            "call_total_ns": call_total,
            "queue_max": deepest,
            **{
                name: np.bincount(place, values, len(distinct)) / count
                for name, values in means.items()
            },
        }
    )
    return table, np.asarray(place, np.int64)


def _finish(result: Result) -> Result:
    samples = result.samples["launches"]
    medians = {
        name: medians_of(result.table, Samples(samples.rows, samples.values[:, i]))
        for i, name in enumerate(_MEDIANS)
    }
    table = result.table.assign(**medians).sort_values(
        ["count", "device", "api"], ascending=[False, True, True], ignore_index=True
    )
    lost = int(result.scalars["unlinked_count"])
    note = Note.of(
        "{lost:count} kernels and copies have no recorded launch and do not count", lost=lost
    )
    return result.with_table(table).with_notes(*([note] if lost else []))


ANALYSIS = Analysis(
    name="launches",
    spec=SPEC,
    needs=("kernels", "api_calls"),
    uses=("copies", "devices"),
    of_rank=measure_launches,
    finish=_finish,
)
