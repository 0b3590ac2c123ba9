"""The innermost of the spans of a thread, at each instant."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from traceprof.measures.idle import lanes
from traceprof.measures.idle.lanes import innermost_pieces

Spans = list[tuple[int, int]]


def owners(spans: Spans) -> list[tuple[int, int, int]]:
    starts, ends = np.array(spans, np.int64).reshape(-1, 2).T
    pieces = innermost_pieces(starts, ends)
    return [(int(first), int(last), int(row)) for first, last, row in zip(*pieces, strict=True)]


@pytest.fixture(params=[64, 0], ids=["step by step", "in jumps"])
def _rounds(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Follow parents one at a time, which does for most programs, or in jumps."""
    monkeypatch.setattr(lanes, "_MAX_ROUNDS", request.param)


@pytest.mark.usefixtures("_rounds")
def test_where_a_span_ends_the_one_around_it_goes_on() -> None:
    spans = [(0, 100), (10, 40), (20, 30), (22, 25)]
    inner = [(0, 10, 0), (10, 20, 1), (20, 22, 2), (22, 25, 3)]
    outer = [(25, 30, 2), (30, 40, 1), (40, 100, 0)]
    assert owners(spans) == [*inner, *outer]


@pytest.mark.usefixtures("_rounds")
def test_spans_that_end_together_are_left_together() -> None:
    assert owners([(0, 9), (1, 5), (2, 5), (3, 5)]) == [
        (0, 1, 0),
        (1, 2, 1),
        (2, 3, 2),
        (3, 5, 3),
        (5, 9, 0),
    ]


@pytest.mark.usefixtures("_rounds")
def test_between_spans_there_is_no_piece() -> None:
    assert owners([(0, 2), (4, 6), (6, 7)]) == [(0, 2, 0), (4, 6, 1), (6, 7, 2)]
    assert owners([]) == []


@pytest.mark.parametrize("most_rounds", [64, 1, 0])
@given(raw=st.lists(st.tuples(st.integers(0, 20), st.integers(1, 20)), min_size=1, max_size=12))
def test_the_span_that_began_last_is_the_innermost(most_rounds: int, raw: Spans) -> None:
    spans = sorted(((start, start + length) for start, length in raw), key=lambda s: (s[0], -s[1]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lanes, "_MAX_ROUNDS", most_rounds)
        found = owners(spans)
    painted = {at: i for start, end, i in found for at in range(start, end)}
    assert len(painted) == sum(end - start for start, end, _ in found)
    for at in range(41):
        covering = [i for i, (start, end) in enumerate(spans) if start <= at < end]
        assert painted.get(at, -1) == max(covering, default=-1)
