"""What one start of a rank did is found in its file."""

import numpy as np
import pytest

from traceprof.session.summarising.started import _work


def spans(*pairs):
    return np.array(pairs, np.int64).reshape(-1, 2)


@pytest.mark.parametrize(
    ("named", "found", "optimizer", "expected"),
    [
        ([(0, 9)], [(0, 5)], [(4, 5)], [(0, 9)]),
        ([], [(0, 5), (5, 9)], [(4, 5), (8, 9)], [(0, 5), (5, 9)]),
        ([], [(0, 5)], [(4, 5), (8, 9), (10, 11)], [(0, 5), (8, 11)]),  # killed in a step
        ([], [], [(4, 5), (8, 9)], [(4, 5), (8, 9)]),
        ([], [], [], []),
    ],
)
def test_steps_are_those_named_or_found_and_the_open_one(named, found, optimizer, expected):
    assert _work(spans(*named), spans(*found), spans(*optimizer)).tolist() == [
        list(pair) for pair in expected
    ]
