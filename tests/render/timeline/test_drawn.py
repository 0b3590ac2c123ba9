"""Ranks that draw themselves, each its share, against one Trace of all of them."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.builders import TraceBuilder
from tests.workers.conftest import generated  # noqa: F401 (a fixture)
from traceprof.cache import scratch
from traceprof.model import grouping
from traceprof.model.activity import Activity
from traceprof.model.ranks import Ranks
from traceprof.model.tables import TABLES
from traceprof.model.timing import TimeWindow
from traceprof.model.trace import Trace
from traceprof.render.timeline.channels import (
    Channel,
    Lanes,
    NameTotals,
    condense_until,
    items_by_width,
)
from traceprof.render.timeline.drawn import draw_ranks, with_states
from traceprof.render.timeline.events import LineAssigner
from traceprof.render.timeline.lanes import build_lanes, lanes_of_rank
from traceprof.session.options import Opening
from traceprof.session.run import open_run


@pytest.fixture
def ranks(generated: Path) -> Ranks:  # noqa: F811
    """Four ranks, each from a file of its own."""
    return open_run([generated], Opening(is_cached=False, jobs=1)).within("all").of_ranks()


def _told(lanes: Lanes) -> list[dict[str, Any]]:
    """Return everything that lanes hold, with the names themselves."""

    def channel(own: Channel) -> dict[str, Any]:
        columns: dict[str, Any] = {name: own.column(name) for name in own.columns}
        is_single = own.counts is None or own.counts == 1
        columns["names"] = np.where(is_single, np.array(lanes.names, object)[own.names], "")
        told = {name: values.tolist() for name, values in columns.items()}
        return {"category": own.category, **dict(sorted(told.items()))}

    found = [group.described(channel) for group in lanes.groups]
    for state in (state for group in found for state in group["states"]):
        del state["names"]  # they have none
    return found


def test_all_events_are_those_of_one_trace(ranks: Ranks) -> None:
    drawing = draw_ranks(ranks, ranks.span, 1_000_000)
    exact = build_lanes(ranks.merged(), ranks.span)
    assert _told(drawing.lanes) == _told(exact)
    assert drawing.lanes.names == exact.names
    assert (drawing.bin_ns, drawing.merged) == (0, None)


@pytest.mark.parametrize("most", [8_000, 4_000, 1_000])
def test_few_items_are_those_of_one_trace(ranks: Ranks, most: int) -> None:
    drawing = draw_ranks(ranks, ranks.span, most)
    whole = with_states(build_lanes(ranks.merged(), ranks.span), ranks.span.duration_ns)
    few, bin_ns = condense_until(whole, most)
    assert whole.n_items > most >= few.n_items
    assert drawing.bin_ns == bin_ns
    assert _told(drawing.lanes) == _told(few)
    gone = NameTotals.of(whole).minus(NameTotals.of(few))
    assert drawing.merged is not None
    assert _by_name(drawing.lanes, drawing.merged) == _by_name(few, gone)


def _by_name(lanes: Lanes, totals: NameTotals) -> dict[str, tuple[int, int]]:
    pairs = zip(totals.counts.tolist(), totals.times_ns.tolist(), strict=True)
    return {name: pair for name, pair in zip(lanes.names, pairs, strict=True) if any(pair)}


def test_a_rank_with_little_leaves_its_share_to_the_others(ranks: Ranks) -> None:
    """One rank alone would have to be condensed to half of what both may have."""
    first, second = ranks.parts[:2]
    little = replace(
        second,
        **{name: second.table(name).head(9) for name in TABLES if TABLES[name].has_times},
    )
    both = Ranks((first, little), ranks.info)
    n_items = build_lanes(first, ranks.span).n_items + build_lanes(little, ranks.span).n_items
    drawing = draw_ranks(both, ranks.span, n_items)
    assert drawing.bin_ns == 0
    assert drawing.lanes.n_items == n_items


def test_what_is_drawn_of_fewer_items_is_what_would_have_been_drawn_at_once(ranks: Ranks) -> None:
    once = draw_ranks(ranks, ranks.span, 1_000)
    twice = draw_ranks(ranks, ranks.span, 8_000).limited_to(1_000, ranks.span.duration_ns)
    of_all = draw_ranks(ranks, ranks.span, 10**6).limited_to(1_000, ranks.span.duration_ns)
    for other in (twice, of_all):
        assert other.bin_ns == once.bin_ns
        assert _told(other.lanes) == _told(once.lanes)
        assert once.merged is not None
        assert other.merged is not None
        assert _by_name(other.lanes, other.merged) == _by_name(once.lanes, once.merged)


_KINDS = (Activity.GEMM, Activity.COMMUNICATION, Activity.MEMORY, "h2d", "range", "operator")
_EVENTS = st.lists(
    st.tuples(st.sampled_from(_KINDS), st.integers(0, 60), st.integers(0, 12), st.integers(0, 2)),
    min_size=1,
    max_size=30,
)


def _trace(events: list[tuple[Activity | str, int, int, int]]) -> Trace:
    """Return a trace of kernels and copies of three streams, ranges and operators of three threads.

    Times are a third of the narrowest bin, and longer.
    """
    builder = TraceBuilder()
    for place, (kind, start, length, whose) in enumerate(events):
        times = (400 * start, 400 * (start + length))
        if isinstance(kind, Activity):
            builder.kernel(f"k{place % 3}", *times, stream=whose, activity=kind)
        elif kind == "h2d":
            builder.copy("h2d", *times, stream=whose, n_bytes=place)
        elif kind == "range":
            builder.range(f"r{place % 4}", *times, thread=whose, kind="start_end")
        else:
            builder.host_op(f"op{place}", *times, thread=whose)
    return builder.build(span=(0, 30_000))


@given(_EVENTS, st.integers(1, 4), st.integers(0, 30))
def test_pieces_of_long_tables_are_drawn_as_all_at_once(
    events: list[tuple[Activity | str, int, int, int]], n_at_once: int, most: int
) -> None:
    exact = TimeWindow(8_000, 10_000)

    def told() -> list[Any]:
        ranks = Ranks.of(_trace(events))
        drawing = draw_ranks(ranks, ranks.span, most, exact)
        whole = with_states(build_lanes(ranks.merged(), ranks.span), ranks.span.duration_ns)
        lanes = (drawing.lanes, whole)
        totals = None if drawing.merged is None else _by_name(drawing.lanes, drawing.merged)
        (trace,) = ranks.parts
        n_items = items_by_width(lanes_of_rank(trace, ranks.span, has_hosts=False).lanes, exact)
        return [*map(_told, lanes), *(own.names for own in lanes), drawing.bin_ns, totals, n_items]

    expected = told()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(grouping, "_PIECE_ROWS", n_at_once)
        patch.setattr(scratch, "MIN_DISK_BYTES", 1)
        patch.setattr(scratch, "MAX_KEPT_BYTES", 0)
        assert told() == expected


@given(_EVENTS)
def test_an_event_is_on_the_first_line_that_is_free(
    events: list[tuple[Activity | str, int, int, int]],
) -> None:
    spans = sorted(((start, start + length) for _, start, length, _ in events), key=_longest_first)
    busy: list[int] = []  # until when each line is
    expected = []
    for start, end in spans:
        free = (line for line, until in enumerate(busy) if until <= start)
        line = next(free, len(busy))
        busy[line : line + 1] = [end]
        expected.append(line)
    starts, ends = np.array(spans, np.int64).T
    assert LineAssigner().of(starts, ends).tolist() == expected


def test_events_that_overlap_without_nesting_take_the_first_line_that_is_free() -> None:
    starts, ends = np.array([(0, 3), (1, 3), (2, 5), (4, 7)], np.int64).T
    assert LineAssigner().of(starts, ends).tolist() == [0, 1, 2, 0]
    # Events without a length lie one behind the other.
    starts, ends = np.array([(0, 9), (3, 3), (3, 3)], np.int64).T
    assert LineAssigner().of(starts, ends).tolist() == [0, 1, 1]


def _longest_first(span: tuple[int, int]) -> tuple[int, int]:
    return span[0], -span[1]
