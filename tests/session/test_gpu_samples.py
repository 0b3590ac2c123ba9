"""Samples of GPUs beside a trace: findings on slow steps and late ranks name clocks and limits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.findings.found import findings_of
from tests.findings.test_drift import MS, late, training
from tests.findings.test_imbalance import job
from traceprof.errors import TraceError, UsageError
from traceprof.model.ranks import Ranks
from traceprof.model.results import Note
from traceprof.model.tables import make_table
from traceprof.render.formatting import note_text
from traceprof.session.gpu_samples import with_gpu_samples

START = datetime(2026, 3, 4, 10, 0, 0, tzinfo=UTC)
HEADING = (
    "timestamp, index, clocks.current.sm [MHz], temperature.gpu, power.draw [W], "
    "clocks_event_reasons.sw_thermal_slowdown, clocks_event_reasons.sw_power_cap\n"
)


def placed(ranks: Ranks) -> Ranks:
    return replace(ranks, info=replace(ranks.info, utc_epoch_ns=int(START.timestamp()) * 10**9))


def drifting() -> Ranks:
    """Return 30 steps of 41 ms times 100; they take 65 ms times 100 from step 12 on."""
    return placed(Ranks.of(training(late(1000, 1600), wait_ms=lambda _: 100)))


def write(
    path: Path,
    is_slow: Callable[[int, float], bool],
    *,
    gpus: int = 1,
    every_ms: int = 1000,
    until_s: float = 200,
    hours: float = 0,
) -> Path:
    """Write samples of nvidia-smi in a time zone, with a low clock at the given GPUs and times."""
    lines = [HEADING]
    for at_ms in range(-2000, round(until_s * 1000), every_ms):
        stamp = START + timedelta(milliseconds=at_ms, hours=hours)
        for gpu in range(gpus):
            slow = is_slow(gpu, at_ms / 1000)
            values = "1240 MHz, 87, 410 W, Active" if slow else "1980 MHz, 66, 690 W, Not Active"
            text = f"{stamp:%Y/%m/%d %H:%M:%S}.{stamp.microsecond // 1000:03d}"
            lines.append(f"{text}, {gpu}, {values}, Not Active\n")
    path.write_text("".join(lines))
    return path


def evidence(ranks: Ranks, rule: str) -> str:
    (found,) = [one for one in findings_of(ranks) if one.rule == rule]
    return "; ".join((*found.evidence, found.action))


def test_a_drift_names_the_clock_the_limit_the_heat_and_the_power(tmp_path: Path) -> None:
    from_s = 12 * 4.1
    ranks, note = with_gpu_samples(drifting(), write(tmp_path / "s.csv", lambda _, s: s > from_s))
    text = evidence(ranks, "slower_steps")
    assert "the GPU clock was 1,240 MHz instead of 1,980 MHz" in text
    assert "limited by heat" in text
    assert "limited by power" not in text
    assert "87 °C instead of 66 °C" in text
    assert "410 W instead of 690 W" in text
    assert "Improve cooling" in text
    assert note_text(note) == "the times in s.csv are read as UTC+0"


def test_a_drift_with_equal_clocks_has_another_cause(tmp_path: Path) -> None:
    ranks, _ = with_gpu_samples(drifting(), write(tmp_path / "s.csv", lambda *_: False))
    text = evidence(ranks, "slower_steps")
    assert "GPU clock 1,980 MHz before, 1,980 MHz after" in text
    assert "limited by" not in text
    assert "Improve cooling" not in text


def test_a_straggler_names_its_own_gpu(tmp_path: Path) -> None:
    def work(rank: int, _step: int) -> tuple[int, int, int]:
        return 0, (60 if rank == 2 else 20) * MS, 32

    ranks = placed(job(work))
    for slow, is_named in ((2, True), (1, False), (7, False)):
        path = write(
            tmp_path / "s.csv", lambda gpu, _, n=slow: gpu == n, gpus=4, every_ms=100, until_s=2
        )
        text = evidence(with_gpu_samples(ranks, path)[0], "straggler")
        assert ("the GPU clock was 1,240 MHz instead of 1,980 MHz" in text) == is_named


@pytest.mark.parametrize("hours", [0, 8, -7, 5.5])
def test_the_time_zone_follows_from_the_time_of_the_recording(tmp_path: Path, hours: float) -> None:
    path = write(tmp_path / "s.csv", lambda _, s: s > 12 * 4.1, hours=hours)
    ranks, note = with_gpu_samples(drifting(), path)
    assert "limited by heat" in evidence(ranks, "slower_steps")
    assert isinstance(note, Note)
    assert note_text(note).endswith(f"UTC{'-' if hours < 0 else '+'}{abs(hours):g}")


def test_samples_without_a_date_are_of_the_day_of_the_recording(tmp_path: Path) -> None:
    path = tmp_path / "dmon.log"
    lines = ["#Time        gpu    pwr  gtemp  mtemp   mclk   pclk\n#HH:MM:SS    Idx      W  C\n"]
    for at_s in range(-2, 200):
        clock = 1240 if at_s > 12 * 4.1 else 1980
        stamp = START + timedelta(seconds=at_s)
        lines.append(f" {stamp:%H:%M:%S}      0    600     70      -   2619   {clock}\n")
    path.write_text("".join(lines))
    ranks, _ = with_gpu_samples(drifting(), path)
    assert "the GPU clock was 1,240 MHz" in evidence(ranks, "slower_steps")


def test_samples_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "s.csv", lambda *_: False)
    untimed = replace(drifting(), info=replace(drifting().info, utc_epoch_ns=None))
    with pytest.raises(TraceError, match="the trace has no date"):
        with_gpu_samples(untimed, path)
    with pytest.raises(TraceError, match="no time zone"):
        with_gpu_samples(drifting(), write(path, lambda *_: False, hours=30 * 24))
    path.write_text("index, clocks.current.sm [MHz]\n0, 1980 MHz\n0, 1980 MHz\n")
    with pytest.raises(TraceError, match="no time stamps"):
        with_gpu_samples(drifting(), path)
    path.write_text("step 1 loss 2\n")
    with pytest.raises(TraceError, match="expected the output of nvidia-smi"):
        with_gpu_samples(drifting(), path)


def test_samples_of_one_host_are_not_of_another(tmp_path: Path) -> None:
    ranks = drifting()
    (part,) = ranks.parts
    hosts = make_table("processes", {"process": [1, 2], "host": ["a", "b"]})
    two = replace(ranks, parts=(part.with_tables({"processes": hosts}),))
    with pytest.raises(UsageError, match="the run has 2 hosts"):
        with_gpu_samples(two, write(tmp_path / "s.csv", lambda *_: False))
