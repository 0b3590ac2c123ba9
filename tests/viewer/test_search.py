"""Events by name, as the server of the viewer finds them."""

from __future__ import annotations

import numpy as np

from tests.builders import TraceBuilder
from traceprof.render.timeline.channels import NameTotals
from traceprof.render.timeline.lanes import build_lanes
from traceprof.viewer.panes import Search


def _search() -> tuple[Search, bytes]:
    """Return a search of six kernels on two streams, and the bits of the name "b"."""
    builder = TraceBuilder()
    for i, name in enumerate("abab"):
        builder.kernel(name, i * 100, i * 100 + 10 + i)
    builder.kernel("b", 50, 90, stream=20).kernel("c", 500, 510, stream=20)
    trace = builder.build()
    lanes = build_lanes(trace, trace.span)
    bits = np.packbits([name == "b" for name in lanes.names], bitorder="little")
    return Search(lanes, NameTotals.of(lanes, every=True)), bits.tobytes()


def test_events_of_names_are_counted_and_summed() -> None:
    search, bits = _search()
    wanted = search.matching(bits)
    assert (search.count(wanted), search.total_ns(wanted)) == (3, 11 + 13 + 40)
    assert search.count_before(wanted, 100) == 1
    assert search.count(search.matching(b"")) == 6


def test_the_longest_or_the_first_are_listed() -> None:
    search, bits = _search()
    wanted = search.matching(bits)
    assert [e.start for e in search.listed(wanted, "longest", 2)] == [50, 300]
    assert [e.start for e in search.listed(wanted, "first", 9)] == [50, 100, 300]


def test_more_bits_than_names_are_those_of_steps_and_left_out() -> None:
    search, _ = _search()
    assert search.count(search.matching(b"\xff" * 9)) == 6
