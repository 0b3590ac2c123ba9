"""The first lines of a page: its window, its steps, and why it is called training."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.builders import TraceBuilder
from traceprof.model.ranks import Ranks
from traceprof.model.timing import TimeWindow
from traceprof.render.briefing import briefing_of
from traceprof.session.answer import Document, page
from traceprof.session.run import run_of

S = 1_000_000_000


def _training() -> Document:
    """Four training steps of 1 s that only their phases show."""
    builder = TraceBuilder()
    for at in range(0, 4 * S, S):
        builder.phase("forward", at, at + S // 4).phase("backward", at + S // 4, at + S // 2)
        builder.phase("optimizer", at + S // 2, at + S)
    return page(run_of(Ranks.of(builder.build(span=(0, 60 * S)))))


@pytest.mark.parametrize(
    ("window", "times"),
    [
        (TimeWindow(15 * S, 55 * S), "40.00 s, from 15.00 s to 55.00 s of 60.00 s"),
        (
            TimeWindow(15 * S, 55 * S, ((20 * S, 40 * S),), is_of_steps=True),
            "20.00 s of steps in 15.00–55.00 s of 60.00 s",
        ),
        (
            TimeWindow(S // 2, 55 * S, ((20 * S, 40 * S),)),
            "34.50 s in 500.0 ms–55.00 s of 60.00 s",
        ),
    ],
)
def test_a_window_with_gaps_does_not_last_from_its_start_to_its_end(
    window: TimeWindow, times: str
) -> None:
    document = _training()
    document = replace(document, selection=replace(document.selection, window=window))
    assert briefing_of(document).times == times


def test_phases_say_what_they_are() -> None:
    found = briefing_of(_training())
    assert found.because == "4 backward passes recorded"
    assert found.notes[0].startswith("Steps 0–3, found from recorded phases")
