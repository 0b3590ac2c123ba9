"""Ways of launching are tied to their kernels, and to none else."""

from __future__ import annotations

from tests.builders import TraceBuilder
from traceprof.model.tables import ABSENT, shapes_of


def test_rows_that_match_are_taken_as_they_stand() -> None:
    trace = (
        TraceBuilder()
        .kernel("a", 0, 5, correlation=1, shape={"grid_x": 3})
        .kernel("b", 5, 9, correlation=2, shape={"grid_x": 4})
        .build()
    )
    assert shapes_of(trace.kernels, trace.kernel_shapes)["grid_x"].tolist() == [3, 4]


def test_a_kernel_without_a_shape_gets_none_of_another() -> None:
    trace = (
        TraceBuilder()
        .kernel("a", 0, 5, correlation=1, shape={"grid_x": 3})
        .kernel("graph", 2, 4, correlation=7)
        .kernel("b", 5, 9, correlation=2, shape={"grid_x": 4})
        .build()
    )
    assert shapes_of(trace.kernels, trace.kernel_shapes)["grid_x"].tolist() == [3, ABSENT, 4]


def test_kernels_that_nothing_tells_apart_get_no_shape() -> None:
    trace = (
        TraceBuilder()
        .kernel("a", 0, 5, shape={"grid_x": 3})
        .kernel("b", 0, 5, shape={"grid_x": 4})
        .kernel("c", 6, 7)
        .build()
    )
    assert shapes_of(trace.kernels, trace.kernel_shapes)["grid_x"].tolist() == [ABSENT] * 3
