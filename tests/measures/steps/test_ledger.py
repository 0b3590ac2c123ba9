"""The ledger of steps: one row per step, each measured once, and what kind of step it is."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.builders import TraceBuilder
from traceprof.measures.steps.ledger import ledger_of_window, step_ledger
from traceprof.model.ranks import Ranks
from traceprof.model.table import Table
from traceprof.model.timing import TRACEPROF_DOMAIN, TimeWindow

BEHIND = 20
"""By so much the device ends before the host does."""


def loop(lengths: list[int]) -> TraceBuilder:
    """Return steps of four samples whose only kernel begins with them."""
    builder, now = TraceBuilder(), 0
    for number, length in enumerate(lengths):
        end = now + length
        builder.step(now, end, number).batch(now, 4)
        builder.kernel("gemm", now, end - BEHIND, launched_ns=(now, now + 1))
        now = end
    return builder


def ledger_of(builder: TraceBuilder) -> Table:
    return step_ledger(Ranks.of(builder.build()))


def kinds(builder: TraceBuilder) -> list[str]:
    return list(ledger_of(builder)["kind"].tolist())


def test_a_row_has_the_host_and_the_device_side_of_a_step() -> None:
    ledger = ledger_of(loop([100] * 3))
    rows = [row | {"kind": str(row["kind"])} for row in ledger.rows()]
    assert [row["step"] for row in rows] == [0, 1, 2]
    second = rows[1]
    assert (second["start_ns"], second["next_ns"], second["period_ns"]) == (100, 200, 100)
    # From the end of the work of the step before to the end of its own.
    assert (second["device_start_ns"], second["device_end_ns"]) == (80, 180)
    assert (second["duration_ns"], second["samples_count"], second["kind"]) == (100, 4, "usual")
    assert second["is_covered"]
    assert not second["is_unprofiled"]
    # Of the first step the 20 ns are missing that the device ends before the host.
    assert (rows[0]["duration_ns"], rows[0]["kind"]) == (80, "cut by an edge")


def test_cpu_work_after_the_last_step_makes_no_slow_step() -> None:
    """No next step shows whether the CPU work at the end is part of the step."""
    for tail, compute, kind in ((400, 80, "cut by an edge"), (400, 480, "slow"), (0, 80, "usual")):
        builder = loop([100] * 8)
        builder.step(800, 800 + compute + tail, 8)
        builder.kernel("gemm", 800, 800 + compute, launched_ns=(800, 801))
        assert kinds(builder)[1:] == [*["usual"] * 7, kind]


def test_a_long_step_is_slow_and_a_short_one_is_usual_and_fast() -> None:
    lengths = [100] * 4 + [300] + [100] * 4 + [30] + [100] * 4
    ledger = ledger_of(loop(lengths))
    kind = ledger["kind"].tolist()
    assert [place for place, own in enumerate(kind) if own == "slow"] == [4]
    assert np.flatnonzero(ledger["is_fast"]).tolist() == [9]
    assert kind[9] == "usual"
    assert kind.count("usual") == len(lengths) - 2  # the first is cut


def test_a_long_first_step_is_warmup() -> None:
    assert kinds(loop([500] + [100] * 8)) == ["warm-up"] + ["usual"] * 8


def test_a_step_with_an_evaluation_is_named_so() -> None:
    builder, now = TraceBuilder(), 0
    for number in range(12):
        length = 400 if number == 6 else 100
        builder.step(now, now + length, number)
        if number == 6:
            builder.range("validation", now + 60, now + 390)
        now += length
    assert kinds(builder) == ["usual"] * 6 + ["evaluation"] + ["usual"] * 5


def test_a_last_step_on_the_host_that_is_shorter_than_all_others_is_cut() -> None:
    builder = TraceBuilder()
    for number in range(5):
        builder.step(100 * number, 100 * number + 90, number)
    assert kinds(builder) == ["usual"] * 4 + ["cut by an edge"]


def recorded_in_part(n_steps: int, first: int, last: int) -> TraceBuilder:
    """Return steps of which the embedded recorder saw the devices from ``first`` to ``last``."""
    builder = TraceBuilder()
    for number in range(n_steps):
        at = 100 * number
        builder.step(at, at + 100, number)
        if first <= number <= last:
            builder.kernel("gemm", at + 10, at + 100, launched_ns=(at, at + 5))
    span = 100 * first, 100 * last + 100
    return builder.range("traceprof.window", *span, domain=TRACEPROF_DOMAIN, thread=2)


def test_steps_outside_the_windows_of_the_recorder_are_not_covered() -> None:
    ledger = ledger_of(recorded_in_part(20, 3, 8))
    assert np.flatnonzero(ledger["is_covered"]).tolist() == [3, 4, 5, 6, 7, 8]
    unprofiled = np.flatnonzero(ledger["is_unprofiled"]).tolist()
    # The later half of the steps behind it, but for the last, whose next one is not known.
    assert unprofiled == [14, 15, 16, 17, 18]
    assert not (ledger["is_covered"] & ledger["is_unprofiled"]).any()


def test_a_step_without_known_launches_is_covered_where_its_period_was_recorded() -> None:
    builder = TraceBuilder()
    for number in range(6):
        builder.step(100 * number, 100 * number + 100, number)
    builder.kernel("gemm", 200, 390)
    builder.range("traceprof.window", 200, 400, domain=TRACEPROF_DOMAIN, thread=2)
    assert np.flatnonzero(ledger_of(builder)["is_covered"]).tolist() == [2, 3]


def test_ranks_have_their_rows_and_their_own_outliers() -> None:
    ledger = step_ledger(Ranks.of(_two_ranks().build()))
    assert ledger["process"].tolist() == [1] * 8 + [2] * 8
    slow = ledger.take(ledger["kind"] == "slow")
    # 100 ns are usual in the second process, and three times as long as usual in the first.
    pairs = zip(slow["process"].tolist(), slow["step"].tolist(), strict=True)
    assert [*pairs] == [(1, 5), (2, 6)]


def test_a_step_that_an_edge_cuts_in_one_rank_counts_in_none() -> None:
    builder = TraceBuilder()
    for process, behind in ((1, 1), (2, 30)):  # of the first rank hardly anything is missing
        for number in range(4):
            at = 100 * number
            builder.step(at, at + 100, number, process=process)
            place = {"process": process, "device": process - 1}
            builder.kernel("gemm", at + 10, at + 100 - behind, launched_ns=(at, at + 1), **place)
    assert kinds(builder) == ["cut by an edge", *["usual"] * 3] * 2


def _two_ranks() -> TraceBuilder:
    builder = TraceBuilder()
    for process, usual in ((1, 30), (2, 100)):
        now = 0
        for number in range(8):
            length = usual * (3 if (number, process) in ((5, 1), (6, 2)) else 1)
            builder.step(now, now + length, number, process=process)
            now += length
    return builder


@settings(deadline=None, max_examples=30)
@given(st.lists(st.integers(30, 300), min_size=1, max_size=10))
def test_no_length_is_negative_and_device_times_meet(lengths: list[int]) -> None:
    ledger = ledger_of(loop(lengths))
    for name in ("duration_ns", "period_ns", "whole_ns"):
        assert (ledger[name] >= 0).all()
    assert ledger["period_ns"].tolist() == lengths
    # One step ends on the device where the next one begins.
    assert ledger["device_start_ns"][1:].tolist() == ledger["device_end_ns"][:-1].tolist()
    assert (
        ledger["duration_ns"].tolist()
        == (ledger["device_end_ns"] - ledger["device_start_ns"]).tolist()
    )


@settings(deadline=None, max_examples=30)
@given(
    st.lists(st.integers(30, 300), min_size=1, max_size=10),
    st.integers(0, 2_000),
    st.integers(1, 2_000),
)
def test_a_window_has_the_rows_that_lie_in_it_as_they_are_in_the_whole(
    lengths: list[int], start_ns: int, length_ns: int
) -> None:
    ranks = Ranks.of(loop(lengths).build())
    window = TimeWindow(start_ns, start_ns + length_ns)
    whole, own = step_ledger(ranks), ledger_of_window(ranks.within(window))
    starts, ends = whole["device_start_ns"], whole["device_end_ns"]
    inside = (starts >= window.start_ns) & (ends <= window.end_ns)
    assert own["step"].tolist() == whole["step"][inside].tolist()
    for name in ("kind", "duration_ns", "period_ns", "is_covered"):
        assert own[name].tolist() == whole[name][inside].tolist()
