"""Ranges inside one another: the paths that take the longest, and how many are left out."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.builders import TraceBuilder
from tests.running import run
from traceprof.measures.host import tree
from traceprof.model.trace import Trace

WORK = st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 3)), min_size=1, max_size=12)


def _trace(work: list[tuple[str, int]]) -> Trace:
    """Return ranges of 100 ns, each with one inside, that launch kernels of so many ns."""
    builder = TraceBuilder()
    for place, (name, length) in enumerate(work):
        start = 100 * place
        builder.range(name, start, start + 90).range(f"in {place % 4}", start + 10, start + 80)
        if length:
            launched = (start + 20, start + 30)
            builder.kernel("k", start + 40, start + 40 + length, launched_ns=launched)
    return builder.build()


@given(WORK, st.integers(1, 6))
def test_of_one_rank_the_longest_are_told_and_the_others_counted(
    work: list[tuple[str, int]], most: int
) -> None:
    whole = run("tree", _trace(work))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tree, "_MAX_PATHS", most)
        found = run("tree", _trace(work))
    assert found.table.rows() == whole.table.head(most).rows()
    assert found.scalars["left_out_count"] == max(0, len(whole.table) - most)


def test_a_path_has_the_names_around_it() -> None:
    table = run("tree", _trace([("a", 2), ("b", 3)])).table
    assert table["path"].tolist() == ["b", "b › in 1", "a", "a › in 0"]
    assert table["name"].tolist() == ["b", "in 1", "a", "in 0"]
    assert table["depth"].tolist() == [0, 1, 0, 1]
    assert table["device_ns"].tolist() == [3, 3, 2, 2]
    assert table["host_ns"].tolist() == [90, 70, 90, 70]


def test_a_level_of_one_path_below_many_is_counted_on_from_these() -> None:
    builder = TraceBuilder()
    for place in range(200):
        builder.range(f"layer {chr(200 + place)}", 100 * place, 100 * place + 90)
    builder.range("inside", 10, 80)
    table = run("tree", builder.build()).table
    assert len(table) == 201
    assert table["path"][table["depth"] == 1].tolist() == [f"layer {chr(200)} › inside"]
