import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from traceprof.measures.steps.steadiness import count_first_iterations, count_warmup


@pytest.mark.parametrize(
    ("durations", "expected"),
    [
        ([10, 10, 10, 10, 10, 10], 0),
        ([90, 10, 10, 10, 10, 10], 1),
        ([90, 80, 50, 10, 10, 10, 10, 10, 10], 3),
        # A fast first step is no warm-up.
        ([1, 10, 10, 10, 10, 10], 0),
        # Within 5% of the median is never outside, however steady the rest is.
        ([104, 100, 100, 100, 100, 100], 0),
        ([106, 100, 100, 100, 100, 100], 1),
        # A slow step later on is an outlier, not warm-up.
        ([10, 10, 90, 10, 10, 10], 0),
        ([90, 50, 10, 10], 2),
        ([497, 157, 156], 1),
        # Of two the rest tells little: the first is warm-up where it is longer by half.
        ([14, 10, 10], 0),
        ([16, 10, 10], 1),
        # They are unlike each other.
        ([90, 50, 10], 0),
        # At least two steps are kept, though the second is unlike the rest, too.
        ([90, 80, 10], 0),
        ([90, 10], 0),
        ([], 0),
    ],
)
def test_leading_steps_slower_than_the_rest_are_warmup(durations: list[int], expected: int) -> None:
    assert count_warmup(np.array(durations, np.int64)) == expected


@given(st.lists(st.integers(1, 60) | st.integers(1, 10**15), max_size=24))
def test_warmup_is_what_its_definition_says(durations: list[int]) -> None:
    values = np.array(durations, np.float64)
    expected = 0
    while len(values) - expected > max(2, len(values) / 2):
        rest = values[expected + 1 :]
        median = float(np.median(rest))
        spread = 3 * 1.4826 * float(np.median(np.abs(rest - median)))
        if values[expected] - median <= max(spread, (0.05 if len(rest) > 2 else 0.5) * median):
            break
        expected += 1
    assert count_warmup(np.array(durations, np.int64)) == expected


@pytest.mark.parametrize(
    ("durations", "expected"),
    [
        ([81, 7, 7, 6, 7, 8, 7], 1),
        ([81, 30, 7, 7, 6, 7, 8, 7], 2),
        # Warm-up that is not twice as long is a turn of the pattern as others.
        ([12, 7, 7, 6, 7, 8, 7], 0),
        ([81, 12, 7, 7, 7, 7, 7, 7, 7], 1),
        ([7, 7, 81, 7, 7, 7], 0),
        ([7], 0),
    ],
)
def test_turns_of_a_pattern_that_load_kernels_are_left_out(
    durations: list[int], expected: int
) -> None:
    assert count_first_iterations(np.array(durations)) == expected
