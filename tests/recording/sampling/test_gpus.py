"""What NVML is asked, and in which units its answers arrive, through the real pynvml package."""

import math

import pytest

from tests.reading import records
from tests.recording.sampling.fake_nvml import (
    ALL_LINKS,
    UNSIGNED_INT,
    UNSIGNED_LONG_LONG,
    FakeLibrary,
)
from tests.running import run
from traceprof.formats import open_trace
from traceprof.formats.nsys.writer import write_nsys
from traceprof.recording.captured import Captured
from traceprof.recording.captured_trace import make_spool_trace
from traceprof.recording.machine import gpu_facts
from traceprof.recording.sampling.gpus import PcieCounters, open_gpus
from traceprof.recording.sampling.sampler import Sample

nvml = pytest.importorskip("pynvml")
NVLINK = {(138, ALL_LINKS): (3, UNSIGNED_LONG_LONG), (139, ALL_LINKS): (7, UNSIGNED_LONG_LONG)}


@pytest.fixture
def plug_in(monkeypatch):
    """Return a function that puts a fake library under the real package."""

    def plug(**more):
        library = FakeLibrary(**more)
        monkeypatch.setattr(nvml, "nvmlLib", library)
        monkeypatch.setattr(nvml, "_nvmlGetFunctionPointer_cache", {})
        return library

    return plug


def read_once():
    return {
        (source, metric): value for _period, read in open_gpus() for source, metric, value in read()
    }


def test_every_metric_with_its_unit(plug_in):
    fields = {**NVLINK, (197, 0): (5_000, UNSIGNED_INT), (198, 0): (6_000, UNSIGNED_INT)}
    plug_in(fields=fields)
    assert read_once() == {
        ("gpu:0", "utilization_percent"): 87,
        ("gpu:0", "memory_utilization_percent"): 40,
        ("gpu:0", "memory_used_bytes"): 5 << 30,
        ("gpu:0", "power_watts"): 312.5,
        ("gpu:0", "nvlink_bytes_sent"): 3 * 1024,
        ("gpu:0", "nvlink_bytes_received"): 7 * 1024,
        ("gpu:0", "sm_clock_mhz"): 1410,
        ("gpu:0", "memory_clock_mhz"): 1593,
        ("gpu:0", "throttled_by_power"): 1,
        ("gpu:0", "throttled_by_heat"): 0,
        ("gpu:0", "pcie_generation"): 1,
        ("gpu:0", "pcie_lanes"): 8,
        ("gpu:0", "pcie_bytes_sent"): 0,  # cumulative from the first look on
        ("gpu:0", "pcie_bytes_received"): 0,
    }


def test_what_a_gpu_does_not_support_is_left_out(plug_in):
    plug_in(
        n_gpus=2,
        fields={(138, ALL_LINKS): (3, UNSIGNED_LONG_LONG)},
        unsupported={
            "nvmlDeviceGetUtilizationRates",
            "nvmlDeviceGetMemoryInfo",
            "nvmlDeviceGetPowerUsage",
            "nvmlDeviceGetClockInfo",
            "nvmlDeviceGetCurrPcieLinkGeneration",
            "nvmlDeviceGetPcieThroughput",
            "nvmlDeviceGetCurrentClocksEventReasons",
        },
    )
    assert read_once() == {
        (f"gpu:{number}", metric): value
        for number in (0, 1)
        for metric, value in (
            ("nvlink_bytes_sent", 3 * 1024),
            ("throttled_by_power", 0),  # as the older function says
            ("throttled_by_heat", 1),
        )
    }


def test_a_driver_without_counters_of_pcie_measures_it_now_and_then(plug_in):
    plug_in(n_gpus=8, values={"throughput": {0: 120, 1: 2_500_000}})
    values = read_once()
    assert values["gpu:7", "pcie_sent_bytes_per_s"] == 120_000
    assert values["gpu:7", "pcie_received_bytes_per_s"] == 2_500_000_000
    assert ("gpu:0", "pcie_bytes_sent") not in values
    periods = [period for period, _ in open_gpus()][3:]
    assert len(periods) == 16
    assert sum(0.02 / period for period in periods) <= 0.2  # of the time of the sampler


@pytest.mark.parametrize("name", ["nvmlInitWithFlags", "nvmlDeviceGetCount_v2"])
def test_without_a_driver_nothing_is_sampled(plug_in, name):
    plug_in(unsupported={name})
    assert open_gpus() == []
    assert gpu_facts() == {}


def look_at(plug_in, looks, kind=UNSIGNED_INT, wrap_time_s=0.1):
    """Return the cumulative counters after looks at (time in s, sent, received)."""
    library = plug_in(fields={(197, 0): (0, kind), (198, 0): (0, kind)})
    handle = nvml.nvmlDeviceGetHandleByIndex(0)
    times = iter([time_s for time_s, _, _ in looks])
    counters = PcieCounters(nvml, handle, "gpu:0", wrap_time_s, clock=lambda: next(times))
    found = []
    for _, sent, received in looks:
        library.fields = {(197, 0): (sent, kind), (198, 0): (received, kind)}
        found += [value for _, _, value in counters.read()]
    return found


def test_counters_of_32_bits_go_on_where_they_wrap(plug_in):
    near = 2**32 - 1_000
    looks = [(0.0, near, 0), (0.05, 500, 9), (0.1, 600, 9), (0.15, 700, 9), (0.2, 700, 20)]
    assert look_at(plug_in, looks) == [0, 0, 1_700, 20]


def test_a_counter_that_may_have_wrapped_unseen_is_not_known(plug_in):
    looks = [(0.0, 0, 0), (0.05, 1, 0), (0.3, 2, 0), (0.31, 3, 0), (0.35, 4, 0)]
    looks += [(0.4, 5, 0), (0.45, 6, 0), (0.5, 7, 0), (0.55, 8, 0)]
    found = look_at(plug_in, looks)
    assert found[:2] == [0, 0]
    assert all(math.isnan(value) for value in found[2:4])
    assert found[4:] == [8, 0]  # known again, from the same start


def test_counters_of_64_bits_need_no_haste(plug_in):
    looks = [(10.0 * i, 2**33 * i, 0) for i in range(5)]
    assert look_at(plug_in, looks, kind=UNSIGNED_LONG_LONG) == [0, 0, 4 * 2**33, 0]


def test_a_link_that_can_outrun_32_bits_is_measured_instead(plug_in):
    fields = {(197, 0): (0, UNSIGNED_INT), (198, 0): (0, UNSIGNED_INT)}
    values = {"nvmlDeviceGetMaxPcieLinkGeneration": 6, "throughput": {0: 1, 1: 2}}
    plug_in(fields=fields, values=values)
    assert ("gpu:0", "pcie_bytes_sent") not in read_once()
    assert read_once()["gpu:0", "pcie_sent_bytes_per_s"] == 1_000


def test_samples_arrive_in_the_analysis_as_share_of_the_link(tmp_path):
    start_ns, path = 10**18, tmp_path / "run.sqlite"
    looks = [0, 1e9, math.nan, 3e9, 4e9]
    samples = [
        Sample(start_ns + i * 10**9, "gpu:0", metric, value)
        for metric, factor in (("pcie_bytes_sent", 1), ("nvlink_bytes_received", 30))
        for i, look in enumerate(looks)
        for value in (look * factor,)
    ]
    facts = {"gpu.0.pcie": "gen 4 x16", "gpu.0.name": "NVIDIA A100-SXM4-80GB"}
    captured = Captured([], [], (), samples)
    write_nsys(
        make_spool_trace(captured, lambda times: times - start_ns, facts, None, "here"), path
    )
    nvlink, pcie = records(run("network", open_trace(path)).to_frame())
    assert (pcie.link, pcie.direction) == ("pcie", "sent")
    assert (pcie.size_bytes, pcie.duration_ns) == (2 * 10**9, 2 * 10**9)
    assert pcie.peak_ratio == pytest.approx(1 / 31.508, rel=1e-3)  # 16 GT/s · 16 · 128/130 / 8
    assert (nvlink.link, nvlink.direction) == ("nvlink", "received")
    assert nvlink.peak_ratio == pytest.approx(30 / 300)  # 12 links of 25 GB/s


def test_facts_about_driver_gpus_and_their_links(plug_in):
    plug_in(
        n_gpus=2,
        fields={(90, 0): (25_000, UNSIGNED_INT)},
        values={"links": 4, "remote": lambda gpu, _link: 1 - gpu},
    )
    one = {
        "name": "NVIDIA A100-SXM4-80GB",
        "uuid": "GPU-1234",
        "memory_bytes": str(80 << 30),
        "compute_capability": "8.0",
        "pcie": "gen 4 x16",
        "nvlink": "4 links of 25 GB/s",
    }
    assert gpu_facts() == {
        "driver": "570.86.15",
        "driver.cuda": "12.8",
        **{f"gpu.0.{name}": value for name, value in one.items()},
        **{f"gpu.1.{name}": value for name, value in one.items()},
        "gpu.0.path.1": "PXB",
        "nvlink device 0 - device 1": "4 links, 200 GB/s",
    }


def test_a_fact_that_is_not_supported_takes_no_other_with_it(plug_in):
    plug_in(unsupported={"nvmlDeviceGetMaxPcieLinkWidth", "nvmlDeviceGetUUID"})
    facts = gpu_facts()
    assert facts["gpu.0.name"] == "NVIDIA A100-SXM4-80GB"
    assert not {"gpu.0.pcie", "gpu.0.uuid", "gpu.0.nvlink"} & set(facts)
