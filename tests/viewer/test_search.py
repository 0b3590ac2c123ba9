"""Events by name, as the server of the viewer finds them."""

from __future__ import annotations

import numpy as np

from tests.builders import TraceBuilder
from traceprof.model.timing import TimeWindow
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


def test_kinds_are_searched_alone_and_kernels_know_the_range_that_launched_them() -> None:
    builder = TraceBuilder().range("step", 0, 500).range("b", 10, 90)
    builder.kernel("a", 100, 130, launched_ns=(20, 30)).kernel("b", 200, 210, launched_ns=(95, 99))
    builder.kernel("b", 300, 305)
    trace = builder.build()
    lanes = build_lanes(trace, trace.span)
    search = Search(lanes, NameTotals.of(lanes, every=True))
    every = search.matching(b"")
    kernels, ranges = search.within_kinds(["gpu"]), search.within_kinds(["range"])
    assert (kernels.count(every), kernels.total_ns(every), kernels.count_names(every)) == (3, 45, 2)
    assert (ranges.count(every), ranges.total_ns(every)) == (2, 580)
    assert search.within_kinds(()) is search
    longest = kernels.listed(every, "longest", 9)
    assert [event.start for event in longest] == [100, 200, 300]
    names = [None if n is None else lanes.names[n] for n in search.launched_in(longest)]
    assert names == ["b", "step", None]


def test_bins_with_matches_are_told_by_group() -> None:
    builder = TraceBuilder().range("b", 0, 500)
    builder.kernel("a", 0, 10).kernel("b", 100, 210).kernel("b", 405, 406, stream=20)
    trace = builder.build(span=(0, 1000))
    lanes = build_lanes(trace, trace.span)
    search = Search(lanes, NameTotals.of(lanes, every=True))
    bits = np.packbits([name == "b" for name in lanes.names], bitorder="little").tobytes()
    kernels, wanted = search.within_kinds(["gpu"]), search.matching(bits)
    assert kernels.lit(wanted, TimeWindow(0, 1000), 10) == {0: [1, 2, 4]}
    assert kernels.lit(wanted, TimeWindow(150, 410), 26) == {0: [0, 1, 2, 3, 4, 5, 6, 25]}
    assert kernels.lit(wanted, TimeWindow(500, 900), 4) == {}
    assert search.lit(wanted, TimeWindow(0, 1000), 10)[1] == [0, 1, 2, 3, 4, 5]
