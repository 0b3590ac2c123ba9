"""Samples of GPUs by nvidia-smi, dcgmi, and rocm-smi."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.logs.reading import shared
from traceprof.errors import TraceError
from traceprof.logs import read_log
from traceprof.logs.machine_samples import HEAT, samples_in
from traceprof.model.summary import Summary

NAMES = "timestamp, index, utilization.gpu [%], power.draw [W], clocks.current.sm [MHz]"
NAMES += ", temperature.gpu"
REASON = ", clocks_event_reasons.sw_thermal_slowdown"


def query(slow_from: int, *, load: int = 98, heading: bool = True, active: bool = True) -> str:
    """Samples of two GPUs for 20 s; GPU 1 has a low clock from a second on."""
    lines = [NAMES + REASON] if heading else []
    for i in range(20):
        for gpu in range(2):
            slow = gpu == 1 and i >= slow_from
            clock, heat = (1200, 87) if slow else (1980, 66)
            state = "Active" if slow and active else "Not Active"
            row = f"{gpu}, {load} %, 690.12 W, {clock} MHz, {heat}, {state}"
            lines.append(f"2026/03/04 10:00:{i:02}.123, {row}")
    return "\n".join(lines) + "\n"


def samples(tmp_path: Path, text: str, name: str = "smi.csv") -> Summary:
    path = tmp_path / name
    path.write_text(text)
    (run,) = read_log(path)
    return run


def notes(run: Summary) -> list[str]:
    return [note.text for note in run.notes]


@pytest.mark.parametrize("heading", [True, False])
def test_a_gpu_with_a_low_clock_is_named(tmp_path: Path, heading: bool) -> None:
    run = samples(tmp_path, query(12, heading=heading))
    slow, hot = run.notes
    values = dict(slow.values)
    if heading:
        assert values.pop("heat") == 87
    assert values == {"gpu": 1, "clock": 1200, "share": 0.4, "usual": 1980, "at": 12e9}
    assert hot.values == {"gpu": 1, "why": "temperature", "share": 0.4}
    assert run.devices_count == 2
    metrics = run.table("metrics").to_frame()
    clocks = metrics[(metrics["metric"] == "sm_clock_mhz") & (metrics["rank"] == 1)]
    assert clocks["value"].tolist() == [1980] * 12 + [1200] * 8
    assert clocks["at_ns"].tolist() == [i * 1_000_000_000 for i in range(20)]


def test_equal_clocks_and_idle_gpus_are_not_named(tmp_path: Path) -> None:
    assert samples(tmp_path, query(99)).notes == ()
    idle = samples(tmp_path, query(12, load=0, active=False))
    assert notes(idle) == ["no sample shows a loaded GPU, so clocks are not compared"]


def test_bits_are_reasons(tmp_path: Path) -> None:
    text = "timestamp, index, clocks_throttle_reasons.active\n" + "".join(
        f"2026/03/04 10:00:0{i}.000, 0, 0x00000000000000{bits}\n"
        for i, bits in enumerate(("00", "04", "20", "01"))
    )
    run = samples(tmp_path, text)
    assert run.measure("throttled_by_power_ratio") == 0.25
    assert run.measure("throttled_by_heat_ratio") == 0.25


def test_without_units(tmp_path: Path) -> None:
    text = query(12).replace(" MHz,", ",").replace(" %,", ",").replace(" W,", ",")
    run = samples(tmp_path, text)
    assert run.measure("median_power_watts") == 690.12
    assert run.notes[0].values["clock"] == 1200


@pytest.mark.parametrize("has_time", [True, False])
def test_dmon(tmp_path: Path, has_time: bool) -> None:
    stamp = ("#Date       Time     ", "#YYYYMMDD  HH:MM:SS ") if has_time else ("#", "#")
    text = f"{stamp[0]} gpu    pwr  gtemp     sm   mclk   pclk  pviol  tviol\n"
    text += f"{stamp[1]} Idx      W      C      %    MHz    MHz      %   bool\n"
    for i in range(10):
        when = f" 20260304 10:00:0{i} " if has_time else "  "
        for gpu in range(2):
            clock, flag = (1200, 1) if gpu and i >= 5 else (1980, 0)
            text += f"{when}  {gpu}    690     66     98   2619   {clock}      0      {flag}\n"
    run = samples(tmp_path, text, "dmon.txt")
    assert run.origin == "samples:dmon"
    slow = next(note for note in run.notes if "runs at" in note.text)
    assert (slow.values["gpu"], slow.values["clock"]) == (1, 1200)
    assert slow.values.get("at") == (5e9 if has_time else None)
    assert ("no time stamps" in notes(run)[0]) is not has_time
    assert run.measure("throttled_by_heat_ratio") == 0.25


def test_dcgmi(tmp_path: Path) -> None:
    text = "#Entity   TMPTR        POWER        SMCLK      GPUTL\nID        C            W\n"
    text += "".join(
        f"GPU {gpu}     {60 + gpu}           {600.5}        {1980 - 700 * gpu}       97\n"
        for _ in range(6)
        for gpu in range(2)
    )
    run = samples(tmp_path, text, "dcgmi.txt")
    assert run.origin == "samples:dcgmi"
    slow = next(note for note in run.notes if "runs at" in note.text)
    assert (slow.values["gpu"], slow.values["clock"], slow.values["heat"]) == (1, 1280, 61)


def test_rocm_smi(tmp_path: Path) -> None:
    heading = "device,Temperature (Sensor junction) (C),Average Graphics Package Power (W),"
    heading += "sclk clock speed:,GPU use (%)\n"
    text = "".join(
        f"{heading}card0,60.0,300.0,(1700Mhz),99\ncard1,90.0,250.0,(1100Mhz),99\n\n"
        for _ in range(5)
    )
    run = samples(tmp_path, text)
    assert run.origin == "samples:rocm-smi"
    slow = next(note for note in run.notes if "runs at" in note.text)
    assert (slow.values["gpu"], slow.values["clock"], slow.values["heat"]) == (1, 1100, 90)


def test_files_without_known_columns(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("gpus,img/s\n1,226\n")
    assert samples_in(path) is None
    path.write_text("#Entity   ECCSB\nID\nGPU 0     0\n")
    with pytest.raises(TraceError, match="without a known column"):
        samples_in(path)


def test_the_samples_beside_the_checkout() -> None:
    found = samples_in(shared("../wild/2026-11-28/nvidia-smi.csv"))
    assert found is not None
    assert found.gpus() == [0, 1]
    assert found.series(0, HEAT).sum() == 0 < found.series(1, HEAT).sum()
