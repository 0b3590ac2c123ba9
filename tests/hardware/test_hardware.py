"""The table of hardware: which model a device is, and what its links can do."""

from __future__ import annotations

import pytest

from tests.builders import TraceBuilder
from traceprof.errors import UsageError
from traceprof.hardware.catalogue import (
    Link,
    built_in_hardware,
    parse_hardware,
    parse_link,
    pcie_peak,
)
from traceprof.measures.device.peaks import peak_between, peak_of
from traceprof.model.timing import TimeWindow


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("NVIDIA H200", "h200-sxm"),
        ("NVIDIA H200 NVL", "h200-nvl"),
        ("NVIDIA H20", "h20"),
        ("NVIDIA GB200", "gb200"),
        ("NVIDIA B200", "b200"),
        ("NVIDIA L40S", "l40s"),
        ("NVIDIA L40", "l40"),
        ("NVIDIA L4", "l4"),
        ("NVIDIA A100-SXM4-80GB", "a100-sxm"),
        ("A100-SXM4-40GB", "a100-sxm-40gb"),
        ("NVIDIA A100 80GB PCIe", "a100-pcie"),
        ("NVIDIA A10", "a10"),
        ("NVIDIA H100 80GB HBM3", "h100-sxm"),
        ("NVIDIA H100 PCIe", "h100-pcie"),
        ("NVIDIA GeForce RTX 3090 Ti", "rtx-3090-ti"),
        ("NVIDIA GeForce RTX 3090", "rtx-3090"),
        ("Tesla V100-SXM2-16GB", "v100-sxm"),
        ("Tesla V100S-PCIE-32GB", "v100s-pcie"),
        ("Tesla T4", "t4"),
        ("GRACE HOPPER GH200 480GB", "gh200"),
        ("NVIDIA H20-3e", "h20-141gb"),
        ("NVIDIA GB300", "gb300"),
        ("NVIDIA B300 SXM6 AC", "b300"),
        ("NVIDIA GeForce RTX 4080 SUPER", "rtx-4080-super"),
        ("NVIDIA GeForce RTX 5080", "rtx-5080"),
        ("AMD Instinct MI250X", "mi250"),
        ("AMD Instinct MI325X", "mi325x"),
        ("AMD Instinct MI355X", "mi350x"),
    ],
)
def test_the_longest_name_that_stands_in_the_device_wins(name: str, key: str) -> None:
    gpu = built_in_hardware().find(name)
    assert gpu is not None
    assert gpu.key == key


@pytest.mark.parametrize(
    "name",
    [
        "",
        "NVIDIA A10G",
        "Quadro P2000",
        "AMD Instinct MI210",
        "NVIDIA A100-SXM4-40GB MIG 1g.5gb",
        "NVIDIA GeForce RTX 4090 Laptop GPU",
    ],
)
def test_what_is_not_known_is_not_guessed(name: str) -> None:
    assert built_in_hardware().find(name) is None
    assert built_in_hardware().peak(Link.PCIE, name) is None


@pytest.mark.parametrize(
    ("name", "sms", "flop_per_clock", "mhz"),
    [
        ("NVIDIA A100-SXM4-80GB", 108, 2048, 1410),
        ("NVIDIA A30", 56, 2048, 1440),
        ("NVIDIA A10", 72, 1024, 1695),
        ("NVIDIA A40", 84, 1024, 1740),
        ("NVIDIA L4", 58, 1024, 2040),
        ("NVIDIA L40", 142, 512, 2490),
        ("NVIDIA L40S", 142, 1024, 2490),
        ("NVIDIA GeForce RTX 3090", 82, 512, 1695),
        ("NVIDIA GeForce RTX 4090", 128, 512, 2520),
        ("NVIDIA GeForce RTX 5090", 170, 512, 2407),
        ("NVIDIA H100 80GB HBM3", 132, 4096, 1830),
        ("NVIDIA H100 PCIe", 114, 4096, 1620),
        ("NVIDIA H200", 132, 4096, 1830),
        ("NVIDIA B200", 148, 8192, 1856),
        ("NVIDIA GB200", 152, 8192, 2008),
        ("AMD Instinct MI300X", 304, 2048, 2100),
        ("AMD Instinct MI325X", 304, 2048, 2100),
    ],
)
def test_peaks_are_what_dense_multipliers_give_never_the_sparse_ones(
    name: str, sms: int, flop_per_clock: int, mhz: int
) -> None:
    gpu = built_in_hardware().find(name)
    assert gpu is not None
    assert gpu.flops_per_s["bf16"] == pytest.approx(sms * flop_per_clock * mhz * 1e6, rel=0.01)
    for precision, times in (("fp8", 2.0), ("tf32", 0.5)):
        if precision in gpu.flops_per_s:
            assert gpu.flops_per_s[precision] <= 1.02 * times * gpu.flops_per_s["bf16"]


def test_no_model_multiplies_half_precision_more_than_twice_as_fast_as_tf32() -> None:
    """Sparse rates are twice the dense ones: one of them among dense ones stands out."""
    for gpu in built_in_hardware().gpus:
        rates = gpu.flops_per_s
        if "tf32" in rates and "bf16" in rates:
            assert 1.9 * rates["tf32"] <= rates["bf16"] <= 2.1 * rates["tf32"], gpu.key


def test_every_model_has_a_source_and_a_key_of_its_own() -> None:
    gpus = built_in_hardware().gpus
    assert len({gpu.key for gpu in gpus}) == len(gpus)
    assert all(peak.source for gpu in gpus for peak in gpu.peaks.values())
    assert all(gpu.peaks for gpu in gpus)


@pytest.mark.parametrize(
    ("name", "gb_per_s"),
    [("Tesla V100-SXM2-16GB", 150), ("NVIDIA H100 80GB HBM3", 450), ("NVIDIA B200", 900)],
)
def test_nvlink_is_half_of_what_data_sheets_print(name: str, gb_per_s: float) -> None:
    peak = built_in_hardware().peak(Link.NVLINK, name)
    assert peak is not None
    assert peak.bytes_per_s == gb_per_s * 1e9


def test_links_of_amd_bear_their_own_name() -> None:
    peak = built_in_hardware().peak(Link.NVLINK, "AMD Instinct MI300X")
    assert peak is not None
    assert (peak.bytes_per_s, peak.what) == (448e9, "Infinity Fabric, 7 links of 64 GB/s")


@pytest.mark.parametrize(
    ("generation", "lanes", "gb_per_s"),
    [(1, 16, 4.0), (2, 8, 4.0), (3, 16, 15.754), (4, 16, 31.508), (5, 16, 63.015), (6, 16, 118.0)],
)
def test_pcie_by_generation_and_width(generation: int, lanes: int, gb_per_s: float) -> None:
    assert pcie_peak(generation, lanes).bytes_per_s / 1e9 == pytest.approx(gb_per_s, abs=5e-4)


@pytest.mark.parametrize(
    ("text", "link", "gb_per_s"),
    [
        ("pcie=gen4x16", Link.PCIE, 31.508),
        ("PCIe = Gen3 x8", Link.PCIE, 7.877),
        ("nic=400Gb/s", Link.NIC, 50),
        ("nic=25Gbps", Link.NIC, 3.125),
        ("nvlink=450GB/s", Link.NVLINK, 450),
        ("memory=3.35TB/s", Link.MEMORY, 3350),
    ],
)
def test_links_as_people_write_them(text: str, link: Link, gb_per_s: float) -> None:
    found, peak = parse_link(text)
    assert found is link
    assert peak.bytes_per_s / 1e9 == pytest.approx(gb_per_s, abs=5e-4)
    assert "--link" in peak.source


@pytest.mark.parametrize(
    "text",
    ["pcie", "pcie=", "pcie=gen9x16", "pcie=gen4x3", "usb=5GB/s", "nic=gen4x16", "nic=0GB/s", "=1"],
)
def test_what_is_no_link_is_an_error_of_one_line(text: str) -> None:
    with pytest.raises(UsageError) as error:
        parse_link(text)
    assert "\n" not in str(error.value)


def test_the_users_file_goes_in_front() -> None:
    own = parse_hardware(
        """
        [link]
        nic = "100Gb/s"
        [[gpu]]
        key = "mine"
        names = ["B200"]
        memory_gb_per_s = 7700
        source = "our vendor's sheet"
        """
    )
    both = own.over(built_in_hardware())
    memory, nic = both.peak(Link.MEMORY, "NVIDIA B200"), both.peak(Link.NIC, "NVIDIA B200")
    assert memory is not None
    assert nic is not None
    assert (memory.bytes_per_s, memory.source) == (7.7e12, "our vendor's sheet")
    assert nic.bytes_per_s == 12.5e9
    assert both.find("NVIDIA GB200") is built_in_hardware().find("NVIDIA GB200")


@pytest.mark.parametrize(
    "text",
    [
        "[[gpu]",
        "gpu = 3",
        "[[gpu]]\nkey = 'x'",
        "[[gpu]]\nkey='x'\nnames='x'\nsource='s'",
        "[[gpu]]\nkey='x'\nnames=['x']\nsource='s'\nmemory_gb_per_s='fast'",
        "[[gpu]]\nkey='x'\nnames=['x']\nsource='s'\nmemory=3",
        "[[gpu]]\nkey='x'\nnames=['x']\nsource='s'\nnvlink_links=3",
        "[link]\nnic = 'fast'",
    ],
)
def test_a_file_that_is_not_understood_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        parse_hardware(text)


def test_the_user_wins_over_the_trace_and_the_trace_over_the_table() -> None:
    trace = (
        TraceBuilder()
        .kernel("gemm", 0, 10)
        .device(0, "NVIDIA H100 80GB HBM3", memory_bytes_per_s=3_000_000_000_000)
        .build()
    )
    said = peak_of(trace, 0, Link.MEMORY)
    assert said is not None
    assert (said.bytes_per_s, said.source) == (3e12, "the trace")
    given = built_in_hardware().with_link("memory=2TB/s").with_gpu("a100-sxm")
    part = trace.with_hardware(given).within(TimeWindow(0, 5))
    memory, nvlink = peak_of(part, 0, Link.MEMORY), peak_of(part, 0, Link.NVLINK)
    assert memory is not None
    assert nvlink is not None
    assert (memory.bytes_per_s, nvlink.bytes_per_s) == (2e12, 300e9)
    assert peak_of(part, 5, Link.NIC) is None


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("gpu.1.pcie", "gen 3 x8"),
        ("pcie device 1", "generation 3, 8 lanes, 8 GT/s each"),
    ],
)
def test_the_slot_that_the_trace_tells_wins_over_what_the_gpu_could_do(
    name: str, value: str
) -> None:
    builder = TraceBuilder().kernel("gemm", 0, 1).device(1, "NVIDIA H100 PCIe")
    peak = peak_of(builder.setting(name, value).build(), 1, Link.PCIE)
    assert peak is not None
    assert (peak.bytes_per_s / 1e9, peak.source) == (pytest.approx(7.877, abs=5e-4), "the trace")


def test_a_driver_that_does_not_know_its_slot_leaves_the_table() -> None:
    builder = TraceBuilder().kernel("gemm", 0, 1).device(0, "Tesla T4")
    peak = peak_of(builder.setting("gpu.0.pcie", "gen 0 x0").build(), 0, Link.PCIE)
    assert peak is not None
    assert peak.what == "PCIe 3.0 x16"


def test_links_between_two_devices_are_only_a_part_of_all() -> None:
    builder = TraceBuilder().kernel("gemm", 0, 1).device(0, "Tesla V100-SXM2-16GB")
    builder.setting("nvlink device 0 - device 3", "2 links, 100 GB/s")
    builder.setting("nvlink device 0 - device 1", "1 links, 50 GB/s")
    trace = builder.build()
    pair, whole = peak_between(trace, 3, 0), peak_of(trace, 0, Link.NVLINK)
    assert pair is not None
    assert whole is not None
    assert (pair.bytes_per_s, whole.bytes_per_s) == (50e9, 75e9)
    given = trace.with_hardware(built_in_hardware().with_link("nvlink=25GB/s"))
    said = peak_between(given, 0, 3)
    assert said is not None
    assert said.bytes_per_s == 25e9


def test_a_model_that_is_not_known_lists_those_that_are() -> None:
    with pytest.raises(UsageError, match="h100-sxm"):
        built_in_hardware().with_gpu("h1000")
    named = built_in_hardware().with_gpu("AMD Instinct MI300X").chosen
    assert named is not None
    assert named.key == "mi300x"
    with pytest.raises(UsageError, match="unknown GPU"):
        built_in_hardware().with_gpu("NVIDIA A100-SXM4-40GB MIG 1g.5gb")


@pytest.mark.parametrize("rate", ["inf", "nan", "1" + "0" * 400, "-inf", "true"])
def test_a_rate_is_a_number_that_can_be(rate: str) -> None:
    text = f'[[gpu]]\nkey = "k"\nnames = ["n"]\nsource = "s"\npcie_generation = {rate}\n'
    with pytest.raises(UsageError, match="must be a number above 0"):
        parse_hardware(text)


@pytest.mark.parametrize("value", ["[" * 9_000 + "]" * 9_000, "1" * 9_000])
def test_toml_that_python_cannot_read_is_refused(value: str) -> None:
    with pytest.raises(UsageError, match="hardware: invalid TOML"):
        parse_hardware(f"x = {value}")
