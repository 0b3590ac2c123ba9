"""Whatever is asked for: it is what a full read gives, and the file tells the same of itself."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from tests.builders import TraceBuilder
from tests.formats.test_contract import EXECUTION, WRITERS
from tests.real_traces import KINETO, NSYS, NVPROF
from tests.requirements import TRACES, require
from traceprof.formats import ReadOptions, open_trace, outline
from traceprof.formats.contract import LAUNCHING_TABLES, WINDOWED_TABLES, outline_of
from traceprof.formats.nsys.writer import write_nsys
from traceprof.formats.sqlite.survey import SELF_DESCRIPTION
from traceprof.measures.steps.completeness import passes_with_launches
from traceprof.measures.steps.find import find_steps
from traceprof.model.tables import TABLES
from traceprof.model.timing import TimeWindow
from traceprof.model.trace import Trace

WORK = frozenset({"kernels", "copies"})
SUBSETS = (*(frozenset({name}) for name in TABLES), WORK, WORK | {"ranges"}, frozenset[str]())
IN_ONE_PASS = (WORK, frozenset({"devices", "host_ops"}))  # of JSON: it is parsed whole anyway
DATABASES = (*NSYS, *NVPROF)


def written(known: str, folder: Path) -> Path:
    path = folder / "trace"
    if known != "packed":
        WRITERS[known](EXECUTION, path)
        return path
    WRITERS["nsys"](EXECUTION, path)
    packed = folder / "trace.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    return packed


@cache
def whole_trace(path: Path) -> Trace:
    return open_trace(path, ReadOptions(tables=frozenset(TABLES)))


def shared(name: str, real_trace: Callable[[str], Path]) -> Path:
    require("traces")
    return real_trace(name) if name in DATABASES else TRACES / name


def check_alike(found: pd.DataFrame, expected: pd.DataFrame, name: str) -> None:
    """Assert that two tables are equal, to the order of their names.

    That of pandas takes names one by one, and a hundred times as long: it says what differs.
    """
    named = found.select_dtypes("category")
    if found.equals(expected) and all(
        found[own].cat.categories.equals(expected[own].cat.categories) for own in named
    ):
        return
    pd.testing.assert_frame_equal(found, expected, obj=name)


def check_subset(path: Path, tables: frozenset[str]) -> None:
    whole, part = whole_trace(path), open_trace(path, ReadOptions(tables=tables))
    assert (part.recorded, part.span, part.info) == (whole.recorded, whole.span, whole.info)
    for name in TABLES:
        if name in tables:
            check_alike(part.table(name).to_frame(), whole.table(name).to_frame(), name)
        else:
            assert part.table(name).empty, name


@pytest.mark.parametrize("tables", SUBSETS, ids=lambda names: "+".join(sorted(names)) or "none")
@pytest.mark.parametrize("known", [*WRITERS, "packed"])
def test_tables_that_are_asked_for_are_those_of_a_full_read(
    known: str, tables: frozenset[str], tmp_path: Path
) -> None:
    check_subset(written(known, tmp_path), tables)


@pytest.mark.traces
@pytest.mark.parametrize("name", [*DATABASES, *KINETO])
def test_tables_of_real_traces_are_those_of_a_full_read(
    name: str, real_trace: Callable[[str], Path]
) -> None:
    path = shared(name, real_trace)
    for tables in SUBSETS if name in DATABASES else IN_ONE_PASS:
        check_subset(path, tables)


def windows_of(trace: Trace) -> list[TimeWindow]:
    """Return windows at the start, in the middle, around one kernel, of one instant, outside."""
    start, length = trace.span.start_ns, trace.span.duration_ns
    work = trace.kernels.to_frame() if len(trace.kernels.to_frame()) else trace.api_calls.to_frame()
    found = [
        TimeWindow(start, start + length // 100 + 1),
        TimeWindow(start + length // 2, start + length * 51 // 100 + 1),
        TimeWindow(start + length // 3, start + length),
        TimeWindow(trace.span.end_ns + 10, trace.span.end_ns + 20),
    ]
    if len(work):
        row = work.iloc[len(work) // 2]
        found.append(TimeWindow(int(row["start_ns"]), int(row["end_ns"])))
        found.append(TimeWindow(int(row["start_ns"]), int(row["start_ns"]) + 1))
    return found


def check_window(path: Path, window: TimeWindow, tables: frozenset[str] | None = None) -> None:
    whole, tables = whole_trace(path), tables or frozenset(TABLES)
    part = open_trace(path, ReadOptions(tables=tables, window=window))
    assert (part.recorded, part.span, part.info) == (whole.recorded, whole.span, whole.info)
    for name in tables:
        expected, found = whole.table(name).to_frame(), part.table(name).to_frame()
        if name in WINDOWED_TABLES:
            expected = overlapping(expected, window)
        elif name in LAUNCHING_TABLES:
            expected = overlapping(expected, reach_of(whole, window))
        check_alike(plain(found), plain(expected), f"{name} in {window}")


def overlapping(frame: pd.DataFrame, window: TimeWindow) -> pd.DataFrame:
    starts = frame["start_ns"]
    ends = frame.get("end_ns", starts)
    is_inside = (starts >= window.start_ns) | (ends > window.start_ns)
    return frame[is_inside & (starts < window.end_ns)].reset_index(drop=True)


def reach_of(trace: Trace, window: TimeWindow) -> TimeWindow:
    work = pd.concat(
        [overlapping(trace.table(name).to_frame(), window) for name in ("kernels", "copies")]
    )
    launched = set(zip(work["process"], work["correlation"], strict=True))
    calls = zip(
        trace.api_calls.to_frame()["process"],
        trace.api_calls.to_frame()["correlation"],
        strict=True,
    )
    is_launch = np.array([pair in launched and pair[1] != -1 for pair in calls], np.bool_)
    starts = trace.api_calls.to_frame()["start_ns"][is_launch]
    return TimeWindow(
        min(window.start_ns, starts.min()) if len(starts) else window.start_ns, window.end_ns
    )


def plain(frame: pd.DataFrame) -> pd.DataFrame:
    return frame.astype(dict.fromkeys(frame.select_dtypes("category"), object))


@pytest.mark.parametrize("known", [*WRITERS, "packed"])
def test_a_window_brings_every_row_that_overlaps_it_whole(known: str, tmp_path: Path) -> None:
    path = written(known, tmp_path)
    for window in windows_of(whole_trace(path)):
        check_window(path, window)
        check_window(path, window, frozenset({"host_ops", "api_calls"}))


@pytest.mark.traces
@pytest.mark.parametrize("name", [*DATABASES, *KINETO])
def test_a_window_of_real_traces_brings_every_row_that_overlaps_it(
    name: str, real_trace: Callable[[str], Path]
) -> None:
    path = shared(name, real_trace)
    windows = windows_of(whole_trace(path))
    for window in windows if name in DATABASES else windows[1:2]:
        check_window(path, window)
    for tables in ({"host_ops"}, {"collectives", "devices"}) if name in DATABASES else ():
        check_window(path, windows[1], frozenset(tables))


def test_a_launch_before_the_window_comes_with_what_is_around_it(tmp_path: Path) -> None:
    host = {"process": 7, "thread": 7}
    trace = (
        TraceBuilder()
        .host_op("early", 0, 10, **host)
        .host_op("around the launch", 20, 40, **host)
        .kernel("gemm", 100, 200, launched_ns=(25, 30), **host)
        .build()
    )
    path = tmp_path / "trace.sqlite"
    write_nsys(trace, path)
    found = open_trace(path, ReadOptions(window=TimeWindow(150, 160)))
    assert found.api_calls.to_frame()["start_ns"].tolist() == [25]
    assert found.host_ops.to_frame()["name"].tolist() == ["around the launch"]
    assert found.span == TimeWindow(0, 200)


def test_an_unknown_table_is_a_mistake() -> None:
    with pytest.raises(ValueError, match="kernel"):
        ReadOptions(tables=frozenset({"kernel"}))


def check_outline(path: Path) -> None:
    expected, found = outline_of(whole_trace(path)), outline(path)
    for field in ("n_rows", "device_rows", "process_rows"):
        assert getattr(found, field) == getattr(expected, field), field
    for field in ("info", "recorded", "span"):
        assert getattr(found.trace, field) == getattr(expected.trace, field), field
    for name in TABLES:
        pd.testing.assert_frame_equal(
            found.trace.table(name).to_frame(), expected.trace.table(name).to_frame(), obj=name
        )


@pytest.mark.parametrize("known", [*WRITERS, "packed"])
def test_an_outline_counts_what_a_full_read_gives(known: str, tmp_path: Path) -> None:
    check_outline(written(known, tmp_path))


@pytest.mark.traces
@pytest.mark.parametrize("name", [*DATABASES, KINETO[0]])
def test_an_outline_of_real_traces_counts_what_a_full_read_gives(
    name: str, real_trace: Callable[[str], Path]
) -> None:
    check_outline(shared(name, real_trace))


def check_steps(path: Path) -> None:
    """Compare steps and passes of the ranges that can be these with those of all."""
    tables = WORK | {"ranges", "api_calls"}
    whole = open_trace(path, ReadOptions(tables=tables))
    part = open_trace(path, ReadOptions(tables=tables, only_steps=True))
    assert (part.recorded, part.span, part.info) == (whole.recorded, whole.span, whole.info)
    found, expected = find_steps(part), find_steps(whole)
    assert found.source == expected.source
    pd.testing.assert_frame_equal(found.table.to_frame(), expected.table.to_frame())
    passes = (passes_with_launches(own).to_frame() for own in (part, whole))
    pd.testing.assert_frame_equal(*passes)


def check_known(path: Path, window: TimeWindow) -> None:
    """Compare a window that is read after the file was looked at with one that is read alone."""
    known = open_trace(path, ReadOptions(tables=SELF_DESCRIPTION))
    part = open_trace(path, ReadOptions(window=window, known=known))
    expected = open_trace(path, ReadOptions(window=window))
    assert (part.recorded, part.span, part.info) == (
        expected.recorded,
        expected.span,
        expected.info,
    )
    for name in TABLES:
        pd.testing.assert_frame_equal(
            part.table(name).to_frame(), expected.table(name).to_frame(), obj=name
        )


@pytest.mark.parametrize("known", [*WRITERS, "packed"])
def test_what_the_file_says_of_itself_may_be_known(known: str, tmp_path: Path) -> None:
    path = written(known, tmp_path)
    check_steps(path)
    for window in windows_of(whole_trace(path)):
        check_known(path, window)


@pytest.mark.traces
@pytest.mark.parametrize("name", DATABASES)
def test_steps_of_real_traces_are_those_of_all_ranges(
    name: str, real_trace: Callable[[str], Path]
) -> None:
    path = shared(name, real_trace)
    check_steps(path)
    check_known(path, windows_of(whole_trace(path))[1])
