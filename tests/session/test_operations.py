"""Operations one by one: their order, which of them, and what is said of each."""

from __future__ import annotations

import pandas as pd
import pytest

from tests.builders import TraceBuilder, plain
from traceprof.errors import NotRecordedError, UsageError
from traceprof.model.ranks import Ranks
from traceprof.model.table import Table
from traceprof.session import operations as module
from traceprof.session.operations import OperationFilter, operations
from traceprof.session.run import run_of

SHAPE = {"grid_x": 2, "grid_y": 1, "grid_z": 1, "block_x": 64, "block_y": 1, "block_z": 1}


def trace() -> TraceBuilder:
    return (
        TraceBuilder()
        .kernel("void gemm<float>()", 100, 160, correlation=3, shape=SHAPE, stream=7)
        .kernel("add", 200, 210, correlation=5, shape=SHAPE | {"context": 4}, stream=9)
        .copy("h2d", 150, 170, n_bytes=1000, src_kind="pinned", dst_kind="device")
        .copy("h2d", 180, 190, n_bytes=10, src_kind="managed", dst_kind="managed")
        .memset(300, 300, n_bytes=8)
        .process(1, rank=2)
    )


def listed(chosen: OperationFilter | None = None, window: str = "all") -> pd.DataFrame:
    run = run_of(Ranks.of(trace().build(span=(50, 400)))).within(window)
    return Table.stacked([*operations(run, chosen).chunks()]).to_frame()


def names(chosen: OperationFilter) -> list[str]:
    return listed(chosen)["name"].tolist()


def test_all_operations_stand_in_the_order_of_their_starts() -> None:
    table = listed()
    assert table["name"].tolist() == [
        "void gemm<float>()",
        "[CUDA memcpy HtoD]",
        "[CUDA Unified Memory memcpy HtoD]",
        "add",
        "[CUDA memset]",
    ]
    assert table["at_ns"].tolist() == [50, 100, 130, 150, 250]
    assert table["duration_ns"].tolist() == [60, 20, 10, 10, 0]
    assert table["rank"].tolist() == [2] * 5
    assert table["grid_x"].fillna(-1).tolist() == [2, -1, -1, 2, -1]
    assert table["context"].fillna(-1).tolist() == [-1, -1, -1, 4, -1]
    assert table["bytes_per_s"].fillna(0).tolist() == [0, 50e9, 1e9, 0, 0]


def test_in_a_window_operations_stand_whole() -> None:
    table = listed(window="@155..@185")
    assert table["duration_ns"].tolist() == [60, 20, 10]


@pytest.mark.parametrize(
    ("chosen", "found"),
    [
        (OperationFilter(name="GEMM"), ["void gemm<float>()"]),
        (OperationFilter(name=r"^\[CUDA mem"), ["[CUDA memcpy HtoD]", "[CUDA memset]"]),
        (OperationFilter(kind="memset"), ["[CUDA memset]"]),
        (OperationFilter(kind="copy", n_rows=1), ["[CUDA memcpy HtoD]"]),
        (OperationFilter(kind="kernel", longest_first=True), ["void gemm<float>()", "add"]),
        (OperationFilter(streams=[9]), ["add"]),
        (OperationFilter(devices=[1]), []),
        (OperationFilter(ranks=[2], min_ns=20), ["void gemm<float>()", "[CUDA memcpy HtoD]"]),
        (OperationFilter(ranks=[0]), []),
        (OperationFilter(max_ns=5), ["[CUDA memset]"]),
    ],
    ids=str,
)
def test_only_those_for_which_all_holds(chosen: OperationFilter, found: list[str]) -> None:
    run = run_of(Ranks.of(trace().build(span=(50, 400)))).within("all")
    frames = list(operations(run, chosen).chunks())
    assert [name for frame in frames for name in frame["name"]] == found


def test_the_longest_come_with_the_innermost_range_that_launched_them() -> None:
    builder = TraceBuilder().range("step", 0, 500).range("linear, seq = 7, op_id = 3", 10, 90)
    builder.kernel("a", 100, 130, launched_ns=(20, 30)).kernel("b", 200, 210, launched_ns=(95, 99))
    builder.kernel("c", 300, 305).copy("h2d", 400, 440, n_bytes=8, launched_ns=(600, 601))
    run = run_of(Ranks.of(builder.build(span=(0, 700))))
    (table,) = operations(run.within("all"), OperationFilter(longest_first=True)).chunks()
    assert plain(table, "name", "range") == [
        ("[CUDA memcpy HtoD]", ""),
        ("a", "linear"),
        ("b", "step"),
        ("c", ""),
    ]
    # Also where the window begins after the launch.
    (table,) = operations(run.within("@95..@305"), OperationFilter(longest_first=True)).chunks()
    assert plain(table, "name", "range") == [("a", "linear"), ("b", "step"), ("c", "")]
    (table,) = operations(run.within("all")).chunks()
    assert "range" not in table or not any(table["range"])


def test_pieces_put_together_are_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = listed()
    monkeypatch.setattr(module, "_CHUNK", 2)
    pd.testing.assert_frame_equal(listed(), whole, check_dtype=False)


def test_launches_say_how_they_are_found_again() -> None:
    run = run_of(Ranks.of(trace().kernel("add", 1, 2, correlation=9).build())).within("all")
    (table,) = operations(run, OperationFilter(kind="kernel", name="add")).launches()
    assert plain(table, "function", "skip") == [("add", 1), ("add", 0)]


def test_a_name_that_is_no_expression_is_refused() -> None:
    with pytest.raises(UsageError, match="not a valid regular expression"):
        names(OperationFilter(name="("))


def test_without_work_of_devices_there_is_nothing_to_list() -> None:
    run = run_of(Ranks.of(TraceBuilder().range("a", 0, 5).build())).within("all")
    with pytest.raises(NotRecordedError, match="no kernels recorded"):
        operations(run)
