"""Collectives of several ranks, matched by number, order, peer; sequences lined up."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.builders import TraceBuilder, plain
from tests.measures.generated_run import MS, Clock, Plan, make_ranks_of
from tests.measures.ranks.two_ranks import two_ranks
from tests.running import run
from traceprof.measures.collectives.communicators import line_up
from traceprof.measures.collectives.matches import find_matches
from traceprof.model.placement import retime
from traceprof.model.ranks import Ranks
from traceprof.model.timing import ClockCorrection, TimeWindow


def test_the_shortest_of_the_ranks_is_the_time_without_waiting() -> None:
    (kind,) = run("collectives", two_ranks()).table.to_frame().to_dict("records")
    # What the first collective holds is the skew of the starts, and not waiting.
    assert (kind["count"], kind["total_ns"], kind["waited_ns"]) == (2, 140, 0)
    assert kind["algbw_bytes_per_s"] == pytest.approx(25e9)


def test_a_match_belongs_to_the_window_in_which_its_last_rank_starts() -> None:
    ranks = Ranks.of(two_ranks())
    assert len(find_matches(ranks.within(TimeWindow(0, 150))).table) == 0
    assert len(find_matches(ranks.within(TimeWindow(150, 300))).table) == 1


def test_sequence_numbers_decide_where_there_are_any() -> None:
    builder = TraceBuilder()
    for process, sequences in ((1, (4, 5, 6)), (2, (5, 6, 7))):
        for place, sequence in enumerate(sequences):
            start = 100 * place
            builder.collective(
                "all_reduce", start, start + 50, process=process, backend="gloo", sequence=sequence
            )
    rows = find_matches(Ranks.of(builder.build())).rows.to_frame()
    known = rows.loc[rows["match"] >= 0, ["process", "sequence"]]
    assert sorted(known.itertuples(index=False, name=None)) == [(1, 5), (1, 6), (2, 5), (2, 6)]


def test_communicators_and_operations_are_kept_apart() -> None:
    builder = TraceBuilder()
    for process in (1, 2):
        for place, (op, group) in enumerate([("all_reduce", "a"), ("all_reduce", "b")]):
            start = 100 * (place if process == 1 else 1 - place)
            builder.collective(
                op, start, start + 50, process=process, backend="gloo", group=group, n_bytes=8
            )
    table = find_matches(Ranks.of(builder.build())).table
    assert sorted(table["group"]) == ["a", "b"]
    assert table["members"].tolist() == [2, 2]


def test_sends_are_matched_with_receives_in_a_communicator_of_two() -> None:
    builder = TraceBuilder()
    # 1 sends twice and receives once; 2 receives in between and has another order.
    for process, op, start in (
        (1, "send", 0),
        (1, "send", 100),
        (1, "recv", 200),
        (2, "recv", 10),
        (2, "send", 150),
        (2, "recv", 190),
    ):
        more = {"process": process, "backend": "gloo", "group_size": 2, "n_bytes": 1000}
        builder.collective(op, start, 300 + start // 100, sequence=start, **more)
    matches = find_matches(Ranks.of(builder.build()))
    pairs = matches.rows.to_frame().groupby("match")["start_ns"].apply(sorted).tolist()
    assert sorted(pairs) == [[0, 10], [100, 190], [150, 200]]
    assert set(matches.table.to_frame()["op"]) == {"send"}


def test_whom_a_send_of_a_larger_group_goes_to_is_not_guessed() -> None:
    builder = TraceBuilder()
    for process, op in ((1, "send"), (2, "recv")):
        builder.collective(op, 0, 50, process=process, backend="gloo", group_size=4)
    assert find_matches(Ranks.of(builder.build())).table.empty


def test_more_ranks_than_the_communicator_has_are_no_match() -> None:
    builder = TraceBuilder()
    for process in (1, 2, 3, 4):
        builder.collective("all_reduce", 0, 50, process=process, backend="gloo", group_size=2)
    matches = find_matches(Ranks.of(builder.build()))
    assert matches.table.to_frame().empty
    assert (matches.rows["match"] < 0).all()


def test_ranks_that_began_to_record_later_are_lined_up() -> None:
    ranks = make_ranks_of(Plan(first_step={2: 3}, clocks=[Clock(n * 7 * MS) for n in range(4)]))
    table = find_matches(ranks).table.to_frame().sort_values("last_start_ns")
    assert table["members"].tolist() == [3, 3, 3, 4, 4, 4, 4, 4, 4, 4]


@given(
    st.lists(st.integers(1, 10**6), min_size=6, max_size=40),
    st.integers(-3, 3),
    st.integers(-(10**7), 10**7),
)
def test_a_shift_is_found_whatever_the_clocks_show(
    pauses: list[int], shift: int, offset: int
) -> None:
    # Irregular pauses of at least 20 ms, so that no wrong shift looks steadier than the right one.
    ends = np.cumsum(np.array(pauses) ** 2 % 999_983 + 20_000_000 + 10**6 * np.arange(len(pauses)))
    sizes = np.arange(len(ends))
    cut = slice(max(0, shift), len(ends) + min(0, shift))
    other = (ends[cut] + offset, sizes[cut])
    assert line_up((ends, sizes), other).shift == max(0, shift)


@pytest.mark.parametrize("missing", [0, 3])
def test_clocks_that_have_nothing_in_common_are_lined_up(missing: int) -> None:
    # Steps of 100 ms, steady to 50 µs; ends agree to 2 µs; the clocks are an hour apart.
    random = np.random.default_rng(3)
    ends = np.cumsum(100 * MS + random.integers(-50_000, 50_000, 60))
    sizes = np.ones(60, np.int64)
    other = ends[missing:] + 3600 * 1000 * MS + random.integers(-2_000, 2_000, 60 - missing)
    assert line_up((ends, sizes), (other, sizes[missing:])).shift == missing


def test_a_correction_moves_what_its_process_did_and_nothing_else() -> None:
    trace = two_ranks()
    moved = retime(trace, {2: ClockCorrection(offset_ns=60)})
    assert plain(moved.kernels.to_frame(), "start_ns", "end_ns") == [(100, 200), (100, 140)]
    assert plain(moved.collectives.to_frame(), "start_ns", "process") == [(20, 2), (50, 1)]
    assert moved.span == trace.span


def test_a_run_keeps_its_order_of_ranks() -> None:
    members = find_matches(make_ranks_of(Plan(n_steps=1))).members
    assert [member.rank for member in members] == [0, 1, 2, 3]
