"""Device work by range: small sums by hand, large ones against ``nsys stats``."""

from __future__ import annotations

import csv
import io
import re
import shutil
import subprocess
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.builders import TraceBuilder, plain
from tests.requirements import require
from tests.running import run
from traceprof.formats import open_trace
from traceprof.measures.host import range_work
from traceprof.measures.host.range_work import is_outermost_of
from traceprof.measures.host.ranges import find_parents
from traceprof.model.timing import TimeWindow
from traceprof.model.trace import Trace
from traceprof.names.ranges import unnumbered_names

FILES = (
    "2025.1-llm-17k-kernels",
    "2024.6-llm-2.7b-nvtx-a100",
    "2026.2-windows-laptop",
    "2025.1-fuser-nvtx-h200",
)


def _nested() -> TraceBuilder:
    return (
        TraceBuilder()
        .range("step 1", 0, 100)
        .range("layer, seq = 7, op_id = 3", 10, 50)
        .kernel("gemm", 200, 260, launched_ns=(20, 22))
        .kernel("gemm", 240, 280, launched_ns=(30, 32), stream=8)
        .kernel("norm", 300, 310, launched_ns=(60, 62))
        .range("step 2", 100, 200)
        .copy("h2d", 400, 420, launched_ns=(150, 160))
        .kernel("alone", 500, 505, launched_ns=(300, 301))
    )


def test_work_counts_for_every_range_around_its_launch() -> None:
    result = run("range-work", _nested().build())
    columns = ("name", "count", "host_ns", "self_ns", "device_ns", "union_ns", "device_self_ns")
    assert plain(result.table, *columns, "projected_ns", "work_count") == [
        # 200 .. 310 and 400 .. 420
        ("step *", 2, 200, 160, 130, 110, 30, 130, 4),
        ("layer", 1, 40, 40, 100, 80, 100, 80, 2),
    ]
    assert result.table["device_ratio"].tolist() == [130 / 135, 100 / 135]
    kernels = result.tables["range_kernels"].to_frame()
    assert plain(kernels, "name", "kernel", "count", "total_ns") == [
        ("layer", "gemm", 2, 100),
        ("step *", "gemm", 2, 100),
        ("step *", "norm", 1, 10),
    ]
    assert (result.scalars["outside_count"], result.scalars["outside_ns"]) == (1, 5)


def test_a_range_in_another_of_its_name_counts_its_work_once() -> None:
    trace = (
        TraceBuilder()
        .range("block", 0, 100)
        .range("block", 10, 90)
        .kernel("gemm", 200, 250, launched_ns=(20, 22))
        .build()
    )
    (row,) = plain(
        run("range-work", trace).table.to_frame(),
        "count",
        "device_ns",
        "device_self_ns",
        "projected_ns",
    )
    assert row == (2, 50, 50, 100)


def test_domains_are_kept_apart_and_processes_together() -> None:
    trace = (
        TraceBuilder()
        .range("f", 0, 10)
        .range("f", 20, 30, domain="lib")
        .range("f", 0, 10, process=2)
        .kernel("a", 50, 60, launched_ns=(1, 2), device=0)
        .kernel("a", 55, 65, launched_ns=(1, 2), device=1, process=2)
        .build()
    )
    rows = plain(run("range-work", trace).table.to_frame(), "name", "domain", "count", "union_ns")
    assert rows == [("f", "", 2, 20), ("f", "lib", 1, 0)]


def test_work_in_the_window_counts_for_the_range_before_it() -> None:
    result = run("range-work", _nested().build().within(TimeWindow(250, 450)))
    assert plain(result.table, "name", "count", "device_ns") == [
        ("step *", 0, 70),
        ("layer", 0, 40),
    ]


def test_without_ranges_around_launches_there_is_a_note() -> None:
    trace = TraceBuilder().range("a", 0, 5).kernel("k", 10, 20, launched_ns=(7, 8)).build()
    (note,) = run("range-work", trace).notes
    assert note.values == {"count": 1, "lost": 10, "share": 1.0, "unlinked": 0}


@pytest.mark.nsys
@pytest.mark.traces
@pytest.mark.parametrize("name", FILES)
def test_sums_by_range_are_those_of_nsys(
    name: str, real_trace: Callable[[str], Path], tmp_path: Path
) -> None:
    nsys = require("nsys")
    path = real_trace(f"nsys/{name}.sqlite")
    copy = Path(shutil.copy(path, tmp_path / "copy.sqlite"))
    trace = open_trace(path)
    result = run("range-work", trace)
    recursive = _recursive(trace)
    found = result.table.to_frame()[result.table.to_frame()["work_count"] > 0]
    projected = {
        _label(*row): (projected_ns, count)
        for *row, projected_ns, count in plain(
            found, "name", "domain", "projected_ns", "work_count"
        )
    }
    expected = _reported(nsys, copy, "nvtxgpuproj", "Name", "Projected Duration (ns)", "NumGPUOps")
    assert len(expected) >= 3
    assert _without(projected, recursive) == _without(expected, recursive)
    kernels: dict[str, tuple[int, int]] = defaultdict(lambda: (0, 0))
    rows = plain(result.tables["range_kernels"], "name", "domain", "total_ns", "count")
    for range_name, domain, total_ns, count in rows:
        before = kernels[_label(range_name, domain)]
        kernels[_label(range_name, domain)] = (before[0] + total_ns, before[1] + count)
    expected = _reported(nsys, copy, "nvtxkernsum", "NVTX Range", "Total Time (ns)", "Kern Inst")
    assert _without(dict(kernels), recursive) == _without(expected, recursive)


def _recursive(trace: Trace) -> set[str]:
    """Return the ranges that stand inside others of their name: nsys counts their work twice."""
    spans = trace.ranges.take(trace.ranges["kind"] == "push_pop")
    names = np.array(
        [_label(*row) for row in zip(unnumbered_names(spans["name"]), spans["domain"], strict=True)]
    )
    _, codes = np.unique(names, return_inverse=True)
    return set(names[~is_outermost_of(codes, find_parents(spans)[0])])


def _label(name: str, domain: str) -> str:
    return f"{domain}:{name}" if domain else name


def _without(sums: dict[str, tuple[int, int]], names: set[str]) -> dict[str, tuple[int, int]]:
    return {name: values for name, values in sums.items() if name not in names}


def _reported(
    nsys: str, path: Path, report: str, name: str, total: str, count: str
) -> dict[str, tuple[int, int]]:
    """Return name → (total, count) of a report of nsys, names without numbers that stand alone."""
    printed = subprocess.run(
        [nsys, "stats", "-q", "-f", "csv", "-r", report, "-o", "-", path],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    ).stdout
    sums: dict[str, tuple[int, int]] = defaultdict(lambda: (0, 0))
    for row in csv.DictReader(io.StringIO(printed.lstrip())):
        if row["Style"] != "PushPop":
            continue
        plain_name = re.sub(r"(, (seq|op_id) = \d+)+$", "", row[name].removeprefix(":"))
        label = re.sub(r"(?<=[ #:])\d+(?=$|[ :)])", "*", plain_name)
        sums[label] = (sums[label][0] + int(row[total]), sums[label][1] + int(row[count]))
    return dict(sums)


@pytest.mark.parametrize("seed", range(3))
def test_unions_are_those_of_instants_however_work_overlaps(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(range_work, "_MAX_ROWS_AT_ONCE", 4)
    numbers = np.random.default_rng(seed)
    builder = TraceBuilder().range("a 1", 0, 100).range("b", 10, 60).range("a 2", 20, 40)
    work = [tuple(numbers.integers((0, 0, 1, 0), (110, 150, 12, 2)).tolist()) for _ in range(40)]
    busy: dict[str, set[tuple[int, int]]] = defaultdict(set)
    for launched, begin, length, device in work:
        start, end = 200 + begin, 200 + begin + length
        builder.kernel("k", start, end, launched_ns=(launched, launched), device=device)
        inside = {"a *": launched < 100, "b": 10 <= launched < 60}
        for name in (name for name, is_inside in inside.items() if is_inside):
            busy[name] |= {(device, instant) for instant in range(start, end)}
    found = plain(run("range-work", builder.build()).table.to_frame(), "name", "union_ns")
    assert dict(found) == {name: len(instants) for name, instants in busy.items()}
