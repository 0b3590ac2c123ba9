"""What the server answers for a view, read as the browser reads it."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from tests.builders import TraceBuilder
from traceprof.model.ranks import Ranks
from traceprof.model.timing import TimeWindow
from traceprof.model.trace import Trace
from traceprof.session.run import run_of
from traceprof.viewer.panes import open_pane
from traceprof.viewer.same_name import FoundEvent
from traceprof.viewer.timeline import Timeline, TimelineStore


def _head(data: bytes) -> dict[str, Any]:
    head: dict[str, Any] = json.loads(data[4 : 4 + int.from_bytes(data[:4], "little")])
    return head


def _events(head: dict[str, Any], kind: str) -> int:
    rows = [row for group in head["groups"] if group["kind"] == kind for row in group["rows"]]
    return sum(channel["n"] for row in rows for channel in row["channels"])


def _trace() -> Trace:
    """10,000 kernels of 50 ns, one every 100 ns, each launched; a copy at the end."""
    builder = TraceBuilder()
    for i in range(10_000):
        start = 100 * i
        builder.kernel("gemm", start, start + 50, launched_ns=(start, start + 5))
    return builder.copy("h2d", 990_000, 1_000_000, stream=14, n_bytes=1_000).build()


def test_the_overview_holds_names_and_knows_how_much_it_stands_for() -> None:
    head = _head(TimelineStore(Timeline.of(_trace())).overview)
    assert head["n_events"] == 20_001
    assert "gemm" in head["name_templates"]
    assert head["loaded"][0] <= 0
    assert head["loaded"][1] > head["duration_ns"] == 1_000_000
    assert head["shown"] == [0, 1]


def test_a_view_holds_itself_and_a_quarter_of_it_on_each_side() -> None:
    store = TimelineStore(Timeline.of(_trace()))
    head = _head(store.view(TimeWindow(500_000, 510_000), 1_000, [0, 1]))
    assert head["loaded"] == [497_500, 512_500]
    assert head["bin_ns"] == 0
    assert head["name_templates"] == []
    assert _events(head, "device") == 150
    assert _events(head, "thread") == 150


def test_groups_that_are_not_open_send_only_what_the_charts_need() -> None:
    store = TimelineStore(Timeline.of(_trace()))
    head = _head(store.view(TimeWindow(0, 1_000_000), 100, []))
    assert _events(head, "thread") == 0
    assert _events(head, "device") == 1
    assert [len(group["rows"]) for group in head["groups"]] == [
        len(group.rows) for group in store.lanes.groups
    ]
    states = [c["n"] for group in head["groups"] for c in group["states"]]
    assert states
    assert all(states)


def test_a_wide_view_of_many_events_is_condensed() -> None:
    store = TimelineStore(Timeline.of(_trace()))
    head = _head(store.view(TimeWindow(0, 1_000_000), 200, [0, 1]))
    assert head["bin_ns"] == 4_000
    assert _events(head, "device") == 250 + 1


def test_search_counts_and_finds_in_the_whole_trace() -> None:
    builder = TraceBuilder()
    for i in range(70_000):
        builder.kernel("Needle" if i in (5, 69_000) else "hay", 10 * i, 10 * i + 5)
    pane = open_pane("x", run_of(Ranks.of(builder.build())))
    search = pane.search
    named = [name == "Needle" for name in pane.store.lanes.names]
    is_match = search.matching(np.packbits(named, bitorder="little").tobytes())
    assert search.count(is_match) == 2
    assert search.nearest(is_match, 50, 1) == FoundEvent(0, 0, 690_000, 690_005)
    assert search.nearest(is_match, 690_000, -1) == FoundEvent(0, 0, 50, 55)
    assert search.nearest(is_match, 690_000, 1) is None
    assert search.nearest(is_match, 50, -1) is None
    assert search.nearest(is_match, 0, 1, row=3) is None
