"""Idle time after a call that blocked the host, which is a consequence of the call."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from traceprof.measures.idle.losses import _late_after
from traceprof.model.intervals import Intervals

Spans = list[tuple[int, int]]


def late(idle: Spans, calls: Spans, gaps: Spans, slack_ns: int = 0) -> Spans:
    """Return the spans of ``idle`` that follow from ``calls``, of a device idle in ``gaps``."""
    times, of_calls = (Intervals.union_of(*_bounds(spans)) for spans in (idle, calls))
    found = _late_after(times, of_calls, _bounds(gaps), slack_ns)
    return [(int(start), int(end)) for start, end in zip(found.starts, found.ends, strict=True)]


def _bounds(spans: Spans) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    starts, ends = np.array(spans, np.int64).reshape(-1, 2).T
    return starts, ends


def test_after_a_call_at_most_the_busy_time_in_it_is_late() -> None:
    """The device worked in the first 60 of a call of 100: of the idle 30 and 60 after it, 60."""
    idle, gaps = [(100, 130), (140, 200)], [(60, 130), (140, 200)]
    assert late(idle, [(0, 100)], gaps) == [(100, 130), (140, 170)]


def test_idle_time_follows_from_the_last_call_before_it_alone() -> None:
    """10 after the first call, of 100, and 20 after the second, of 20 are late."""
    idle, calls = [(-5, 0), (100, 110), (220, 250)], [(10, 100), (200, 220)]
    gaps = [(-5, 0), (100, 110), (220, 250)]
    assert late(idle, calls, gaps) == [(100, 110), (220, 240)]


@pytest.mark.parametrize(("slack_ns", "found"), [(0, []), (1, [(101, 120)])])
def test_a_device_that_was_not_out_of_work_was_not_held_up(slack_ns: int, found: Spans) -> None:
    """It ran 1 longer than the call."""
    assert late([(101, 120)], [(0, 100)], [(101, 120)], slack_ns) == found
