"""Whose code called a collective, known once for every window."""

from __future__ import annotations

from tests.measures.collectives.loop import loop
from traceprof.measures.collectives.callers import (
    callers_of_collectives,
    phases_of_collectives,
    steps_of_collectives,
)
from traceprof.measures.collectives.operations import find_collectives
from traceprof.model.timing import TimeWindow


def test_what_is_known_of_the_whole_serves_every_window() -> None:
    trace = loop()
    cut = trace.within(TimeWindow(600, 1500))
    rows = find_collectives(cut)["row"]
    assert rows.tolist() == [1, 2]
    assert callers_of_collectives(cut)[rows].tolist() == ["backward", "layer2"]
    assert steps_of_collectives(cut)[rows].tolist() == [0, 1]
    assert phases_of_collectives(cut) is phases_of_collectives(trace)
