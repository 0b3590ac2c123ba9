"""The base: which steps an answer is about, how long one is, and what shares are of."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.builders import TraceBuilder
from tests.measures.steps.test_ledger import BEHIND, loop, recorded_in_part
from tests.running import run
from traceprof.measures.idle.losses import scale_to_steps
from traceprof.measures.steps.base import base_of, base_of_shares, counted_steps
from traceprof.measures.steps.ledger import ledger_of_window
from traceprof.model.activity import PARTS
from traceprof.model.ranks import Ranks
from traceprof.model.timing import TimeWindow
from traceprof.session.selection import select


def default(builder: TraceBuilder) -> Ranks:
    """Return the ranks in their default window."""
    ranks = Ranks.of(builder.build())
    return ranks.within(select(ranks, None).window)


def test_the_step_time_is_the_mean_of_the_usual_steps() -> None:
    # The first is cut; 100, 110, 120 …: no median, no rounding.
    base = base_of(default(loop([100, 100, 110, 120, 100, 105])))
    assert base.lengths_ns.tolist() == [100, 110, 120, 100, 105]
    assert base.step_ns == base.unit_ns == base.profiled_ns == pytest.approx(107)
    assert (base.unit, base.steps_count, base.scale) == ("step", 5, 1)
    assert base.per_s == pytest.approx(1e9 / 107)
    assert base.samples_count == 4


def test_slow_steps_are_gaps_of_the_default_window() -> None:
    ranks = default(loop([100] * 6 + [300] + [100] * 5))
    assert ranks.span == TimeWindow(80, 1_380, ((580, 880),), is_of_steps=True)
    base = base_of(ranks)
    assert (base.unit, base.unit_ns, base.steps_count) == ("step", 100, 10)
    assert base.left_out == {"slow": (1, 300.0)}
    assert counted_steps(ranks, ranks.span).tolist() == [
        kind == "usual" for kind in ledger_of_window(ranks)["kind"].tolist()
    ]


def test_ranks_that_do_not_begin_together_keep_their_first_steps() -> None:
    """The cut step of one rank ends after the first whole step of another one begins."""
    builder = TraceBuilder()
    for process, offset in ((1, 0), (2, -8)):
        for number in range(6):
            at = 100 * number
            builder.step(at, at + 100, number, process=process)
            place = {"process": process, "device": process - 1}
            builder.kernel("gemm", at + 10, at + 80 + offset, launched_ns=(at, at + 1), **place)
    ranks = default(builder)
    assert ranks.span == TimeWindow(72, 580, is_of_steps=True)
    base = base_of(ranks)
    assert (base.unit, base.step_ns, base.steps_count) == ("step", 100, 5)
    assert np.bincount(base.processes).tolist() == [0, 5, 5]


def test_where_a_slow_step_is_in_the_window_shares_are_of_the_window() -> None:
    ranks = Ranks.of(loop([100] * 6 + [300] + [100] * 5).build())
    window = TimeWindow(80, 1_380, is_of_steps=True)
    base = base_of(ranks.within(window))
    assert (base.unit, base.unit_ns) == ("window", 1_300)
    # The step time is still that of the usual steps.
    assert base.step_ns == 100


def test_shares_of_times_are_of_the_window_and_need_no_steps() -> None:
    ranks = Ranks.of(loop([100] * 6).build()).within(TimeWindow(100, 400))
    for base in (base_of(ranks), base_of_shares(ranks)):
        assert (base.unit, base.unit_ns, base.scale) == ("window", 300, 1)
    assert base_of(ranks).step_ns == 100
    assert np.isnan(base_of_shares(ranks).step_ns)


@pytest.mark.parametrize(("behind", "unit"), [(20, "step"), (40, "window")])
def test_steps_must_fill_the_window(behind: int, unit: str) -> None:
    ranks = Ranks.of(loop([100] * 6).build())
    window = TimeWindow(80, 580 + behind, is_of_steps=True)  # steps fill 500 of it
    assert base_of(ranks.within(window)).unit == unit


def test_without_steps_the_base_is_the_window() -> None:
    ranks = Ranks.of(TraceBuilder().kernel("gemm", 0, 10).build(span=(0, 40)))
    base = base_of(ranks)
    assert (base.unit, base.unit_ns, base.steps_count) == ("window", 40, 0)
    assert np.isnan([base.step_ns, base.samples_count]).all()
    assert not base.left_out


def test_steps_that_were_not_profiled_give_the_step_time() -> None:
    builder = recorded_in_part(20, 3, 8)
    base = base_of(default(builder))
    assert base.is_unprofiled
    assert base.lengths_ns.tolist() == [100] * 5
    assert (base.step_ns, base.profiled_ns, base.scale) == (100, 100, 1)


def test_a_step_is_idle_for_what_is_left_beside_its_work() -> None:
    # 90 of 100 ns work; the profiled steps take 150, the others 120.
    base = base_of(default(_with_costs(150, 120)))
    assert (base.step_ns, base.profiled_ns) == (120, 150)
    assert base.scale == pytest.approx(0.8)
    parts = {**dict.fromkeys(PARTS, 0.0), "compute": 90 * 5.0, "idle": 60 * 5.0}
    assert base.whole_ns(parts) == pytest.approx(120 * 5)
    shares = base.shares([parts])
    assert shares["compute"] == pytest.approx(90 / 120)
    assert shares["idle"] == pytest.approx(30 / 120)
    # A step is never shorter than its work.
    assert base.whole_ns({**parts, "compute": 140 * 5.0, "idle": 10 * 5.0}) == 140 * 5


def _with_costs(profiled: int, plain: int) -> TraceBuilder:
    """Return 24 steps that work for 90 ns, of which 6 were profiled, and took longer for that."""
    builder, now = TraceBuilder(), 0
    for number in range(24):
        is_profiled = 3 <= number <= 8
        length = profiled if is_profiled else plain
        builder.step(now, now + length, number)
        if is_profiled:
            launched = (now + length - 95, now + length - 92)
            builder.kernel("gemm", now + length - 90, now + length, launched_ns=launched)
        now += length
    start = 3 * plain
    window = start, start + 6 * profiled
    return builder.range("traceprof.window", *window, domain="traceprof", thread=2)


def test_the_shares_of_breakdown_and_idle_are_of_the_base() -> None:
    ranks = default(_with_costs(150, 120))
    row = run("breakdown", ranks).tables["total"].row(0)
    assert row["compute_ratio"] == pytest.approx(90 / 120)
    assert row["idle_ratio"] == pytest.approx(30 / 120)
    idle = run("idle", ranks)
    assert np.nansum(idle.table["share_ratio"]) == pytest.approx(30 / 120)
    assert idle.tables["devices"]["share_ratio"].tolist() == pytest.approx([30 / 120])


def test_the_samples_of_a_step_are_those_of_all_processes() -> None:
    builder = TraceBuilder()
    for process, size in ((1, 5), (2, 7)):
        for number in range(4):
            at = 100 * number
            builder.step(at, at + 100, number, process=process).batch(at + 1, size, process=process)
    base = base_of(Ranks.of(builder.build()))
    assert base.samples_count == 12
    assert base.steps_count == 4


def test_several_steps_of_one_batch_share_its_samples() -> None:
    builder = TraceBuilder()
    for number in range(7):  # the fourth batch has one step, the others two
        at = 100 * number
        builder.step(at, at + 100, number)
        if number % 2 == 0:
            builder.batch(at + 1, 8)
    assert base_of(Ranks.of(builder.build())).samples_count == 4


lengths = st.lists(st.integers(30, 300), min_size=2, max_size=10)


@settings(deadline=None, max_examples=40)
@given(lengths)
def test_the_mean_lies_between_the_shortest_and_the_longest(own: list[int]) -> None:
    ranks = default(loop(own))
    base, ledger = base_of(ranks), ledger_of_window(ranks)
    if len(base.lengths_ns):
        assert base.lengths_ns.min() <= base.step_ns <= base.lengths_ns.max()
    counted = counted_steps(ranks, ranks.span)
    assert ledger["duration_ns"][counted].tolist() == base.lengths_ns.tolist()
    n_left_out = sum(n for n, _ in base.left_out.values())
    assert counted.sum() + n_left_out == len(ledger)
    if base.unit == "step":
        assert base.unit_ns == base.step_ns


@settings(deadline=None, max_examples=40)
@given(
    lengths,
    st.lists(st.integers(0, 10**6), min_size=1, max_size=6),
    st.booleans(),
)
def test_times_that_are_scaled_add_up_to_whole_steps(
    own: list[int], times: list[int], is_default: bool
) -> None:
    ranks = default(loop(own)) if is_default else Ranks.of(loop(own).build())
    causes = ["", "host", "launch", "", "data", "profiler"][: len(times)]
    ns = np.array(times, np.int64)
    scaled, units = scale_to_steps(ranks, ns, causes)
    assert (scaled >= 0).all()
    base = base_of(ranks)
    if base.unit == "window" or not ns.sum():
        assert scaled.tolist() == times
        return
    assert units == base.steps_count
    # To the nanosecond, and each in its proportion.
    assert scaled.sum() == round(units * base.unit_ns)
    exact = ns * (units * base.unit_ns / ns.sum())
    assert (np.abs(scaled - exact) <= 1).all()


def test_of_unprofiled_steps_only_idle_time_is_scaled_and_the_profiler_is_none() -> None:
    ranks = default(_with_costs(150, 120))
    n = int(base_of(ranks).steps_count)
    # 150 ns a step: 90 work, 40 idle for the host, 20 for the profiler; a plain step is 120.
    scaled, units = scale_to_steps(
        ranks, np.array([90 * n, 40 * n, 20 * n]), ["", "host", "profiler"]
    )
    assert units == n
    assert scaled.tolist() == [90 * n, 30 * n, 0]


def test_nothing_is_counted_twice_where_the_device_ends_before_the_host() -> None:
    ranks = default(loop([100] * 6))
    breakdown = run("breakdown", ranks).tables["total"].row(0)
    assert breakdown["compute_ratio"] == pytest.approx((100 - BEHIND) / 100)
    assert breakdown["idle_ratio"] == pytest.approx(BEHIND / 100)
