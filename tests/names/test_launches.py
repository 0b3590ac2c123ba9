"""Kernels by their function, and which launch of it each is."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from tests import real_traces
from tests.builders import TraceBuilder
from traceprof.measures.device.ncu import (
    KernelLaunch,
    function_names,
    launch_numbers,
    longest_launch,
)
from traceprof.model.intervals import Intervals
from traceprof.names.parsing import parse_name


def test_launches_are_counted_by_function_and_process_in_the_order_of_launching() -> None:
    trace = (
        TraceBuilder()
        .kernel("void ns::add<float>(int)", 0, 1, correlation=5)
        .kernel("void ns::add<half>(int)", 2, 3, correlation=4)  # launched first, ran second
        .kernel("mul", 4, 5, correlation=6)
        .kernel("void ns::add<float>(int)", 6, 7, correlation=1, process=2)
        .kernel("void ns::add<float>(int)", 8, 9, correlation=9)
        .build()
    )
    assert function_names(trace.kernels).tolist() == ["add", "add", "mul", "add", "add"]
    assert launch_numbers(trace).tolist() == [1, 0, 0, 0, 2]


def test_the_longest_launch_is_found_where_it_starts_inside() -> None:
    trace = (
        TraceBuilder()
        .kernel("void ns::add<float>(int)", 0, 90, correlation=2)
        .kernel("void ns::add<half>(int)", 100, 110, correlation=1)
        .kernel("void ns::add<float>(int)", 200, 210, correlation=3)
        .kernel("void ns::add<float>(int)", 300, 330, correlation=4)
        .build()
    )
    inside = Intervals.single(150, 400)
    found = longest_launch(trace, "void ns::add<float>(int)", inside)
    assert found == KernelLaunch("add", 3, 30)
    assert found.skip == launch_numbers(trace)[3]
    assert longest_launch(trace, "void ns::add<double>(int)", inside) is None


def test_kernels_of_one_launch_are_counted_as_they_ran() -> None:
    trace = (
        TraceBuilder()
        .kernel("a", 0, 1, correlation=5)
        .kernel("a", 2, 3, correlation=5)
        .kernel("a", 1, 2, correlation=5)
        .build()
    )
    assert launch_numbers(trace).tolist() == [0, 1, 2]


@pytest.mark.traces
@pytest.mark.parametrize("name", real_traces.NSYS)
def test_functions_are_the_short_names_of_nsys(
    name: str, real_trace: Callable[[str], Path]
) -> None:
    path = real_trace(name)
    with closing(sqlite3.connect(f"file:{path}?immutable=1", uri=True)) as connection:
        tables = {row[0] for row in connection.execute("SELECT name FROM sqlite_master")}
        if "CUPTI_ACTIVITY_KIND_KERNEL" not in tables:
            return
        rows = connection.execute(
            "SELECT DISTINCT short.value, long.value FROM CUPTI_ACTIVITY_KIND_KERNEL "
            "JOIN StringIds short ON short.id = shortName "
            "JOIN StringIds long ON long.id = demangledName"
        ).fetchall()
    assert [parse_name(long).identifier for _, long in rows] == [short for short, _ in rows]
