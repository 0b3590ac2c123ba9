"""Copies against the links that they use: rates, peaks, exposure, size classes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest

from tests.builders import TraceBuilder
from tests.reading import records
from tests.running import run
from traceprof.formats import open_trace
from traceprof.hardware.catalogue import built_in_hardware
from traceprof.model.trace import Trace
from traceprof.render.formatting import note_text

MIB = 1 << 20


def rows_of(trace: Trace) -> dict[tuple[int, str, str, str], SimpleNamespace]:
    found = records(run("transfers", trace).to_frame())
    return {(row.device, row.route, row.memory, row.sizes): row for row in found}


def test_rate_and_share_of_the_peak_in_this_direction() -> None:
    # 1000 bytes in 100 ns are 10 GB/s; PCIe 3.0 x16 is 15.754 GB/s in one direction.
    trace = (
        TraceBuilder()
        .device(0, "Tesla T4")
        .copy("h2d", 0, 100, n_bytes=1000)
        .copy("d2h", 0, 100, n_bytes=500)
        .build()
    )
    found = rows_of(trace)
    into, back = found[0, "h2d", "pinned", "all"], found[0, "d2h", "pinned", "all"]
    assert into.rate_bytes_per_s == pytest.approx(10e9)
    assert into.peak_ratio == pytest.approx(10 / 15.7538, rel=1e-5)
    assert back.rate_bytes_per_s == pytest.approx(5e9)


def test_a_rate_above_the_peak_is_shown_as_it_is() -> None:
    trace = TraceBuilder().device(0, "Tesla T4").copy("h2d", 0, 100, n_bytes=3151).build()
    ratio = rows_of(trace)[0, "h2d", "pinned", "all"].peak_ratio
    assert ratio is not None
    assert ratio > 2


def test_without_a_known_peak_nothing_is_claimed_and_the_way_out_is_named() -> None:
    trace = TraceBuilder().device(0, "Voodoo 2").copy("h2d", 0, 100, n_bytes=1000).build()
    result = run("transfers", trace)
    assert records(result.to_frame())[0].peak_ratio is None
    assert any("--link pcie=gen4x16" in note.text for note in result.notes)
    given = trace.with_hardware(built_in_hardware().with_link("pcie=20GB/s"))
    assert records(run("transfers", given).to_frame())[0].peak_ratio == pytest.approx(0.5)


def test_what_compute_or_communication_hides_is_not_exposed() -> None:
    trace = (
        TraceBuilder()
        .copy("h2d", 0, 100, n_bytes=1)
        .kernel("gemm", 20, 50, stream=8)
        .kernel("ncclAllReduce", 40, 70, stream=9)
        .kernel("gemm", 0, 100, device=1)
        .build()
    )
    row = rows_of(trace)[0, "h2d", "pinned", "all"]
    assert (row.total_ns, row.exposed_ns) == (100, 50)


def test_copies_side_by_side_count_once_where_time_is_covered() -> None:
    trace = (
        TraceBuilder()
        .copy("h2d", 0, 100, n_bytes=1, stream=1)
        .copy("h2d", 50, 150, n_bytes=1, stream=2)
        .build()
    )
    row = rows_of(trace)[0, "h2d", "pinned", "all"]
    assert (row.count, row.total_ns, row.busy_ns, row.exposed_ns) == (2, 200, 150, 150)


def test_small_copies_cost_more_time_than_their_bytes() -> None:
    # Large: 16 MiB in 1 ms (16.8 GB/s). Small: 1000 bytes in 2000 ns, of which 60 ns are bytes.
    trace = (
        TraceBuilder()
        .copy("h2d", 0, 1_000_000, n_bytes=16 * MIB)
        .copy("h2d", 2_000_000, 2_002_000, n_bytes=1000)
        .build()
    )
    found = rows_of(trace)
    assert found[0, "h2d", "pinned", "16M–256M"].overhead_ns == 0
    assert found[0, "h2d", "pinned", "< 4K"].overhead_ns == 2000 - 60
    assert found[0, "h2d", "pinned", "all"].overhead_ns == 2000 - 60


def test_pageable_memory_and_synchronous_copies_are_pointed_out() -> None:
    trace = (
        TraceBuilder()
        .copy(
            "h2d",
            100,
            1_000_100,
            n_bytes=4 * MIB,
            src_kind="pageable",
            launched_ns=(0, 1_000_200),
            api="cudaMemcpy",
        )
        .copy("h2d", 2_000_000, 2_400_000, n_bytes=4 * MIB, launched_ns=(1_500_000, 1_500_010))
        .build()
    )
    pageable, waiting = map(note_text, run("transfers", trace).notes[:2])
    assert pageable.startswith("50.0% of the h2d bytes use pageable memory")
    assert waiting.startswith("1 of 2 h2d copies are synchronous")
    assert waiting.endswith("The host spends 1.00 ms in these calls.")


def test_peer_copies_go_by_the_pair_and_use_nvlink_where_there_is_one() -> None:
    builder = TraceBuilder().copy("p2p", 0, 100, n_bytes=1500, src_device=0, dst_device=3)
    fast = builder.device(0, "Tesla V100-SXM2-16GB").build()
    row = rows_of(fast)[0, "p2p 0→3", "device", "all"]
    assert (row.peak_bytes_per_s, row.peak_ratio) == (150e9, pytest.approx(0.1))


@pytest.mark.traces
def test_peer_traffic_of_two_v100(real_trace: Callable[[str], Path]) -> None:
    """Sums by SQL on the same file; a V100 has 6 NVLinks of 25 GB/s in each direction."""
    trace = open_trace(real_trace("nsys/2022.4-jacobi-p2p-2gpu.sqlite.gz"))
    found = rows_of(trace)
    there, back = found[0, "p2p 0→3", "device", "all"], found[3, "p2p 3→0", "device", "all"]
    assert (there.count, there.size_bytes) == (2002, 131_203_072)
    assert (back.count, back.size_bytes) == (2002, 131_203_072)
    for row in (there, back):
        assert row.peak_bytes_per_s == 150e9
        assert row.rate_bytes_per_s == pytest.approx(row.size_bytes / row.total_ns * 1e9)
    assert there.peak_ratio == pytest.approx(0.1069, abs=5e-4)
    assert back.peak_ratio == pytest.approx(0.1117, abs=5e-4)
    table = run("bandwidth", trace).to_frame()
    peer = table[table["route"] == "p2p 0→3"]
    assert isinstance(peer, pd.DataFrame)
    assert peer["size_bytes"].sum() == 131_203_072
