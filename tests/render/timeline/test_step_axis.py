"""The axis that two recordings share: no time is lost or stretched, and steps begin together."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from traceprof.render.timeline.pairing import StepExtent, align_steps

lengths = st.lists(st.integers(1, 50), min_size=1, max_size=6)


def _extent(before: int, steps: list[int], after: int, first_number: int = 0) -> StepExtent:
    edges = np.cumsum([before, *steps])
    numbers = tuple(range(first_number, first_number + len(steps)))
    return StepExtent(0, int(edges[-1]) + after, edges[:-1], edges[1:], numbers)


def test_a_step_takes_as_much_as_the_longer_of_the_two() -> None:
    axis = align_steps([_extent(5, [10, 10], 0), _extent(20, [12, 7], 3)])
    assert axis.labels == ("step 0", "step 1")
    assert (axis.starts, axis.ends) == ((20, 32), (32, 42))
    assert axis.duration_ns == 45
    base, new = axis.clocks
    # What is before the steps ends with them; each step begins at one place in both.
    assert base.starts(np.array([0, 5, 15])).tolist() == [15, 20, 32]
    assert new.starts(np.array([0, 20, 32])).tolist() == [0, 20, 32]
    # What ends with a step ends there, not where the next one begins.
    assert base.ends(np.array([15])).tolist() == [30]
    assert new.ends(np.array([39, 42])).tolist() == [39, 45]


def test_steps_are_matched_by_number_and_else_by_order() -> None:
    axis = align_steps([_extent(0, [10, 10], 0, 4), _extent(0, [10, 10], 0, 5)])
    assert axis.labels == ("step 4", "step 5", "step 6")
    assert axis.step_spans == (((0, 10), (10, 20), None), (None, (0, 10), (10, 20)))
    axis = align_steps([_extent(0, [10], 0, 4), _extent(0, [9, 9], 0, 90)])
    assert axis.labels == ("step 4 | step 90", "– | step 91")


@given(
    st.tuples(st.integers(0, 40), lengths, st.integers(0, 40)),
    st.tuples(st.integers(0, 40), lengths, st.integers(0, 40)),
    st.integers(0, 3),
)
def test_no_time_is_lost_or_stretched(
    one: tuple[int, list[int], int], other: tuple[int, list[int], int], skew: int
) -> None:
    extents = [_extent(*one), _extent(*other, skew)]
    axis = align_steps(extents)
    for extent, clock, spans in zip(extents, axis.clocks, axis.step_spans, strict=True):
        assert clock.lengths_ns.sum() == extent.last_ns - extent.first_ns
        assert (np.diff(clock.axis_ns) >= clock.lengths_ns[:-1]).all()
        assert clock.axis_ns[0] >= 0
        assert clock.axis_ns[-1] + clock.lengths_ns[-1] <= axis.duration_ns
        every = np.arange(extent.first_ns, extent.last_ns)
        assert (np.diff(clock.starts(every)) > 0).all()
        for start, step in zip(axis.starts, spans, strict=True):
            if step is not None:
                assert clock.starts(np.array([step[0]])).tolist() == [start]
