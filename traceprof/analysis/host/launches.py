"""Launches: how long the calls take, how late the device starts, how deep the queues are."""

from __future__ import annotations

from typing import Final

import numpy as np

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
_MEDIANS: Final = ("call_ns", "delay_ns")


def measure_launches(trace: Trace) -> Result:
    """Return the launches by device and call."""
    rows = launch_table(trace)
    call = rows["launched_ns"] - rows["launch_ns"]
    delay = (rows["start_ns"] - rows["launched_ns"]).clip(lower=0)
    groups = rows.assign(
        call=call, delay=delay, short=rows["end_ns"] - rows["start_ns"] < call
    ).groupby(["device", "api"], observed=True)
    table = groups.agg(
        count=("call", "size"),
        call_total_ns=("call", "sum"),
        short_ratio=("short", "mean"),
        queue_mean=("queue_depth", "mean"),
        queue_max=("queue_depth", "max"),
        empty_ratio=("is_empty", "mean"),
    ).reset_index()
    values = np.stack([call.to_numpy(np.int64), delay.to_numpy(np.int64)], axis=1)
    all_work = sum(len(trace.table(name)) for name in DEVICE_TABLES)
    return Result(
        "launches",
        SPEC,
        tables={"launches": SPEC.tables[0].frame(table.astype({"api": object}))},
        scalars={"unlinked_count": all_work - len(rows)},
        samples={"launches": Samples(np.asarray(groups.ngroup(), np.int64), values)},
    )


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
