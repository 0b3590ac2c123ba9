import numpy as np
import pytest

from traceprof.facts.steps.warmup import count_warmup


@pytest.mark.parametrize(
    ("durations", "expected"),
    [
        ([10, 10, 10, 10, 10, 10], 0),
        ([90, 10, 10, 10, 10, 10], 1),
        ([90, 80, 50, 10, 10, 10, 10, 10, 10], 3),
        # A fast first step is as unlike the rest as a slow one.
        ([1, 10, 10, 10, 10, 10], 1),
        # Within 5 % of the median is never outside, however steady the rest is.
        ([104, 100, 100, 100, 100, 100], 0),
        ([106, 100, 100, 100, 100, 100], 1),
        # A slow step later on is an outlier, not warm-up.
        ([10, 10, 90, 10, 10, 10], 0),
        # At least three steps are kept, though the second is unlike the rest, too.
        ([90, 50, 10, 10], 1),
        ([90, 50, 10], 0),
        ([], 0),
    ],
)
def test_leading_steps_unlike_the_rest_are_warmup(durations: list[int], expected: int) -> None:
    assert count_warmup(np.array(durations, np.int64)) == expected
