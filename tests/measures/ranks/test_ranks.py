"""The ranks side by side: parts of their time, waiting, how they exchange data."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.builders import TraceBuilder
from tests.measures.generated_run import MS, Plan, make_ranks_of
from tests.measures.ranks.two_ranks import real_run, two_ranks
from tests.reading import rows, said
from tests.requirements import ROOT
from tests.running import run
from traceprof.model.tables import ABSENT
from traceprof.model.trace import Trace
from traceprof.render.formatting import sentences


def test_ranks_side_by_side_have_the_parts_of_their_own_device() -> None:
    run_of = make_ranks_of(Plan(n_steps=2, extra_ns={(1, "backward"): 40 * MS}))
    own = rows(run("ranks", run_of))
    whole = rows(run("breakdown", run_of))
    for rank, device in zip(own, whole, strict=True):
        assert rank.compute_ns == device.compute_ns
        assert rank.exposed_communication_ns == device.exposed_communication_ns
        assert rank.idle_ns == device.idle_ns
    assert [rank.waited_ns for rank in own] == [40 * MS, 0, 40 * MS, 40 * MS]
    assert [rank.last_ratio for rank in own] == [0, 1, 0, 0]
    # The first of 140 ms, which begins with its host, the second of 200.
    assert own[0].step_ns == 170 * MS
    totals = "The step time is a mean. The other times are totals of the window (2 usual steps)."
    assert totals in sentences(run("ranks", run_of).notes)


def test_ranks_that_share_a_device_have_their_own_parts() -> None:
    trace = (
        TraceBuilder()
        .process(1, rank=0)
        .process(2, rank=1)
        .kernel("gemm", 0, 60, process=1, device=0)
        .kernel("gemm", 20, 50, process=2, device=0)
        .build(span=(0, 100))
    )
    assert [(r.compute_ns, r.idle_ns) for r in rows(run("ranks", trace))] == [(60, 40), (30, 70)]


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
        (exchange("d2h", "h2d"), "through the host, like a parameter server"),
        (exchange("p2p"), "by peer copies"),
        (two_ranks(), "by collectives (nccl)"),
    ],
)
def test_the_pattern_of_the_exchange_is_named(trace: Trace, found: str) -> None:
    assert any(found in note for note in said(run("ranks", trace)))


@pytest.mark.parametrize(
    ("op", "start"),
    [("all_reduce", "The ranks exchange data by collectives (gloo)"), ("send", "by messages (gloo)")],
)
def test_ranks_without_gpus_exchange_data(op: str, start: str) -> None:
    builder = TraceBuilder()
    for rank in range(2):
        builder.process(1 + rank, rank=rank)
        builder.collective(op, 0, 10, process=1 + rank, group_rank=rank, backend="gloo", sequence=0)
    assert any(start in note for note in said(run("ranks", builder.build())))


def test_calls_whose_device_is_not_known_make_no_further_rank() -> None:
    builder = TraceBuilder()
    for device in (0, 1):
        builder.collective("send", 10 * device, 10 * device + 1, correlation=device)
        builder.kernel("ncclDevKernel_SendRecv", 50, 60, device=device, correlation=device)
    builder.collective("recv", 80, 81, correlation=7)
    (note,) = [n for n in said(run("ranks", builder.build())) if "exchange data" in n]
    assert note.endswith("among 2 ranks.")


@pytest.mark.parametrize(
    ("group_size", "end"),
    [
        (8, "all_reduce among 8 ranks (1 recorded)."),
        (2, "all_reduce among 2 ranks (1 recorded)."),
        (1, "all_reduce."),
        (ABSENT, "all_reduce."),
    ],
)
def test_one_recorded_rank_of_a_group(group_size: int, end: str) -> None:
    builder = TraceBuilder().process(1, rank=0)
    builder.collective("all_reduce", 0, 10, group_size=group_size)
    builder.kernel("ncclDevKernel_AllReduce_Sum", 20, 30, launched_ns=(2, 4))
    (note,) = [n for n in said(run("ranks", builder.build())) if "exchange data" in n]
    assert note.endswith(end)


def test_feeding_two_devices_is_no_exchange() -> None:
    assert not any("exchange data" in note for note in said(run("ranks", exchange("h2d"))))


@pytest.mark.traces
def test_the_parts_of_dlrm_are_those_of_hta(real_trace: Callable[[str], Path]) -> None:
    """HTA's compute, and its non-compute: what runs beside no compute."""
    reference = json.loads((ROOT / "tests" / "formats" / "hta_reference.json").read_text("utf-8"))
    pattern = "kineto/dlrm-8ranks-v100/worker{}.pt.trace.json.gz"
    found = rows(run("ranks", real_run(real_trace, pattern, 8)))
    assert [rank.rank for rank in found] == list(range(8))
    for rank in found:
        expected = reference["files"][pattern.format(int(rank.rank))]
        assert rank.compute_ns == expected["compute_ns"]
        parts = (
            rank.exposed_communication_ns,
            rank.exposed_transfer_ns,
            rank.device_memory_ns,
        )
        assert sum(part or 0 for part in parts) == expected["non_compute_ns"]
