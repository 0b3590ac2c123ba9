"""A run as one Trace: one clock, and nothing mistaken for something of another rank."""

from __future__ import annotations

from dataclasses import replace

import pandas as pd
import pytest

from tests.builders import TraceBuilder, plain
from traceprof.measures.device.peaks import peak_of_interface
from traceprof.model.placement import clock_offsets_ns, place_run
from traceprof.model.ranks import RankTrace, RunFiles, of_process
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
    return place_run(RunFiles("test", members)).merged()


def test_hosts_and_racks_of_the_run_reach_its_processes() -> None:
    traces = [
        TraceBuilder().process(1, rank=rank, host=host).kernel("k", 0, 9).build()
        for rank, host in ((0, ""), (1, "own"))
    ]
    members = (
        RankTrace(traces[0], 0, host="told", rack="r1"),
        RankTrace(traces[1], 1, host="told", rack="r2"),
    )
    processes = place_run(RunFiles("run", members), (0, 0)).merged().processes.to_frame()
    assert plain(processes, "rank", "host", "rack") == [(0, "told", "r1"), (1, "own", "r2")]


def test_equal_devices_and_processes_of_two_ranks_are_told_apart() -> None:
    trace = merged(of_rank(0, 20), of_rank(1, 30))
    assert trace.kernels.to_frame()[["start_ns", "device"]].values.tolist() == [[20, 0], [30, 1]]
    assert trace.processes.to_frame()["rank"].tolist() == [0, 1]
    assert trace.processes.to_frame()["process"].nunique() == 2
    kernel_owners = trace.kernels.to_frame()["process"].tolist()
    assert trace.api_calls.to_frame()["process"].tolist() == kernel_owners
    assert trace.ranges.to_frame()["process"].tolist() == kernel_owners
    assert trace.devices.to_frame()["name"].str.startswith(("rank 0", "rank 1")).all()


def test_clocks_are_tied_by_their_wall_time() -> None:
    members = (of_rank(0, 20, epoch_ns=1_000), of_rank(1, 20, epoch_ns=1_500))
    assert clock_offsets_ns(member.trace.info for member in members) == (0, 500)
    trace = merged(*members)
    assert trace.kernels.to_frame()["start_ns"].tolist() == [20, 520]
    assert trace.info.utc_epoch_ns == 1_000
    assert (trace.span.start_ns, trace.span.end_ns) == (12, 530)


def test_offsets_that_are_given_win() -> None:
    run = RunFiles("test", (of_rank(0, 20, epoch_ns=1_000), of_rank(1, 20, epoch_ns=1_500)))
    assert place_run(run, (0, -5)).merged().kernels.to_frame()["start_ns"].tolist() == [15, 20]


def test_clocks_that_nothing_ties_are_warned_of() -> None:
    trace = merged(of_rank(0, 20, epoch_ns=1_000), of_rank(1, 20))
    assert "not aligned" in trace.info.warnings[0]


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
    again = place_run(RunFiles("test", parts), (0, 0)).merged()
    for table in ("kernels", "ranges", "samples"):
        pd.testing.assert_frame_equal(again.table(table).to_frame(), whole.table(table).to_frame())
    assert again.span == whole.span


def test_samples_of_a_machine_count_once_and_those_of_a_process_stay() -> None:
    members = []
    for rank in (0, 1, 2):
        builder = TraceBuilder().range("forward", 0, 9).process(1, rank=rank)
        for at in (3, 5):
            builder.sample("bytes_sent", at, at * 2.0, source="nic:eth0")
            builder.sample("loss", at, float(rank), source="process:1")
        info = replace(builder.build().info, path=f"rank{rank}", utc_epoch_ns=1_000)
        trace = replace(builder.build(), info=info)
        members.append(RankTrace(trace, rank=rank, host="a" if rank < 2 else "b"))
    samples = merged(*members).samples.to_frame()
    counts = samples.groupby(["source", "metric"], observed=True).size().to_dict()
    assert counts == {
        ("nic:eth0@a", "bytes_sent"): 2,
        ("nic:eth0@b", "bytes_sent"): 2,
        ("process:1", "loss"): 2,
        ("process:100000001", "loss"): 2,
        ("process:200000001", "loss"): 2,
    }


def test_every_gpu_of_a_machine_is_sampled_by_all_of_its_ranks() -> None:
    members = []
    for rank, (host, own) in enumerate([("a", 0), ("a", 1), ("b", 0), ("b", 1)]):
        builder = TraceBuilder().kernel("k", 0, 9, device=own).process(7 + rank, rank=rank)
        for gpu in (0, 1):
            builder.sample("power_w", 3, 100.0 * (host == "b") + gpu, source=f"gpu:{gpu}")
        members.append(RankTrace(builder.build(), rank=rank, host=host))
    samples = place_run(RunFiles("test", tuple(members)), (0, 0, 0, 0)).merged().samples
    assert sorted(plain(samples, "source", "value")) == [
        ("gpu:0", 0.0),
        ("gpu:1", 1.0),
        ("gpu:2", 100.0),
        ("gpu:3", 101.0),
    ]


def test_a_series_that_goes_on_in_another_file_of_the_host_is_kept() -> None:
    members = [
        RankTrace(
            TraceBuilder()
            .sample("x", at, 1.0, source="nic:eth0")
            .sample("x", at + 4, 2.0, source="nic:eth0")
            .build(),
            rank=rank,
            host="a",
        )
        for rank, at in ((0, 0), (1, 2), (2, 6))
    ]
    samples = place_run(RunFiles("test", tuple(members)), (0, 0, 0)).merged().samples
    assert plain(samples, "start_ns", "value") == [(0, 1.0), (4, 2.0), (6, 2.0), (10, 2.0)]


def test_helpers_of_a_rank_are_no_ranks() -> None:
    builder = TraceBuilder().range("forward", 0, 9, process=5).range("load", 0, 9, process=6)
    trace = builder.process(5, rank=0).process(6).build()
    both = merged(RankTrace(trace, rank=0, host="a"), of_rank(1, 20))
    assert both.processes.to_frame()[["rank", "host"]].to_numpy().tolist() == [
        [0, "a"],
        [-1, "a"],
        [1, "host1"],
    ]


def test_a_run_of_one_is_its_trace() -> None:
    member = of_rank(0, 20)
    assert merged(member).kernels is member.trace.kernels
    assert merged(member).processes["rank"].tolist() == [0]


@pytest.mark.parametrize("n_ranks", [2, 3])
def test_times_and_bytes_of_all_ranks_are_kept(n_ranks: int) -> None:
    members = [of_rank(rank, 20 + rank, epoch_ns=100) for rank in range(n_ranks)]
    trace = merged(*members)
    assert (
        int((trace.kernels.to_frame()["end_ns"] - trace.kernels.to_frame()["start_ns"]).sum())
        == 10 * n_ranks
    )


def of_host(rank: int, host: str, *, n_bytes: float) -> RankTrace:
    builder = TraceBuilder().kernel("gemm", 0, 10).process(1)
    builder.setting("nic.eth0.speed_mbit_per_s", "1000").setting("os", host)
    for source in ("nic:eth0", "gpu:0", "process:1"):
        builder.sample("bytes_sent", 0, 0.0, source=source)
        builder.sample("bytes_sent", 10, n_bytes, source=source)
    trace = builder.build()
    info = replace(trace.info, path=f"rank{rank}", utc_epoch_ns=0)
    return RankTrace(replace(trace, info=info), rank=rank, host=host)


def test_interfaces_of_several_hosts_are_told_apart() -> None:
    trace = merged(of_host(0, "alpha", n_bytes=100.0), of_host(1, "beta", n_bytes=500.0))
    ends = trace.samples.to_frame()[trace.samples.to_frame()["start_ns"] == 10]
    process = trace.processes.to_frame()["process"].tolist()
    assert dict(zip(ends["source"], ends["value"], strict=True)) == {
        "nic:eth0@alpha": 100.0,
        "gpu:0": 100.0,
        f"process:{process[0]}": 100.0,
        "nic:eth0@beta": 500.0,
        "gpu:1": 500.0,
        f"process:{process[1]}": 500.0,
    }
    facts = dict(
        zip(
            trace.environment.to_frame()["name"], trace.environment.to_frame()["value"], strict=True
        )
    )
    assert (facts["os"], facts["nic.eth0@beta.speed_mbit_per_s"]) == ("alpha", "1000")
    peak = peak_of_interface(trace, "nic:eth0@beta")
    assert peak is not None
    assert peak.bytes_per_s == 125e6


def test_an_interface_that_two_ranks_of_a_host_sampled_counts_once() -> None:
    trace = merged(of_host(0, "alpha", n_bytes=100.0), of_host(1, "alpha", n_bytes=100.0))
    nic = trace.samples.to_frame()[trace.samples.to_frame()["source"] == "nic:eth0"]
    assert nic["value"].tolist() == [0.0, 100.0]
