import shutil
import subprocess
from collections.abc import Callable
from io import StringIO
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.builders import TraceBuilder
from tests.requirements import require
from traceprof.formats import open_trace
from traceprof.measures.host.launches import find_launches, innermost, range_of_launches
from traceprof.measures.host.phases import phase_of_launches
from traceprof.measures.host.ranges import find_parents
from traceprof.measures.rows import lengths_of
from traceprof.model.activity import Activity
from traceprof.model.timing import TimeWindow
from traceprof.model.trace import Trace
from traceprof.names.ranges import PHASES

AUTOGRAD = 2


def phases_of(trace: Trace) -> list[str | None]:
    found = phase_of_launches(trace, find_launches(trace, trace.kernels))
    return [PHASES[place] if place >= 0 else None for place in found]


def ranges_of(trace: Trace) -> list[str | None]:
    found = range_of_launches(trace, find_launches(trace, trace.kernels))
    names = trace.whole.ranges["name"].tolist()
    return [names[row] if row >= 0 else None for row in found]


def test_a_kernel_belongs_to_the_range_around_its_launch_not_around_itself() -> None:
    trace = (
        TraceBuilder()
        .range("forward", 0, 100)
        .range("layer", 10, 50)
        .range("backward", 100, 200)
        .kernel("in layer", 110, 120, launched_ns=(20, 25))
        .kernel("in forward", 120, 130, launched_ns=(60, 65))
        .kernel("outside", 130, 140, launched_ns=(300, 305))
        .build()
    )
    assert ranges_of(trace) == ["layer", "forward", None]
    assert phases_of(trace) == ["forward", "forward", None]


def test_autograd_threads_belong_to_the_phase_of_the_thread_that_calls_backward() -> None:
    trace = (
        TraceBuilder()
        .range("forward", 0, 100)
        .range("backward", 100, 200)
        .range("eval", 100, 200, thread=9)
        .range("cublasCreate", 105, 115, thread=AUTOGRAD)
        .kernel("own thread", 300, 310, launched_ns=(150, 155))
        .kernel("autograd", 310, 320, launched_ns=(160, 165), thread=AUTOGRAD)
        .kernel("autograd in a library", 320, 330, launched_ns=(110, 112), thread=AUTOGRAD)
        .kernel("after", 330, 340, launched_ns=(250, 255), thread=AUTOGRAD)
        .build()
    )
    assert phases_of(trace) == ["backward", "backward", "backward", None]


def test_another_process_has_its_own_phases() -> None:
    trace = (
        TraceBuilder()
        .range("forward", 0, 100)
        .range("backward", 0, 100, process=2)
        .kernel("a", 200, 210, launched_ns=(10, 15), correlation=7)
        .kernel("b", 210, 220, launched_ns=(10, 15), correlation=7, process=2)
        .build()
    )
    assert phases_of(trace) == ["forward", "backward"]


def test_all_kernels_of_a_graph_belong_to_its_launch() -> None:
    builder = TraceBuilder().range("forward", 0, 100)
    builder.api_call("cudaGraphLaunch", 10, 20, correlation=5)
    for i in range(3):
        builder.kernel("node", 200 + i, 201 + i, correlation=5, graph_node=i + 1)
    builder.kernel("whole", 300, 400, correlation=5, activity=Activity.CUDA_GRAPH)
    assert phases_of(builder.build()) == ["forward"] * 4


def test_a_kernel_without_a_recorded_launch_belongs_to_nothing() -> None:
    trace = TraceBuilder().range("forward", 0, 100).kernel("old", 10, 20, correlation=3).build()
    launches = find_launches(trace, trace.kernels)
    assert launches.is_known.tolist() == [False]
    assert (ranges_of(trace), phases_of(trace)) == ([None], [None])


def test_a_launch_outside_the_window_still_counts() -> None:
    trace = (
        TraceBuilder().range("forward", 0, 100).kernel("gemm", 150, 250, launched_ns=(20, 25))
    ).build()
    cut = trace.within(TimeWindow(200, 300))
    assert phases_of(cut) == ["forward"]
    assert find_launches(cut, cut.kernels).start_ns.tolist() == [20]


def nested(draw: st.DrawFn, low: int, high: int, depth: int) -> list[tuple[int, int]]:
    if high - low < 2 or depth == 0:
        return []
    start = draw(st.integers(low, high - 1))
    end = draw(st.integers(start + 1, high))
    return [
        (start, end),
        *nested(draw, start, end, depth - 1),
        *nested(draw, end, high, depth - 1),
    ]


@st.composite
def nested_ranges(draw: st.DrawFn) -> list[tuple[int, int]]:
    return nested(draw, 0, 60, 4)


@given(nested_ranges(), st.lists(st.integers(0, 60), max_size=30))
def test_the_innermost_range_is_the_shortest_one_that_is_open(
    spans: list[tuple[int, int]], instants: list[int]
) -> None:
    builder = TraceBuilder().range("x", 0, 1, thread=5)
    for start, end in spans:
        builder.range("r", start, end)
    ranges = builder.build().ranges
    ones = np.ones(len(instants), np.int64)
    found = innermost(ranges, ones, ones, np.array(instants, np.int64))
    for at, row in zip(instants, found, strict=True):
        around = [end - start for start, end in spans if start <= at < end]
        length = -1 if row < 0 else int(ranges["end_ns"][row] - ranges["start_ns"][row])
        assert length == min(around, default=-1)


@pytest.mark.nsys
@pytest.mark.traces
@pytest.mark.parametrize(
    "name", ["2025.1-llm-17k-kernels", "2024.6-llm-2.7b-nvtx-a100", "2026.2-windows-laptop"]
)
def test_kernels_by_range_are_those_of_nsys(
    name: str, real_trace: Callable[[str], Path], tmp_path: Path
) -> None:
    """Compare with nvtxkernsum, which counts a kernel for every range around its launch."""
    nsys = require("nsys")
    path = real_trace(f"nsys/{name}.sqlite")
    report = _report(nsys, path, tmp_path, "nvtxkernsum")
    report["NVTX Range"] = report["NVTX Range"].fillna("None").str.removeprefix("cuBLAS:")
    theirs = report.groupby(["NVTX Range", "TID", "Kernel Name"])[["Total Time (ns)", "Kern Inst"]]
    expected = {
        key: tuple(map(int, sums))
        for key, sums in zip(theirs.groups, theirs.sum().to_numpy(), strict=True)
    }
    assert _kernels_by_range(open_trace(path)) == expected


def _report(nsys: str, path: Path, folder: Path, report: str) -> pd.DataFrame:
    copy = Path(shutil.copy(path, folder / "copy.sqlite"))
    printed = subprocess.run(
        [nsys, "stats", "-q", "-f", "csv", "-r", report, "-o", "-", copy],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    ).stdout
    return pd.read_csv(StringIO(printed.lstrip()), keep_default_na=False)


def _kernels_by_range(trace: Trace) -> dict[tuple[str, int, str], tuple[int, int]]:
    launches = find_launches(trace, trace.kernels)
    inner = range_of_launches(trace, launches)
    names = np.append(trace.ranges["name"], "None")
    parents, _ = find_parents(trace.ranges)
    durations = lengths_of(trace.kernels)
    sums: dict[tuple[str, int, str], tuple[int, int]] = {}
    for i, kernel in enumerate(trace.kernels["name"]):
        row = int(inner[i])
        while True:
            key = (str(names[row]), int(launches.thread[i]), str(kernel))
            total, count = sums.get(key, (0, 0))
            sums[key] = (total + int(durations[i]), count + 1)
            row = int(parents[row]) if row >= 0 else -1
            if row < 0:
                break
    return sums
