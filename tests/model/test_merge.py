"""A run as one Trace: one clock, and nothing mistaken for something of another rank."""

from __future__ import annotations

from dataclasses import replace

import pandas as pd
import pytest

from tests.builders import TraceBuilder
from traceprof.model.merge import clock_offsets_ns, merge_run
from traceprof.model.run import RankTrace, Run, of_process
from traceprof.model.trace import Trace


def of_rank(rank: int, start_ns: int, *, epoch_ns: int | None = None) -> RankTrace:
    trace = (
        TraceBuilder()
        .kernel("gemm", start_ns, start_ns + 10, launched_ns=(start_ns - 5, start_ns - 4))
        .range("forward", start_ns - 8, start_ns)
        .sample("power", start_ns, 100.0)
        .process(1)
        .build()
    )
    info = replace(trace.info, path=f"rank{rank}", utc_epoch_ns=epoch_ns)
    return RankTrace(replace(trace, info=info), rank=rank, host=f"host{rank}")


def merged(*members: RankTrace) -> Trace:
    return merge_run(Run("test", members))


def test_equal_devices_and_processes_of_two_ranks_are_told_apart() -> None:
    trace = merged(of_rank(0, 20), of_rank(1, 30))
    assert trace.kernels[["start_ns", "device"]].values.tolist() == [[20, 0], [30, 1]]
    assert trace.processes["rank"].tolist() == [0, 1]
    assert trace.processes["process"].nunique() == 2
    kernel_owners = trace.kernels["process"].tolist()
    assert trace.api_calls["process"].tolist() == kernel_owners
    assert trace.ranges["process"].tolist() == kernel_owners
    assert trace.devices["name"].str.startswith(("rank 0", "rank 1")).all()


def test_clocks_are_tied_by_their_wall_time() -> None:
    members = (of_rank(0, 20, epoch_ns=1_000), of_rank(1, 20, epoch_ns=1_500))
    assert clock_offsets_ns(Run("test", members)) == (0, 500)
    trace = merged(*members)
    assert trace.kernels["start_ns"].tolist() == [20, 520]
    assert trace.info.utc_epoch_ns == 1_000
    assert (trace.span.start_ns, trace.span.end_ns) == (12, 530)


def test_offsets_that_are_given_win() -> None:
    run = Run("test", (of_rank(0, 20, epoch_ns=1_000), of_rank(1, 20, epoch_ns=1_500)))
    assert merge_run(run, (0, -5)).kernels["start_ns"].tolist() == [15, 20]


def test_clocks_that_nothing_ties_are_warned_of() -> None:
    trace = merged(of_rank(0, 20, epoch_ns=1_000), of_rank(1, 20))
    assert "not tied" in trace.info.warnings[0]


def test_what_only_some_ranks_recorded_is_said() -> None:
    without = replace(of_rank(1, 20).trace, recorded=frozenset({"ranges"}))
    trace = merged(of_rank(0, 20), RankTrace(without, rank=1))
    assert any("kernels of rank 1 were not recorded" in text for text in trace.info.warnings)


def test_splitting_a_file_by_process_and_merging_gives_the_file_again() -> None:
    whole = (
        TraceBuilder()
        .kernel("a", 10, 20, process=5)
        .kernel("b", 15, 30, process=6, device=1)
        .range("forward", 0, 9, process=5)
        .sample("power", 3, 100.0)
        .process(5, rank=0)
        .process(6, rank=1)
        .build()
    )
    parts = tuple(RankTrace(of_process(whole, 5 + rank), rank=rank) for rank in (0, 1))
    again = merge_run(Run("test", parts), (0, 0))
    for table in ("kernels", "ranges", "samples"):
        pd.testing.assert_frame_equal(again.table(table), whole.table(table))
    assert again.span == whole.span


def test_samples_of_a_machine_count_once_and_those_of_a_process_stay() -> None:
    members = []
    for rank in (0, 1, 2):
        builder = TraceBuilder().range("forward", 0, 9).process(1, rank=rank)
        for at in (3, 5):
            builder.sample("bytes_sent", at, at * 2.0, source="nic:eth0")
            builder.sample("loss", at, float(rank), source="gpu:0")
        info = replace(builder.build().info, path=f"rank{rank}", utc_epoch_ns=1_000)
        trace = replace(builder.build(), info=info)
        members.append(RankTrace(trace, rank=rank, host="a" if rank < 2 else "b"))
    samples = merged(*members).samples
    counts = samples.groupby(["source", "metric"], observed=True).size().to_dict()
    # Hosts a and b have an interface of that name each; the losses differ from rank to rank.
    assert counts == {("nic:eth0", "bytes_sent"): 4, ("gpu:0", "loss"): 6}


def test_helpers_of_a_rank_are_no_ranks() -> None:
    builder = TraceBuilder().range("forward", 0, 9, process=5).range("load", 0, 9, process=6)
    trace = builder.process(5, rank=0).process(6).build()
    both = merged(RankTrace(trace, rank=0, host="a"), of_rank(1, 20))
    assert both.processes[["rank", "host"]].to_numpy().tolist() == [
        [0, "a"],
        [-1, "a"],
        [1, "host1"],
    ]


def test_a_run_of_one_is_its_trace() -> None:
    member = of_rank(0, 20)
    assert merged(member) is member.trace


@pytest.mark.parametrize("n_ranks", [2, 3])
def test_times_and_bytes_of_all_ranks_are_kept(n_ranks: int) -> None:
    members = [of_rank(rank, 20 + rank, epoch_ns=100) for rank in range(n_ranks)]
    trace = merged(*members)
    assert int((trace.kernels["end_ns"] - trace.kernels["start_ns"]).sum()) == 10 * n_ranks
