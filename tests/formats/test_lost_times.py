"""Records that the profiler gave no time: left out, counted, and no part of the axis."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from tests.builders import TraceBuilder
from tests.formats.kineto_file import complete, kernel, on_device, write
from traceprof.errors import TraceError
from traceprof.formats import cut, open_trace, outline
from traceprof.formats.nsys.writer import write_nsys
from traceprof.model.cutting import CutRequest, no_progress
from traceprof.model.timing import TimeWindow
from traceprof.model.trace import Trace

EPOCH = 1_615_207_264 * 10**9
BOOT = 3 * 3600 * 10**9
YEAR = 365 * 86_400 * 10**9
KINETO_LOST = "traceprof ignored {n} events whose timestamps are 0 or years away from all others"


def sane(begin: int) -> list[dict[str, object]]:
    return [kernel(f"k{i}", begin + i * 100, begin + i * 100 + 50) for i in range(5)]


@pytest.mark.parametrize("begin", [EPOCH, BOOT], ids=["since 1970", "since boot, or a base"])
@pytest.mark.parametrize(
    "lost",
    [
        kernel("lost", 0, 0),
        on_device("gpu_memcpy", "Memcpy HtoD (Pageable -> Device)", 0, 0),
        complete("cuda_runtime", "cudaLaunchKernel", 0, 0),
        kernel("began at 0", 0, EPOCH),
        kernel("years before", -40 * YEAR, -40 * YEAR + 5),
        kernel("years after", EPOCH + 3 * YEAR, EPOCH + 3 * YEAR + 5),
    ],
    ids=lambda event: str(event["name"]),
)
def test_kineto(tmp_path: Path, begin: int, lost: dict[str, object]) -> None:
    trace = open_trace(write(tmp_path / "t.json", [lost, *sane(begin), lost]))
    assert len(trace.kernels) == 5
    assert trace.span == TimeWindow(0, 450)
    assert trace.info.warnings[0].startswith(KINETO_LOST.format(n=2))


def test_a_cut_counts_from_the_same_time_0(tmp_path: Path) -> None:
    path = write(tmp_path / "t.json", [kernel("lost", 0, 0), *sane(EPOCH), kernel("lost", 0, 0)])
    target = tmp_path / "part.json"
    cut(path, target, CutRequest(window=TimeWindow(100, 300)), no_progress)
    part = open_trace(target)
    assert [*part.kernels["name"]] == ["k1", "k2"]
    assert part.info.warnings == ()


def test_operators_may_begin_at_0_and_take_no_time(tmp_path: Path) -> None:
    trace = open_trace(write(tmp_path / "t.json", [complete("cpu_op", "aten::mm", 0, 0), *sane(9)]))
    assert len(trace.host_ops) == 1
    assert trace.info.warnings == ()


def test_two_recordings_a_year_apart_at_most_are_one_axis(tmp_path: Path) -> None:
    end = sane(EPOCH + YEAR)
    trace = open_trace(write(tmp_path / "t.json", [*sane(EPOCH), *end]))
    assert len(trace.kernels) == 10


def test_a_file_in_which_nothing_has_a_time_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="no event has a time"):
        open_trace(write(tmp_path / "t.json", [kernel("lost", 0, 0)]))


def export(path: Path, sql: str) -> Path:
    builder = TraceBuilder()
    for number in range(5):
        at = 1_000 + number * 100
        builder.kernel(f"k{number}", at, at + 50, launched_ns=(at - 20, at - 10))
    write_nsys(builder.copy("h2d", 900, 950, n_bytes=8).build(), path)
    with closing(sqlite3.connect(path)) as database:
        database.executescript(sql)
    return path


def read_both(path: Path) -> list[Trace]:
    return [open_trace(path), outline(path).trace]


@pytest.mark.parametrize("times", ["start = 0, [end] = 0", f"start = -{BOOT * 9}, [end] = 0"])
@pytest.mark.parametrize("kind", ["KERNEL", "RUNTIME", "MEMCPY"])
def test_nsys(tmp_path: Path, kind: str, times: str) -> None:
    where = "WHERE start > 1350" if kind == "KERNEL" else "WHERE rowid = 1"
    table = f"CUPTI_ACTIVITY_KIND_{kind}"
    for trace in read_both(export(tmp_path / "t.sqlite", f"UPDATE {table} SET {times} {where}")):
        assert trace.span.start_ns > 0
        assert trace.info.warnings == (
            f"1 row of {table} is damaged and ignored by traceprof (times lost by the profiler: 1)",
        )


def test_nsys_ranges_may_begin_with_the_session(tmp_path: Path) -> None:
    path = tmp_path / "t.sqlite"
    write_nsys(TraceBuilder().range("r", 0, 0).kernel("k", 5, 9).build(), path)
    trace = open_trace(path)
    assert len(trace.ranges) == 1
    assert trace.info.warnings == ()
