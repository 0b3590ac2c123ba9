"""The file that `traceprof timeline` writes, without a browser."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.builders import TraceBuilder
from tests.real_traces import NSYS
from traceprof.formats import open_trace
from traceprof.render.timeline.lanes import build_lanes
from traceprof.render.timeline.render import render_timeline

DRAWN = ("kernels", "copies", "api_calls", "ranges", "marks", "host_ops", "syncs", "overheads")


def _html() -> str:
    return render_timeline(TraceBuilder().kernel("k", 0, 10).build(), title="t")


def test_the_file_may_run_its_own_scripts_and_load_nothing() -> None:
    html = _html()
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', html)
    assert policy
    assert "default-src 'none'" in policy.group(1)
    script = re.search(r"script-src ([^;]*);", policy.group(1))
    assert script
    assert all(source.startswith("'sha256-") for source in script.group(1).split())
    assert "connect-src" not in policy.group(1)


def test_the_file_names_no_address() -> None:
    assert not re.search(r"https?://|//cdn|src=|href=", _html())


def test_the_same_trace_gives_the_same_bytes() -> None:
    assert _html() == _html()


def test_the_file_without_events_is_small() -> None:
    assert len(_html().encode()) < 2_200_000


@pytest.mark.traces
@pytest.mark.parametrize("name", NSYS)
def test_every_event_of_a_real_trace_is_on_the_page(
    name: str, real_trace: Callable[[str], Path]
) -> None:
    trace = open_trace(real_trace(name))
    lanes = build_lanes(trace, trace.span)
    assert lanes.n_events == sum(
        len(trace.table(table).to_frame()) for table in (*DRAWN, "collectives")
    )
    assert lanes.n_items == lanes.n_events
    for channel in lanes.channels:
        assert (channel.starts[1:] >= channel.ends[:-1]).all()
