"""Small runs as they are kept, made by hand: for tests of what compares and keeps them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from traceprof.model.results import (
    Note,
    Result,
    ResultSpec,
    TableSpec,
    Unit,
    derived,
    key,
    same,
    total,
)
from traceprof.model.summary import SUMMARY, SourceFile, Summary
from traceprof.model.table import Table

MS = 1_000_000

ENVIRONMENT = {
    "os": "Debian GNU/Linux 12",
    "cpu": "EPYC 7742",
    "gpu": "NVIDIA H100 80GB HBM3",
    "driver": "550.54.15",
    "cuda": "12.4",
    "torch": "2.5.1",
}

KERNELS = ResultSpec(
    (
        TableSpec(
            "kernels",
            "kernels by name",
            (
                key("name", "its name"),
                same("class", Unit.TEXT, "its class"),
                total("kernel_count", Unit.COUNT, "how many"),
                total("total_ns", Unit.NS, "how long together"),
                derived("share_ratio", Unit.RATIO, "of all"),
                same("remark", Unit.TEXT, "what must be known of it"),
                same("is_new", Unit.FLAG, "whether it is new"),
            ),
        ),
        TableSpec("classes", "by class", (key("class", "the class"),)),
    ),
    (
        derived("median_ns", Unit.NS, "the median"),
        derived("best", Unit.TEXT, "the most frequent one"),
    ),
)


def steps_table(periods_ns: Sequence[int], *, n_ranks: int = 1, samples: int = 32) -> Table:
    """Return steps of these periods on each rank, all of it compute but a fifth of idle time."""
    starts = np.concatenate([[0], np.cumsum(periods_ns)[:-1]]).astype(np.int64)
    periods = np.array(periods_ns, np.int64)
    idle = periods // 5
    tables = [
        Table(
            {
                "attempt": 0,
                "rank": rank,
                "step": np.arange(len(periods)),
                "steps_count": 1,
                "at_ns": starts,
                "period_ns": periods,
                "between_ns": 0,
                "device_ns": periods,
                "compute_ns": periods - idle,
                "exposed_communication_ns": 0,
                "exposed_transfer_ns": 0,
                "device_memory_ns": 0,
                "idle_ns": idle,
                "waited_ns": 0,
                "samples_count": samples,
                "is_warmup": False,
            }
        )
        for rank in range(n_ranks)
    ]
    return Table.stacked(tables)


def measures_table(values: Mapping[str, tuple[float, str]]) -> Table:
    """Return measures of the run: name → value and unit."""
    rows = [
        {
            "measure": name,
            "value": float(value),
            "unit": unit,
            "scope": "run",
            "better": "",
            "low": None,
            "high": None,
            "source": "measured",
        }
        for name, (value, unit) in values.items()
    ]
    return SUMMARY.table("measures").of_rows(rows)


def make_summary(
    name: str = "run",
    *,
    periods_ns: Sequence[int] = (10 * MS, 12 * MS, 11 * MS),
    n_ranks: int = 1,
    samples: int = 32,
    **changes: Any,
) -> Summary:
    """Return a run of a trace: its steps on each rank, and the measures that follow from them."""
    period_ns = float(np.median(periods_ns))
    measures = measures_table(
        {
            "samples_per_s": (n_ranks * samples * 1e9 / period_ns, "1/s"),
            "step_period_ns": (period_ns, "ns"),
            "world_size": (n_ranks, "count"),
        }
    )
    told: dict[str, Any] = {
        "origin": "nsys",
        "command": "python train.py --lr 0.1",
        "workload": "training",
        "started_utc_ns": 1_790_000_000_123_456_789,
        "environment": ENVIRONMENT,
        "sources": (SourceFile("/data/run.sqlite", "nsys", 123_456, tuple(range(n_ranks))),),
        "window": "steady",
        "window_ns": int(sum(periods_ns)),
        "steps_count": len(periods_ns),
        "devices_count": n_ranks,
        "tables": {
            "steps": steps_table(periods_ns, n_ranks=n_ranks, samples=samples),
            "measures": measures,
        },
    }
    return Summary(name, **{**told, **changes})


def kernels_result() -> Result:
    """Return a result with all that results may hold: notes in cells, unknown values, tuples."""
    table = Table(
        {
            "name": ["gemm", "json: no JSON", "“relu”"],
            "class": ["matmul", None, ""],
            "kernel_count": [2, 1, 3],
            "total_ns": [1 << 60, 7, 5],
            "share_ratio": [0.75, np.nan, 1.0],
            "remark": [Note.of("{n:count} cop(y|ies)", n=2), None, ("a", "b")],
            "is_new": [True, False, True],
        }
    )
    return Result(
        "kernels",
        KERNELS,
        {"kernels": table, "classes": KERNELS.table("classes").of_rows()},
        {"median_ns": 12, "best": None},
        (Note.of("{lost:ns} lost", lost=(1 << 60) + 1),),
    )


def full_summary(name: str = "full") -> Summary:
    """Return a run in which everything is known that can be."""
    plain = make_summary(name, n_ranks=2)
    metrics = SUMMARY.table("metrics").of_rows(
        [
            {"metric": "loss", "attempt": 0, "rank": None, "step": 1, "epoch": 0.5, "value": 2.5},
            {"metric": "top1", "attempt": 0, "rank": 1, "step": None, "epoch": 1.0, "value": 0.75},
        ]
    )
    events = SUMMARY.table("events").of_rows(
        [{"event": 0, "kind": "start", "at_ns": 0, "node": "a", "text": "began = “now”"}]
    )
    return Summary(
        **{
            **{field: getattr(plain, field) for field in Summary.__dataclass_fields__},
            "labels": {"cluster": "a", "network": "calico"},
            "tables": {
                **plain.tables,
                "metrics": metrics,
                "events": events,
                "attempts": SUMMARY.table("attempts").of_rows(),
            },
            "results": {"kernels": kernels_result()},
            "notes": (
                Note.of("prints {said:1/s}, its times say {true:1/s}", said=95.0, true=94.2),
            ),
        }
    )


def assert_same_runs(one: Summary, other: Summary) -> None:
    """Check that two runs say the same: what is not known may be None here and NaN there."""
    for field in Summary.__dataclass_fields__:
        if field not in ("tables", "results"):
            assert getattr(one, field) == getattr(other, field), field
    _assert_same_tables(one.tables, other.tables)
    assert list(one.results) == list(other.results)
    for name, result in one.results.items():
        found = other.results[name]
        assert (result.name, result.spec, result.notes) == (found.name, found.spec, found.notes)
        assert dict(result.scalars) == dict(found.scalars)
        _assert_same_tables(result.tables, found.tables)


def _assert_same_tables(one: Mapping[str, Table], other: Mapping[str, Table]) -> None:
    assert set(one) == set(other)
    for name, frame in one.items():
        assert list(frame) == list(other[name]), name
        for column in frame:
            assert _known(frame[column]) == _known(other[name][column]), (name, column)


def _known(values: Any) -> list[Any]:
    return [None if isinstance(v, float) and np.isnan(v) else v for v in values.tolist()]
