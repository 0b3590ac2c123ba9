import shutil
import subprocess
from collections.abc import Callable
from io import StringIO
from pathlib import Path

import pandas as pd
import pytest

from tests.builders import TraceBuilder, plain
from tests.requirements import require
from tests.running import run
from traceprof.formats import open_trace
from traceprof.measures.host.launches import launch_table
from traceprof.model.results import Note


def test_a_call_that_launches_a_graph_counts_once() -> None:
    builder = TraceBuilder().api_call("cudaGraphLaunch", 0, 100, correlation=5)
    builder.api_call("cudaGraphLaunch", 1000, 1300, correlation=6)
    for i in range(3):
        builder.kernel("k", 200 + 10 * i, 205 + 10 * i, correlation=5)
    builder.kernel("k", 1400, 1500, correlation=6)
    (row,) = run("launches", builder.build()).table.rows()
    assert (row["count"], row["call_total_ns"], row["call_ns"]) == (4, 400, 200)


def test_latency_and_queue_of_launches() -> None:
    trace = (
        TraceBuilder()
        .kernel("a", 110, 200, launched_ns=(100, 105))
        .kernel("b", 200, 300, launched_ns=(110, 120))
        .kernel("c", 300, 304, launched_ns=(130, 140))
        .kernel("d", 410, 500, launched_ns=(400, 408))
        .kernel("lost", 500, 510)
        .build()
    )
    launches = run("launches", trace)
    # a: nothing before; b: a has started; c: b waits; d: all has ended.
    assert launch_table(trace)["queue_depth"].tolist() == [0, 0, 1, 0]
    assert launch_table(trace)["is_empty"].tolist() == [True, False, False, True]
    columns = ("count", "call_ns", "call_total_ns", "delay_ns", "short_ratio", "queue_mean")
    assert plain(launches.table, *columns) == [(4, 9.0, 33, 42.5, 0.25, 0.25)]
    assert plain(launches.table, "queue_max", "empty_ratio") == [(1, 0.5)]
    text = "{lost:count} kernels and copies have no recorded launch. The table excludes them."
    assert launches.notes == (Note.of(text, lost=1),)


def test_work_that_starts_before_its_call_returns_has_no_delay() -> None:
    trace = TraceBuilder().kernel("a", 110, 200, launched_ns=(100, 150)).build()
    assert run("launches", trace).table["delay_ns"].tolist() == [0]


@pytest.mark.nsys
@pytest.mark.traces
@pytest.mark.parametrize("name", ["2025.1-llm-17k-kernels", "2026.2-windows-laptop"])
def test_launches_are_those_of_nsys(
    name: str, real_trace: Callable[[str], Path], tmp_path: Path
) -> None:
    """Compare with kernexecsum: API time and kernel time by thread and kernel name."""
    nsys = require("nsys")
    path = real_trace(f"nsys/{name}.sqlite")
    copy = Path(shutil.copy(path, tmp_path / "copy.sqlite"))
    printed = subprocess.run(
        [nsys, "stats", "-q", "-f", "csv", "-r", "kernexecsum", "-o", "-", copy],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    ).stdout
    theirs = pd.read_csv(StringIO(printed.lstrip()), keep_default_na=False)
    expected = theirs.groupby("API Name")["Count"].sum().to_dict()
    rows = launch_table(open_trace(path))
    kernels = rows.take(rows["table"] == "kernels")
    call = kernels["launched_ns"] - kernels["launch_ns"]
    length = kernels["end_ns"] - kernels["start_ns"]
    queue = kernels["start_ns"] - kernels["launched_ns"]
    whole = kernels["end_ns"] - kernels["launch_ns"]
    assert kernels["api"].counts() == expected
    for column, ours in (("AM", call), ("KM", length), ("TM", whole)):
        assert int(ours.min()) == int(theirs[f"{column}in (ns)"].astype(float).min())
        assert int(ours.max()) == int(theirs[f"{column}ax (ns)"].astype(float).max())
    assert int(queue.max()) == int(theirs["QMax (ns)"].replace("", 0).astype(float).max())
