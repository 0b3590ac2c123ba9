"""Runs of a size whose throughput, batch and parts of a step are said."""

from __future__ import annotations

from collections.abc import Mapping
from math import nan

from traceprof.measures import load_analysis
from traceprof.measures.composition import WAITING
from traceprof.model.results import Result
from traceprof.model.summary import SUMMARY, Summary
from traceprof.model.table import Table

__all__ = ["MS", "measures", "sized"]

MS = 1_000_000
N_STEPS = 10

PARTS = {
    "compute": ("compute", "kernel", "gemm"),
    "communication": ("exposed_communication", "collective", "all_reduce"),
    "stragglers": ("exposed_communication", WAITING, "rank 1"),
    "transfer": ("exposed_transfer", "copy", "h2d pinned"),
    "memory": ("device_memory", "copy", "d2d"),
    "input": ("idle", "data", "next"),
    "host": ("idle", "host", "forward"),
}
"""What a test calls a part of a step, and where it stands in the contents of a window."""


def measures(values: Mapping[str, float], low: float = nan, high: float = nan) -> Table:
    """Return measures; the interval is that of the throughput."""
    rows = [
        {
            "measure": name,
            "value": value,
            "low": low if name == "samples_per_s" else nan,
            "high": high if name == "samples_per_s" else nan,
        }
        for name, value in values.items()
    ]
    return SUMMARY.table("measures").of_rows(rows)


def sized(
    n: int,
    rate: float | None = None,
    *,
    batch: float | None = None,
    parts: Mapping[str, int] | None = None,
    collectives: int | None = None,
    interval: tuple[float, float] = (nan, nan),
    labels: Mapping[str, str] | None = None,
    **more: float,
) -> Summary:
    """Return a run on ``n`` GPUs.

    ``parts`` are ns of a step of each device; the throughput follows from them, and from the
    global batch, where it is not said.
    """
    values: dict[str, float] = {"world_size": n, **more}
    if batch is not None:
        values["global_batch_count"] = batch
    if rate is None and parts is not None and batch is not None:
        rate = 1e9 * batch / sum(parts.values())
    if rate is not None:
        values["samples_per_s"] = rate
    if parts is not None:
        values["step_period_ns"] = sum(parts.values())
    tables = {"measures": measures(values, *interval)}
    if parts is not None:
        rows = [
            dict(zip(("part", "kind", "name"), PARTS[name], strict=True), ns=ns * n * N_STEPS)
            for name, ns in parts.items()
        ]
        tables["makeup"] = SUMMARY.table("makeup").of_rows(rows)
    results = {}
    if collectives is not None:
        spec = load_analysis("collectives").spec
        frames = {spec.tables[0].name: spec.tables[0].of_rows()}
        results["collectives"] = Result("collectives", spec, frames, {"count": collectives})
    known = parts is not None
    return Summary(
        f"{n} GPUs",
        labels=labels or {},
        tables=tables,
        results=results,
        steps_count=N_STEPS if known else None,
        devices_count=n if known else None,
    )
