"""Network counters as traffic, beside the collectives that cause it."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tests.builders import TraceBuilder, plain
from tests.reading import records
from tests.running import run
from traceprof.errors import NotRecordedError
from traceprof.hardware.catalogue import built_in_hardware
from traceprof.model.timing import TimeWindow
from traceprof.model.trace import Trace
from traceprof.render.formatting import note_text


def counter(*values: float, metric: str = "bytes_sent", source: str = "nic:eth0") -> TraceBuilder:
    """Samples of a counter at 0, 100, 200 … ns."""
    builder = TraceBuilder()
    for place, value in enumerate(values):
        builder.sample(metric, 100 * place, value, source=source)
    return builder


def only(trace: Trace) -> SimpleNamespace:
    (row,) = records(run("network", trace).to_frame())
    return row


def test_a_counter_becomes_bytes_between_samples() -> None:
    trace = counter(5000, 6000, 9000).build(span=(0, 200))
    table = run("network-time", trace).to_frame()
    assert plain(table, "at_ns", "duration_ns", "size_bytes") == [(0, 100, 1000), (100, 100, 3000)]
    assert table["rate_bytes_per_s"].tolist() == pytest.approx([10e9, 30e9])
    row = only(trace)
    assert (row.size_bytes, row.direction) == (4000, "sent")
    assert row.rate_bytes_per_s == pytest.approx(20e9)
    assert row.top_rate_bytes_per_s == pytest.approx(30e9)


def test_a_window_takes_its_share_of_an_interval() -> None:
    trace = counter(0, 1000, 3000).build(span=(0, 200))
    assert only(trace.within(TimeWindow(50, 110))).size_bytes == 500 + 200


def test_a_counter_that_was_reset_gives_nothing_for_that_interval() -> None:
    row = only(counter(5000, 100, 300).build(span=(0, 200)))
    assert (row.size_bytes, row.duration_ns) == (200, 100)


def test_what_was_not_read_is_no_traffic() -> None:
    row = only(counter(0, 1000, float("nan"), 5000, 5100).build(span=(0, 400)))
    assert (row.size_bytes, row.duration_ns) == (1100, 200)


def test_the_speed_that_was_recorded_is_used() -> None:
    trace = counter(0, 125).setting("nic.eth0.speed_mbit_per_s", "25000").build(span=(0, 100))
    assert only(trace).peak_ratio == pytest.approx(1.25 / 3.125)
    rdma = counter(0, 125, source="rdma:mlx5_0:2")
    rdma.setting("rdma.mlx5_0.2.rate", "200 Gb/sec (4X HDR)")
    assert only(rdma.build(span=(0, 100))).peak_ratio == pytest.approx(1.25 / 25)


def test_utilization_needs_the_speed_of_the_link() -> None:
    trace = counter(0, 1000).build(span=(0, 100))
    result = run("network", trace)
    assert records(result.to_frame())[0].peak_ratio is None
    assert any("--link nic=400Gb/s" in note.text for note in result.notes)
    given = trace.with_hardware(built_in_hardware().with_link("nic=400Gb/s"))
    assert only(given).peak_ratio == pytest.approx(10 / 50)
    loopback = counter(0, 1000, source="nic:lo").build(span=(0, 100)).with_hardware(given.hardware)
    assert only(loopback).peak_ratio is None


def test_nvlink_counters_are_held_against_nvlink() -> None:
    builder = counter(0, 45_000, metric="nvlink_bytes_sent", source="gpu:0")
    trace = builder.device(0, "NVIDIA H100 80GB HBM3").build(span=(0, 1000))
    assert only(trace).peak_ratio == pytest.approx(1.0)


def test_pcie_is_held_against_the_link_of_its_gpu() -> None:
    builder = counter(0, 63, metric="pcie_bytes_received", source="gpu:3")
    builder.setting("gpu.3.pcie", "gen 5 x16")
    row = only(builder.build(span=(0, 100)))
    assert (row.link, row.direction) == ("pcie", "received")
    # 32 GT/s · 16 lanes · 128/130 / 8 bits
    assert row.rate_bytes_per_s == pytest.approx(0.63e9)
    assert row.peak_ratio == pytest.approx(0.63e9 / 63.015e9, rel=1e-4)


def test_a_time_for_which_a_counter_is_not_known_is_not_counted() -> None:
    row = only(counter(100, 200, float("nan"), 900, 1000, metric="pcie_bytes_sent").build())
    assert (row.size_bytes, row.duration_ns) == (200, 200)


def test_measurements_of_20_ms_count_for_these_and_say_so() -> None:
    builder = TraceBuilder()
    for at_s in (0, 1):
        builder.sample("pcie_sent_bytes_per_s", at_s * 10**9, 5e9, source="gpu:0")
    result = run("network", builder.build(span=(0, 2 * 10**9)))
    (row,) = records(result.to_frame())
    assert (row.size_bytes, row.duration_ns) == (200_000_000, 40_000_000)
    assert row.rate_bytes_per_s == pytest.approx(5e9)
    (note,) = result.notes
    assert note_text(note) == (
        "The samples of pcie on gpu:0 cover 2.0% of the window. The bytes are for that part only."
    )


@pytest.mark.parametrize(
    ("source", "fact", "value", "bytes_per_s"),
    [
        ("nic:eth0", "nic.eth0.speed_mbit_per_s", "25000", 3.125e9),
        ("rdma:mlx5_0:1", "rdma.mlx5_0.1.rate", "400 Gb/sec (4X NDR)", 50e9),
    ],
)
def test_the_speed_of_an_interface_is_what_the_machine_said(
    source: str, fact: str, value: str, bytes_per_s: float
) -> None:
    trace = counter(0, 1000, source=source).setting(fact, value).build(span=(0, 100))
    assert only(trace).peak_ratio == pytest.approx(10e9 / bytes_per_s)
    assert only(trace).top_ratio == only(trace).peak_ratio


def test_the_links_that_the_driver_counts_serve_where_the_gpu_is_not_known() -> None:
    builder = counter(0, 45_000, metric="nvlink_bytes_sent", source="gpu:0")
    trace = builder.setting("gpu.0.nvlink", "4 links of 25 GB/s").build(span=(0, 1000))
    assert only(trace).peak_ratio == pytest.approx(4.5)


def test_beside_the_collectives_that_caused_it() -> None:
    # 800 bytes over [50, 150): half of them in each interval.
    builder = counter(0, 1000, 1500, 1500)
    builder.collective("all_reduce", 50, 150, n_bytes=800, backend="gloo")
    table = run("network-time", builder.build(span=(0, 300))).to_frame()
    assert plain(table, "size_bytes", "collective_ratio", "collective_bytes") == [
        (1000, 0.5, 400),
        (500, 0.5, 400),
        (0, 0.0, 0),
    ]


def test_sockets_of_a_process_are_held_against_its_own_collectives() -> None:
    builder = counter(0, 1000, metric="tcp_bytes_sent", source="process:2")
    for process in (1, 2):
        builder.collective(
            "all_reduce", 0, 100, n_bytes=100 * process, backend="gloo", process=process
        )
    row = only(builder.build(span=(0, 100)))
    assert (row.collective_bytes, row.in_collectives_bytes) == (200, 1000)


def test_samples_of_other_things_are_no_traffic() -> None:
    result = run("network", TraceBuilder().sample("power_watts", 0, 300.0).build())
    assert result.table.empty
    assert "the trace contains no network counters" in result.notes[0].text


@pytest.mark.parametrize("name", ["network", "network-time"])
def test_without_samples_it_abstains(name: str) -> None:
    with pytest.raises(NotRecordedError, match="no samples recorded"):
        run(name, TraceBuilder().kernel("gemm", 0, 1).build())
