"""Windows as one types them, and lengths of steps."""

from __future__ import annotations

import numpy as np
import pytest

from traceprof.model.table import Table
from traceprof.model.timing import Steps, typed_window
from traceprof.units import parse_duration


@pytest.mark.parametrize(
    ("start_ns", "end_ns", "text"),
    [
        (0, 999, "0us..0.999us"),
        (400_000, 600_000, "400us..600us"),
        (2_029_299_785, 2_031_778_568, "2.029299s..2.031779s"),
        (1_200_394_317, 6_288_833_684, "1.2s..6.289s"),
    ],
)
def test_a_window_is_as_short_as_a_thousandth_of_it_allows(
    start_ns: int, end_ns: int, text: str
) -> None:
    assert typed_window(start_ns, end_ns) == text
    start, end = map(parse_duration, text.split(".."))
    assert start <= start_ns
    assert end_ns <= end
    assert end - start <= 1.002 * (end_ns - start_ns) + 2


def test_lengths_of_steps_leave_out_the_recorder_and_begin_before_the_first_work() -> None:
    """Two steps of process 1, the second without known work on a device, and one of process 2."""
    table = Table(
        {
            "process": np.array([1, 1, 2]),
            "start_ns": np.array([0, 100, 0]),
            "next_ns": np.array([100, 180, 50]),
            "recorder_ns": np.array([7, 5, 0]),
            "device_start_ns": np.array([30, 100, 20]),
            "device_end_ns": np.array([130, 180, 60]),
            "on_device": np.array([True, False, True]),
        }
    )
    steps = Steps(table, "steps")
    assert steps.periods_ns.tolist() == [93, 75, 50]
    assert steps.durations_ns.tolist() == [100, 75, 40]
    assert steps.whole_lengths_ns.tolist() == [130, 75, 60]
