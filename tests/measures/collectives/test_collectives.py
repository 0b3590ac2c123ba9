"""Collectives: bandwidths as nccl-tests define them, what is not claimed, what is noted."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.builders import TraceBuilder, plain
from tests.measures.collectives.loop import loop
from tests.reading import records
from tests.running import run
from traceprof.errors import NotRecordedError
from traceprof.formats import open_trace
from traceprof.hardware.catalogue import built_in_hardware
from traceprof.measures.collectives import operations
from traceprof.model.timing import TimeWindow
from traceprof.model.trace import Trace, TraceInfo, make_trace
from traceprof.names.messages import CollectiveKind, kernel_kind
from traceprof.render.formatting import note_text

NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"
MIB = 1 << 20

# As in nccl-tests: what S is, and the factor, from the count of elements of one rank's part.
ON_ONE_BUFFER = ("all_reduce", "broadcast", "reduce", "send", "recv")
ON_ALL_PARTS = ("reduce_scatter", "all_gather", "all_to_all", "gather", "scatter")


def expected(op: str, part_bytes: int, n: int, seconds: float) -> tuple[float, float]:
    if op in ON_ONE_BUFFER:
        algbw = part_bytes / seconds
        return algbw, algbw * (2 * (n - 1) / n if op == "all_reduce" else 1)
    algbw = part_bytes * n / seconds
    return algbw, algbw * (n - 1) / n


def handed_in(op: str, part_bytes: int, n: int) -> int:
    """What the table of collectives holds: the input of one rank."""
    return part_bytes * n if op in ("reduce_scatter", "all_to_all") else part_bytes


def classes(trace: Trace) -> list[SimpleNamespace]:
    return records(run("collectives", trace).to_frame())


def only(trace: Trace) -> SimpleNamespace:
    (row,) = classes(trace)
    return row


@pytest.mark.parametrize("n", [1, 2, 3, 8, 64])
@pytest.mark.parametrize("op", [*ON_ONE_BUFFER, *ON_ALL_PARTS])
def test_algbw_and_busbw_as_in_nccl_tests(op: str, n: int) -> None:
    part, nanoseconds = 4 * 1_234_567, 987_654
    trace = (
        TraceBuilder()
        .collective(
            op, 0, 10, n_bytes=handed_in(op, part, n), group_size=n, correlation=7, backend="nccl"
        )
        .kernel("ncclDevKernel_X", 100, 100 + nanoseconds, correlation=7)
        .build()
    )
    row = only(trace)
    if n == 1:
        assert (row.algbw_bytes_per_s, row.busbw_bytes_per_s) == (None, None)
        return
    algbw, busbw = expected(op, part, n, nanoseconds / 1e9)
    assert row.algbw_bytes_per_s == pytest.approx(algbw, rel=1e-9)
    assert row.busbw_bytes_per_s == pytest.approx(busbw, rel=1e-9)


def test_without_bytes_or_ranks_no_bandwidth_is_claimed() -> None:
    builder = TraceBuilder().kernel(NCCL, 100, 200, correlation=1)
    unsized = only(builder.collective("all_reduce", 0, 5, correlation=1).build())
    assert (unsized.size_bytes, unsized.algbw_bytes_per_s, unsized.total_ns) == (None, None, 100)

    grouped = TraceBuilder().kernel(NCCL, 100, 200, correlation=1)
    grouped.collective("all_gather", 0, 5, n_bytes=1000, group_size=-1, correlation=1)
    assert only(grouped.build()).algbw_bytes_per_s is None


def test_an_uneven_all_to_all_has_no_busbw() -> None:
    builder = TraceBuilder().kernel(NCCL, 100, 200, correlation=1)
    row = only(builder.collective("all_to_all_v", 0, 5, n_bytes=1000, correlation=1).build())
    assert row.algbw_bytes_per_s == pytest.approx(10e9)
    assert row.busbw_bytes_per_s is None


def test_a_kernel_without_a_call_is_a_collective_by_its_name() -> None:
    row = only(TraceBuilder().kernel(NCCL, 100, 200).build())
    assert (row.op, row.algorithm, row.sizes, row.count) == ("all_reduce", "RING LL", "unknown", 1)
    assert (row.size_bytes, row.busbw_bytes_per_s) == (None, None)


def test_names_of_compute_are_not_asked_what_they_communicate(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = list[str]()

    def told(name: str) -> CollectiveKind:
        asked.append(name)
        return kernel_kind(name)

    monkeypatch.setattr(operations, "kernel_kind", told)
    trace = TraceBuilder().kernel("gemm_a", 0, 4).kernel("gemm_b", 4, 8).kernel(NCCL, 8, 9).build()
    assert only(trace).op == "all_reduce"
    assert asked == [NCCL]


def test_a_call_whose_kernel_is_missing_has_no_time() -> None:
    row = only(TraceBuilder().collective("all_reduce", 0, 5, n_bytes=400).build())
    assert (row.count, row.total_ns, row.algbw_bytes_per_s) == (1, None, None)


def test_on_the_host_the_call_itself_takes_the_time() -> None:
    row = only(TraceBuilder().collective("all_reduce", 0, 100, n_bytes=400, backend="gloo").build())
    assert (row.total_ns, row.exposed_ns) == (100, None)
    assert row.busbw_bytes_per_s == pytest.approx(4e9)


def test_exposed_is_what_compute_on_the_same_device_does_not_hide() -> None:
    trace = (
        TraceBuilder()
        .kernel(NCCL, 100, 200, stream=20)
        .kernel("gemm", 150, 180)
        .kernel("gemm", 100, 200, device=1)
        .build()
    )
    assert only(trace).exposed_ns == 70


def test_a_collective_belongs_to_the_window_in_which_it_starts() -> None:
    trace = (
        TraceBuilder()
        .collective("all_reduce", 0, 5, n_bytes=4000, correlation=1)
        .kernel(NCCL, 100, 300, correlation=1)
        .build()
    )
    first, second = trace.within(TimeWindow(0, 200)), trace.within(TimeWindow(200, 400))
    assert (only(first).total_ns, only(first).algbw_bytes_per_s) == (200, pytest.approx(20e9))
    assert classes(second) == []


def test_the_peak_is_that_of_the_link_that_the_group_spans() -> None:
    def trace(group_size: int) -> Trace:
        builder = TraceBuilder().kernel(NCCL, 0, 1000, correlation=1)
        for device in range(8):
            builder.device(device, "NVIDIA H100 80GB HBM3")
        builder.collective("broadcast", 0, 5, n_bytes=45_000, group_size=group_size, correlation=1)
        return builder.build()

    inside = only(trace(8))
    assert (inside.peak_bytes_per_s, inside.peak_ratio) == (450e9, pytest.approx(0.1))
    across = run("collectives", trace(16))
    assert records(across.to_frame())[0].peak_ratio is None
    assert any("--link nic=400Gb/s" in note.text for note in across.notes)
    given = trace(16).with_hardware(built_in_hardware().with_link("nic=400Gb/s"))
    assert only(given).peak_ratio == pytest.approx(0.9)


def test_steps_have_bytes_a_pace_and_a_share_of_all_reduce() -> None:
    result = run("collectives", loop())
    (pace,) = [note for note in result.notes if "per step" in note.text]
    # 4 in 2 µs; 12 kB in each step; 2 × 100 ns of each 1000 ns.
    assert note_text(pace) == (
        "2,000,000 collectives per second, 2 per step, 12.0 kB per step, "
        "all-reduce runs during 20.0% of step time"
    )
    assert list(pace.values.values()) == pytest.approx([2e6, 2, 12_000, 0.2])


def test_what_compute_does_not_hide_is_known_by_phase() -> None:
    # In each step: 100 ns of the first bucket, 50 ns of the second.
    result = run("collectives", loop())
    assert plain(result.to_frame("phases"), "phase", "count", "exposed_ns") == [
        ("backward", 4, 300)
    ]
    notes = map(note_text, result.notes)
    assert "Exposed time by calling phase: backward 300 ns" in notes


@pytest.mark.parametrize("name", ["collectives", "collective-events", "callers", "buckets"])
def test_where_nothing_could_be_seen_it_says_so(name: str) -> None:
    nothing = make_trace(TraceInfo(), {}, recorded=("host_ops",))
    with pytest.raises(NotRecordedError, match="record a distributed program"):
        run(name, nothing)


@pytest.mark.traces
def test_nccl_metadata_of_a_b200_by_hand(real_trace: Callable[[str], Path]) -> None:
    """25136 bfloat16 of each of 8 ranks in 21.953 µs.

    S = 25136 · 2 · 8 = 402,176 bytes; algbw = 402176 / 21953 ns = 18.3199 GB/s;
    busbw = algbw · 7/8 = 16.0299 GB/s; NVLink 5 carries 900 GB/s in one direction.
    """
    trace = open_trace(real_trace("kineto/2025-b200-rank0of8.json.gz"))
    found = {row.op: row for row in classes(trace)}
    gather = found["all_gather"]
    assert (gather.group_size, gather.count, gather.algorithm) == (8, 1, "RING LL")
    assert (gather.size_bytes, gather.total_ns) == (50_272, 21_953)
    assert gather.algbw_bytes_per_s == pytest.approx(402_176 / 21_953e-9, rel=1e-12)
    assert gather.busbw_bytes_per_s == pytest.approx(16.0299e9, rel=1e-5)
    assert gather.peak_ratio == pytest.approx(0.0178110, rel=1e-4)
    reduce = found["all_reduce"]
    assert (reduce.count, reduce.algorithm, reduce.size_bytes) == (73, "multimem", None)
    assert reduce.busbw_bytes_per_s is None
