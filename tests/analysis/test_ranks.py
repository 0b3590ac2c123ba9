"""Several ranks: collectives matched, clocks aligned, waiting and stragglers found."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.analysis.generated_run import MS, Clock, Plan, make_run, make_trace_of
from tests.builders import TraceBuilder, plain
from tests.requirements import ROOT
from traceprof.analysis.communication.collectives import measure_collectives
from traceprof.facts.collectives.matches import find_matches
from traceprof.facts.collectives.sequences import find_shift
from traceprof.analysis.device.breakdown import measure_breakdown
from traceprof.analysis.ranks.alignment import align_clocks, measure_alignment
from traceprof.facts.ranks.others import beyond_others
from traceprof.analysis.ranks.rank_steps import measure_rank_steps
from traceprof.analysis.ranks.ranks import measure_ranks
from traceprof.facts.ranks.robust_line import fit_line
from traceprof.analysis.ranks.shared import measure_shared
from traceprof.analysis.ranks.stragglers import measure_stragglers
from traceprof.formats.runs.files import open_run
from traceprof.model.merge import merge_run
from traceprof.model.retime import ClockCorrection, retime
from traceprof.model.trace import Trace
from traceprof.model.window import TimeWindow


def two_ranks(**second: int) -> Trace:
    """An all-reduce of 1000 bytes: rank 0 comes at 100, rank 1 at 160, both end at 200."""
    return (
        TraceBuilder()
        .process(1, rank=0)
        .process(2, rank=1)
        .collective("all_reduce", 50, 60, n_bytes=1000, correlation=1, process=1)
        .collective("all_reduce", 80, 90, n_bytes=1000, correlation=1, process=2)
        .kernel("ncclDevKernel_AllReduce", 100, 200, correlation=1, process=1, device=0)
        .kernel("ncclDevKernel_AllReduce", 160, 200, correlation=1, process=2, device=1)
        .build(span=(0, 1000))
    )


def test_the_shortest_of_the_ranks_is_the_time_without_waiting() -> None:
    trace = two_ranks()
    (row,) = measure_shared(trace).to_frame().to_dict("records")
    assert (row["op"], row["ranks"], row["duration_ns"]) == ("all_reduce", 2, 40)
    assert (row["waited_ns"], row["spread_ns"], row["last"]) == (60, 0, "rank 1")
    assert row["busbw_bytes_per_s"] == pytest.approx(25e9)
    (kind,) = measure_collectives(trace).classes
    assert (kind.count, kind.total_ns, kind.waited_ns) == (2, 140, 60)
    assert kind.algbw_bytes_per_s == pytest.approx(25e9)


def test_a_match_belongs_to_the_window_in_which_its_last_rank_starts() -> None:
    trace = two_ranks()
    assert len(find_matches(trace.within(TimeWindow(0, 150))).table) == 0
    assert len(find_matches(trace.within(TimeWindow(150, 300))).table) == 1


def test_sequence_numbers_decide_where_there_are_any() -> None:
    builder = TraceBuilder()
    for process, sequences in ((1, (4, 5, 6)), (2, (5, 6, 7))):
        for place, sequence in enumerate(sequences):
            start = 100 * place
            builder.collective(
                "all_reduce", start, start + 50, process=process, backend="gloo", sequence=sequence
            )
    rows = find_matches(builder.build()).rows
    known = rows.loc[rows["match"] >= 0, ["process", "sequence"]]
    assert sorted(known.itertuples(index=False, name=None)) == [(1, 5), (1, 6), (2, 5), (2, 6)]


def test_an_uneven_all_to_all_has_the_mean_of_its_ranks_and_an_imbalance() -> None:
    builder = TraceBuilder()
    for process, n_bytes in ((1, 100), (2, 500)):
        more = {"process": process, "n_bytes": n_bytes, "backend": "gloo", "sequence": 1}
        builder.collective("all_to_all_v", 0, 100, **more)
        builder.collective("all_to_all", 200, 300, **{**more, "n_bytes": 100})
    table = measure_shared(builder.build()).to_frame()
    assert table["size_bytes"].tolist() == [300, 100]
    assert table["imbalance"].tolist() == pytest.approx([500 / 300, np.nan], nan_ok=True)
    assert table["algbw_bytes_per_s"].tolist() == pytest.approx([3e9, 1e9])
    assert np.isnan(table["busbw_bytes_per_s"].iloc[0])


def test_communicators_and_operations_are_kept_apart() -> None:
    builder = TraceBuilder()
    for process in (1, 2):
        for place, (op, group) in enumerate([("all_reduce", "a"), ("all_reduce", "b")]):
            start = 100 * (place if process == 1 else 1 - place)
            builder.collective(
                op, start, start + 50, process=process, backend="gloo", group=group, n_bytes=8
            )
    table = find_matches(builder.build()).table
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
    matches = find_matches(builder.build())
    pairs = matches.rows.groupby("match")["start_ns"].apply(sorted).tolist()
    assert sorted(pairs) == [[0, 10], [100, 190], [150, 200]]
    assert set(matches.table["op"]) == {"send"}


def test_waiting_in_a_pipeline_makes_no_straggler() -> None:
    builder = TraceBuilder()
    for start in range(0, 1000, 100):
        more = {"backend": "gloo", "group_size": 2}
        builder.collective("recv", start, start + 90, process=2, **more)
        builder.collective("send", start + 80, start + 90, process=1, **more)
    assert measure_stragglers(builder.build()).ranks == ()


def test_whom_a_send_of_a_larger_group_goes_to_is_not_guessed() -> None:
    builder = TraceBuilder()
    for process, op in ((1, "send"), (2, "recv")):
        builder.collective(op, 0, 50, process=process, backend="gloo", group_size=4)
    assert find_matches(builder.build()).table.empty


def test_more_ranks_than_the_communicator_has_are_no_match() -> None:
    builder = TraceBuilder()
    for process in (1, 2, 3, 4):
        builder.collective("all_reduce", 0, 50, process=process, backend="gloo", group_size=2)
    matches = find_matches(builder.build())
    assert matches.table.empty
    assert (matches.rows["match"] < 0).all()


def test_ranks_that_began_to_record_later_are_lined_up() -> None:
    trace = make_trace_of(Plan(first_step={2: 3}, clocks=[Clock(n * 7 * MS) for n in range(4)]))
    table = find_matches(trace).table.sort_values("last_start_ns")
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
    assert find_shift((ends, sizes), other) == max(0, shift)


@pytest.mark.parametrize("missing", [0, 3])
def test_clocks_that_have_nothing_in_common_are_lined_up(missing: int) -> None:
    # Steps of 100 ms, steady to 50 µs; ends agree to 2 µs; the clocks are an hour apart.
    random = np.random.default_rng(3)
    ends = np.cumsum(100 * MS + random.integers(-50_000, 50_000, 60))
    sizes = np.ones(60, np.int64)
    other = ends[missing:] + 3600 * 1000 * MS + random.integers(-2_000, 2_000, 60 - missing)
    assert find_shift((ends, sizes), (other, sizes[missing:])) == missing


@pytest.mark.parametrize("jitter_ns", [0, 20_000])
def test_clocks_of_hosts_are_found_within_the_jitter(jitter_ns: int) -> None:
    clocks = [Clock(), Clock(10 * MS, 20.0), Clock(-10 * MS, -20.0), Clock(3 * MS)]
    plan = Plan(n_steps=100, clocks=clocks, hosts=["a", "b", "c", "d"], jitter_ns=jitter_ns)
    trace = make_trace_of(plan)
    found = measure_alignment(trace)
    for clock, row in zip(clocks, found.clocks, strict=True):
        assert row.offset_ns is not None
        assert row.drift_ppm is not None
        middle = found.corrections[row.process].at_ns
        shown = clock.offset_ns + clock.drift_ppm * 1e-6 * middle
        assert abs(row.offset_ns - shown) <= jitter_ns + 300
        assert abs(row.drift_ppm - clock.drift_ppm) <= 0.1 + jitter_ns * 1e-4
        assert row.residual_ns is not None
        assert row.residual_ns <= 2 * jitter_ns + 2
    table = find_matches(align_clocks(trace)).table
    assert table["spread_ns"].max() <= 4 * jitter_ns + 600


def test_ranks_of_one_host_have_one_clock() -> None:
    clocks = [Clock(), Clock(), Clock(5 * MS), Clock(5 * MS)]
    trace = make_trace_of(Plan(clocks=clocks, hosts=["a", "a", "b", "b"]))
    offsets = [clock.offset_ns for clock in measure_alignment(trace).clocks]
    assert offsets == [0, 0, 5 * MS, 5 * MS]


def test_clocks_are_tied_over_others_and_what_is_loose_is_named() -> None:
    builder = TraceBuilder()
    for process in range(1, 6):
        builder.process(process, rank=process - 1)
    for group, pair, skew in (("ab", (1, 2), 100), ("bc", (2, 3), 1000), ("d", (4,), 0)):
        for place, process in enumerate(pair):
            ahead = skew * place + (100 if process in (2, 3) and group == "bc" else 0)
            builder.collective(
                "all_reduce", ahead, 500 + ahead, process=process, backend="gloo", group=group
            )
    found = measure_alignment(builder.build())
    assert [clock.offset_ns for clock in found.clocks] == [0, 100, 1100, None, None]
    assert any("3, 4 are not tied" in note for note in found.notes)


def test_a_correction_moves_what_its_process_did_and_nothing_else() -> None:
    trace = two_ranks()
    moved = retime(trace, {2: ClockCorrection(offset_ns=60)})
    assert plain(moved.kernels, "start_ns", "end_ns") == [(100, 200), (100, 140)]
    assert plain(moved.collectives, "start_ns", "process") == [(20, 2), (50, 1)]
    assert moved.span == trace.span


def test_a_line_is_not_drawn_through_scatter_nor_spoilt_by_outliers() -> None:
    x = np.arange(100, dtype=np.float64)
    noise = np.random.default_rng(1).normal(0, 1, 100)
    assert fit_line(x, 5 + noise).slope == 0
    spoilt = 5 + 2 * x + np.where(x % 5 == 0, 1e6, 0)
    line = fit_line(x, spoilt)
    assert (line.level, line.slope) == (pytest.approx(5), pytest.approx(2))


@pytest.mark.parametrize("on_gpu", [True, False])
@pytest.mark.parametrize("phase", ["forward", "backward"])
def test_a_planted_straggler_is_named_with_its_phase(phase: str, on_gpu: bool) -> None:
    trace = make_trace_of(
        Plan(extra_ns={(3, phase): 40 * MS}, since_step=4, on_gpu=on_gpu, jitter_ns=1000)
    )
    result = measure_stragglers(trace)
    first, *others = result.ranks
    assert (first.rank, first.is_straggler, first.phase) == (3, True, phase)
    assert not any(rank.is_straggler for rank in others)
    assert first.cost_ns == pytest.approx(6 * 40 * MS, rel=0.01)
    assert first.excess_ns == pytest.approx(6 * 40 * MS, rel=0.01)
    # Step 4 begins 800 ms after the trace; the all-reduce is reached 130 ms later.
    assert first.since_ns == pytest.approx(930 * MS, abs=MS)
    assert result.notes[0].startswith("rank 3 is a straggler")
    assert f"mostly in {phase}, since 930" in result.notes[0]


def test_of_two_ranks_the_whole_lateness_counts() -> None:
    """The one rank waits 40 ms in each of 10 steps: that is the cost, not half of it."""
    (slow, other) = measure_stragglers(
        make_trace_of(Plan(n_ranks=2, extra_ns={(1, "backward"): 40 * MS}))
    ).ranks
    assert (slow.rank, slow.cost_ns, slow.excess_ns) == (1, 400 * MS, 400 * MS)
    assert (other.cost_ns, other.median_late_ns) == (0, -40 * MS)


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 9)), max_size=12))
def test_beyond_the_others_is_what_one_counts_by_hand(rows: list[tuple[int, int]]) -> None:
    keys, values = ([row[i] for row in rows] for i in (0, 1))
    found = beyond_others(pd.Series(values, dtype=np.int64), pd.Series(keys, dtype=np.int64))
    for i, (key, value) in enumerate(rows):
        others = [v for j, (k, v) in enumerate(rows) if k == key and j != i]
        expected = value - np.median(others) if others else np.nan
        assert found[i] == pytest.approx(expected, nan_ok=True)


def test_beyond_the_others_is_exact_on_any_clock() -> None:
    at = 1_790_000_000_000_000_000
    found = beyond_others(pd.Series([at + 1, at, at + 4]), pd.Series([0, 0, 0]))
    assert found.tolist() == [-1.0, -2.5, 3.5]


def test_a_host_whose_ranks_all_come_late_is_named() -> None:
    # Ranks 2 and 3 take turns in being a little later than the other.
    late = {(2, "backward"): 40 * MS, (3, "backward"): 40 * MS}
    plan = Plan(extra_ns=late, hosts=["a", "a", "b", "b"], jitter_ns=1000)
    trace = make_trace_of(plan)
    moved = trace.kernels.copy()
    is_wobbling = (moved["process"] == 102) & moved["name"].astype(str).str.startswith("nccl")
    wobble = [1000 if place % 2 else -1000 for place in range(int(is_wobbling.sum()))]
    moved.loc[is_wobbling, "start_ns"] += wobble
    notes = measure_stragglers(replace(trace, kernels=moved)).notes
    assert notes[0].startswith("host b is a straggler: 2 of its 2 ranks come late")


def test_without_a_straggler_nobody_is_blamed() -> None:
    result = measure_stragglers(make_trace_of(Plan(jitter_ns=1000)))
    assert not any(rank.is_straggler for rank in result.ranks)


def test_ranks_side_by_side_have_the_parts_of_their_own_device() -> None:
    trace = make_trace_of(Plan(n_steps=2, extra_ns={(1, "backward"): 40 * MS}))
    ranks = measure_ranks(trace).ranks
    whole = measure_breakdown(trace)
    for rank, device in zip(ranks, whole.devices, strict=True):
        assert rank.compute_ns == device.compute_ns
        assert rank.exposed_communication_ns == device.exposed_communication_ns
        assert rank.idle_ns == device.idle_ns
    assert [rank.waited_ns for rank in ranks] == [80 * MS, 0, 80 * MS, 80 * MS]
    assert [rank.last_ratio for rank in ranks] == [0, 1, 0, 0]
    assert ranks[0].step_ns == 140 * MS


def test_ranks_that_share_a_device_have_their_own_parts() -> None:
    trace = (
        TraceBuilder()
        .process(1, rank=0)
        .process(2, rank=1)
        .kernel("gemm", 0, 60, process=1, device=0)
        .kernel("gemm", 20, 50, process=2, device=0)
        .build(span=(0, 100))
    )
    assert [(r.compute_ns, r.idle_ns) for r in measure_ranks(trace).ranks] == [(60, 40), (30, 70)]


def test_every_step_of_every_rank_for_a_heat_map() -> None:
    trace = make_trace_of(Plan(n_ranks=2, n_steps=2, extra_ns={(1, "forward"): 10 * MS}))
    table = measure_rank_steps(trace).to_frame()
    columns = ("rank", "step", "duration_ns", "own_ns", "waited_ns", "late_ns", "phase")
    assert plain(table, *columns) == [
        (0, 0, 110 * MS, 100 * MS, 10 * MS, 0, ""),
        (1, 0, 110 * MS, 110 * MS, 0, 10 * MS, "forward"),
        (0, 1, 110 * MS, 100 * MS, 10 * MS, 0, ""),
        (1, 1, 110 * MS, 110 * MS, 0, 10 * MS, "forward"),
    ]
    assert table["slower_ratio"].tolist() == pytest.approx([-5 / 105, 5 / 105] * 2)


def test_waiting_that_compute_hides_is_the_ranks_own_time() -> None:
    """Rank 0 waits from 50 to 90 for rank 1, and computes until 80 beside it."""
    builder = TraceBuilder().process(1, rank=0).process(2, rank=1)
    for process, comes in ((1, 50), (2, 90)):
        builder.step(0, 100, 7, process=process)
        builder.kernel("gemm", 0, 80, process=process, device=process)
        builder.kernel("ncclDevKernel_AllReduce", comes, 100, process=process, device=process)
    table = measure_rank_steps(builder.build()).to_frame()
    assert plain(table, "rank", "own_ns", "waited_ns") == [(0, 90, 40), (1, 100, 0)]


def test_a_rank_that_joins_later_has_no_earlier_steps() -> None:
    result = measure_rank_steps(make_trace_of(Plan(n_steps=4, first_step={2: 3})))
    assert result.table.groupby("rank")["step"].apply(list).to_dict() == {
        0: [0, 1, 2, 3],
        1: [0, 1, 2, 3],
        2: [3],
        3: [0, 1, 2, 3],
    }
    assert result.notes == ("3 of 4 steps are not known of every one of 4 ranks",)


def test_64_ranks_with_clocks_that_differ_and_a_straggler() -> None:
    """8 hosts, clocks ±10 ms apart that drift by ±20 ppm, jitter of 20 µs, rank 3 40 ms late."""
    clock_of = [Clock(round((h - 3.5) / 3.5 * 10 * MS), (h - 3.5) / 3.5 * 20) for h in range(8)]
    plan = Plan(
        n_ranks=64,
        n_steps=12,
        hosts=[f"node{rank // 8}" for rank in range(64)],
        clocks=[clock_of[rank // 8] for rank in range(64)],
        extra_ns={(3, "backward"): 40 * MS},
        jitter_ns=20_000,
    )
    trace = make_trace_of(plan)
    found = measure_alignment(trace)
    for rank, row in enumerate(found.clocks):
        at_ns = found.corrections[row.process].at_ns
        clock = clock_of[rank // 8]
        shown = clock.offset_ns + clock.drift_ppm * 1e-6 * at_ns
        first = clock_of[0].offset_ns + clock_of[0].drift_ppm * 1e-6 * at_ns
        assert row.offset_ns == pytest.approx(shown - first, abs=20_000)
    aligned = align_clocks(trace)
    first, *others = measure_stragglers(aligned).ranks
    assert (first.rank, first.is_straggler, first.phase) == (3, True, "backward")
    assert first.cost_ns == pytest.approx(12 * 40 * MS, rel=2e-3)
    assert not any(rank.is_straggler for rank in others)
    hot = measure_rank_steps(aligned).table.query("slower_ratio > 0.03")
    assert plain(hot, "rank", "step") == [(3, step) for step in range(12)]


@pytest.mark.parametrize("numbered", [True, False])
def test_steps_that_nobody_numbers_are_lined_up_by_collectives(numbered: bool) -> None:
    """Rank 2 is recorded from step 3 on; in step 5 rank 1 takes 40 ms longer."""
    plan = Plan(n_steps=8, first_step={2: 3}, extra_ns={(1, "forward"): 40 * MS}, since_step=5)
    result = measure_rank_steps(make_trace_of(replace(plan, numbered=numbered)))
    table = result.table
    assert table.loc[table["rank"] == 2, "step"].tolist() == [3, 4, 5, 6, 7]
    slower = table[table["slower_ratio"] > 0.1]
    assert plain(slower, "rank", "step") == [(1, 5), (1, 6), (1, 7)]
    assert any("steps of rank 2 are counted from another" in n for n in result.notes) != numbered


def test_without_shared_collectives_own_time_says_what_it_holds() -> None:
    builder = TraceBuilder()
    for process in (1, 2):
        builder.process(process, rank=process - 1).step(0, 100 * process, 0, process=process)
    result = measure_rank_steps(builder.build())
    assert result.table["own_ns"].tolist() == [100, 200]
    assert result.notes[0].startswith("no collective is shared")


def exchange(*directions: str) -> Trace:
    builder = TraceBuilder()
    for device in (0, 1):
        for place, direction in enumerate(directions):
            start = 100 * place
            builder.copy(direction, start, start + 50, n_bytes=50_000_000, device=device)
    return builder.build()


@pytest.mark.parametrize(
    ("trace", "found"),
    [
        (exchange("d2h", "h2d"), "through the host, as with a parameter server"),
        (exchange("p2p"), "by peer copies between replicas"),
        (two_ranks(), "by collectives (nccl)"),
    ],
)
def test_the_pattern_of_the_exchange_is_named(trace: Trace, found: str) -> None:
    assert any(found in note for note in measure_ranks(trace).notes)


def test_calls_whose_device_is_not_known_make_no_further_rank() -> None:
    builder = TraceBuilder()
    for device in (0, 1):
        builder.collective("send", 10 * device, 10 * device + 1, correlation=device)
        builder.kernel("ncclDevKernel_SendRecv", 50, 60, device=device, correlation=device)
    builder.collective("recv", 80, 81, correlation=7)
    (note,) = [n for n in measure_ranks(builder.build()).notes if "exchange" in n]
    assert note.endswith("of 2 ranks")


def test_feeding_two_devices_is_no_exchange() -> None:
    assert not any("exchange" in note for note in measure_ranks(exchange("h2d")).notes)


def real_run(real_trace: Callable[[str], Path], pattern: str, n_ranks: int) -> Trace:
    return merge_run(open_run([real_trace(pattern.format(rank)) for rank in range(n_ranks)]))


@pytest.mark.traces
def test_dlrm_on_8_ranks(real_trace: Callable[[str], Path]) -> None:
    """Read off the files: 5 all-to-all and 3 all-reduce on each rank; clocks of one host."""
    pattern = "kineto/dlrm-8ranks-v100/worker{}.pt.trace.json.gz"
    trace = real_run(real_trace, pattern, 8)
    matches = find_matches(trace)
    assert matches.table["op"].value_counts().to_dict() == {"all_to_all": 5, "all_reduce": 3}
    assert (matches.table["members"] == 8).all()
    assert (matches.rows["match"] >= 0).all()
    assert matches.table["spread_ns"].max() <= 7_000
    # The first all-to-all: rank 7 comes at 10 725 µs, 7 624 µs after the first.
    first = matches.table.sort_values("last_start_ns").iloc[0]
    assert first["last_start_ns"] - first["first_start_ns"] == 7_624_000
    assert first["duration_ns"] == 10_000
    for clock in measure_alignment(trace).clocks:
        assert clock.offset_ns is not None
        assert abs(clock.offset_ns) <= 2_000
        assert clock.drift_ppm == 0
    (straggler,) = [rank for rank in measure_stragglers(trace).ranks if rank.is_straggler]
    assert (straggler.rank, straggler.last_count) == (7, 5)
    # Its step begins 7.5 ms after that of rank 1, and with it its recording.
    assert straggler.phase == "the time before its recording"


@pytest.mark.traces
def test_the_parts_of_dlrm_are_those_of_hta(real_trace: Callable[[str], Path]) -> None:
    """HTA's compute, and its non-compute: what runs beside no compute."""
    reference = json.loads((ROOT / "tests" / "formats" / "hta_reference.json").read_text("utf-8"))
    pattern = "kineto/dlrm-8ranks-v100/worker{}.pt.trace.json.gz"
    for rank in measure_ranks(real_run(real_trace, pattern, 8)).ranks:
        expected = reference["files"][pattern.format(rank.rank)]
        assert rank.compute_ns == expected["compute_ns"]
        parts = (
            rank.exposed_communication_ns,
            rank.exposed_transfer_ns,
            rank.device_memory_ns,
        )
        assert sum(part or 0 for part in parts) == expected["non_compute_ns"]


@pytest.mark.traces
def test_torchrec_on_4_ranks(real_trace: Callable[[str], Path]) -> None:
    """Rank 2 sleeps a second in the forward pass of each step; its first kernel is cut off."""
    trace = real_run(real_trace, "kineto/torchrec-4ranks-v100/rank{}.pt.trace.json.gz", 4)
    table = find_matches(trace).table
    assert sorted(table["members"]) == [3, *[4] * 12]
    assert (table[table["members"] == 4]["last_member"] == 2).all()
    first, *others = measure_stragglers(trace).ranks
    assert (first.rank, first.is_straggler, first.phase) == (2, True, "forward (device idle)")
    assert first.cost_ns == pytest.approx(3.035e9, rel=1e-3)
    assert not any(rank.is_straggler for rank in others)
    assert all((clock.residual_ns or 0) < 5_000 for clock in measure_alignment(trace).clocks)


def test_a_run_keeps_its_order_of_ranks() -> None:
    assert [m.rank for m in find_matches(merge_run(make_run(Plan(n_steps=1)))).members] == [
        0,
        1,
        2,
        3,
    ]
