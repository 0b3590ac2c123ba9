"""The history of a run: step time by minute, changes and their causes, and times to compare."""

import json
import struct
import subprocess
import sys
from datetime import datetime

import numpy as np
import pytest

from tests.recording.live.status_files import encode, header, step, write_status
from traceprof.errors import UsageError
from traceprof.recording.live.history import find_changes, is_history, parse_span, read_history
from traceprof.recording.live.node import NodeStatus, metrics_text
from traceprof.recording.live.status import HEADER_BYTES, N_STEPS, PERIODS, STEP_FIELDS, LiveRun
from traceprof.render.history_text import compared_text, history_json, history_text

MS = 1_000_000
DAY = datetime(2026, 11, 23)  # a Monday
FIRST = round(DAY.timestamp()) // 60
_PERIOD = struct.Struct("<9q")


def write_rank(run, rank, step_ms, data_ms=0.5, samples=8, *, name="", first=FIRST, started_ns=1):
    """Write the status of a rank with one minute per value of ``step_ms`` (NaN: no steps)."""
    step_ms = np.asarray(step_ms, float)
    data_ms = np.broadcast_to(data_ms, step_ms.shape)
    live = run / "live"
    live.mkdir(parents=True, exist_ok=True)
    at = HEADER_BYTES + N_STEPS * 8 * len(STEP_FIELDS)
    data = bytearray(at + PERIODS[0][1] * _PERIOD.size)
    fields = {"host": "h", "started_ns": started_ns, "n_samples": 0}
    data[:HEADER_BYTES] = encode(header(rank, 0, **fields))
    for minute, (duration_ms, load) in enumerate(zip(step_ms, data_ms, strict=True), first):
        if np.isnan(duration_ms):
            continue
        n, ns = round(54_000 / duration_ms), round(duration_ms * MS)
        row = minute, n, n * ns, ns, ns, 0, n * round(load * MS), n * samples, n * ns
        _PERIOD.pack_into(data, at + minute % PERIODS[0][1] * _PERIOD.size, *row)
    (live / f"status.{name or 100 + rank}").write_bytes(data)


def wander(seed, n, mean_ms=50.0, correlation=0.8, deviation=0.03):
    random = np.random.default_rng(seed)
    values = np.zeros(n)
    for index in range(1, n):
        values[index] = correlation * values[index - 1] + random.normal(0, deviation)
    return mean_ms * np.exp(values)


def page_of(run):
    return " ".join(history_text(read_history(run), "run").split())


def changes_of(run):
    return [(change.minute - FIRST, change.causes) for change in find_changes(read_history(run))]


@pytest.mark.parametrize("correlation", [0.0, 0.5, 0.9])
def test_a_steady_day_has_no_changes(tmp_path, correlation):
    for seed in range(5):
        write_rank(tmp_path, 0, wander(seed, 1440, correlation=correlation))
        assert changes_of(tmp_path) == []


def test_single_slow_minutes_are_no_changes(tmp_path):
    steps = wander(1, 600, correlation=0.0)
    steps[::50] *= 3
    write_rank(tmp_path, 0, steps)
    assert changes_of(tmp_path) == []


def test_a_slower_loader_is_the_cause(tmp_path):
    steps = wander(1, 600, correlation=0.0, deviation=0.01)
    steps[300:] *= 1.2
    for rank in range(2):
        loads = np.where((np.arange(600) >= 300) & (rank == 1), 10.0, 1.0)
        write_rank(tmp_path, rank, steps, loads)
    ((minute, causes),) = changes_of(tmp_path)
    assert abs(minute - 300) <= 1
    assert causes == ("data loading 1 → 10 ms per step",)
    text = page_of(tmp_path)
    assert "2 ranks" in text
    assert "data loading 1 → 10 ms per step" in text


def test_a_change_without_a_recorded_cause_has_none(tmp_path):
    write_rank(tmp_path, 0, [50.0] * 100 + [60.0] * 100)
    assert changes_of(tmp_path) == [(100, ())]
    assert "no other recorded value changed" in page_of(tmp_path)


def test_clocks_of_a_host_are_a_cause(tmp_path):
    write_rank(tmp_path, 0, [50.0] * 100 + [70.0] * 100)
    with (tmp_path / "live" / "history.h.jsonl").open("w") as file:
        for minute in range(200):
            values = {"gpu:0 sm_clock_mhz": 1980 if minute < 100 else 1400, "cpu_ratio": 0.4}
            line = {"minute": FIRST + minute, "host": "h\x1b[2J", "values": values}
            file.write(json.dumps(line) + "\n")
        file.write('{"minute": 5, "host"')  # a line that a kill -9 left
    ((_, causes),) = changes_of(tmp_path)
    assert [cause.split(": ")[1] for cause in causes] == ["gpu:0 sm_clock_mhz 1980 → 1400"]
    assert "\x1b" not in history_text(read_history(tmp_path), "run")


def test_restarts_ranks_and_batches_are_causes(tmp_path):
    write_rank(tmp_path, 0, [50.0] * 100, name="100")
    write_rank(tmp_path, 1, [50.0] * 100)
    later = {"first": FIRST + 110, "started_ns": (FIRST + 109) * 60 * 10**9, "samples": 16}
    write_rank(tmp_path, 0, [90.0] * 100, name="200", **later)
    ((minute, causes),) = changes_of(tmp_path)
    assert minute == 110
    assert causes == ("ranks 2 → 1", "samples per step of a rank 8 → 16", "rank 0 restarted")
    text = page_of(tmp_path)
    assert "no step ended in 10 minutes" in text
    assert json.loads(history_json(read_history(tmp_path)))["restarts"][0]["rank"] == "rank 0"


def test_all_attempts_of_a_rank_count(tmp_path):
    write_status(tmp_path, 0, [step(1)] * 30, name="100", started_ns=1)
    write_status(tmp_path, 0, [step(1)] * 20, name="200", started_ns=2)
    write_status(tmp_path, 1, [step(1)] * 40, name="300")
    assert read_history(tmp_path).n_steps == 50


def test_a_minute_counts_from_the_start_to_the_last_step(tmp_path):
    """Minute 0: from 30 s; minute 2: until 15 s. In each second, 0.9 s are in steps."""
    at_s = 60 * FIRST
    fields = {"started_ns": (at_s + 30) * 10**9, "last_step_ns": (at_s + 135) * 10**9}
    path = write_status(tmp_path, 0, [], boot="", now_ns=(at_s + 135) * 10**9, **fields)
    data = bytearray(path.read_bytes()) + bytearray(PERIODS[0][1] * _PERIOD.size)
    for minute, seconds in enumerate((30, 60, 15), FIRST):
        row = (
            minute,
            10 * seconds,
            900 * seconds * MS,
            90 * MS,
            90 * MS,
            0,
            0,
            0,
            900 * seconds * MS,
        )
        at = HEADER_BYTES + N_STEPS * 8 * len(STEP_FIELDS) + minute % PERIODS[0][1] * _PERIOD.size
        _PERIOD.pack_into(data, at, *row)
    path.write_bytes(data)
    history = read_history(tmp_path)
    assert history.in_steps_ratio == pytest.approx([0.9, 0.9, 0.9])
    page = history_text(history, "run")
    assert "In steps    90.0% of the time" in page
    assert "Loading" not in page  # no DataLoader


def test_minutes_without_steps_are_not_zero(tmp_path):
    write_rank(tmp_path, 0, [50.0] * 10 + [np.nan] * 5 + [50.0] * 10)
    history = read_history(tmp_path)
    assert len(history.minutes) == 20
    assert set(history.step_ns) == {50 * MS}


def test_times_of_a_week_are_compared(tmp_path):
    steps = wander(2, 7 * 1440, correlation=0.0, deviation=0.01)
    steps[1440:2880] *= 1.1
    write_rank(tmp_path, 0, steps)
    history = read_history(tmp_path)
    monday, tuesday = (parse_span(day, history) for day in ("Monday", "tuesday"))
    assert (monday[0], tuesday[0]) == (FIRST, FIRST + 1440)
    text = compared_text(history, monday, tuesday, ("monday", "tuesday"))
    assert "+10." in text or "+9." in text
    assert "Steps are slower" in text
    wednesday = parse_span("wednesday", history)
    same = compared_text(history, monday, wednesday, ("a", "b"))
    assert "within the variation" in same
    hours = parse_span("2026-11-25 14:00..16:30", history)
    assert (hours[0] - FIRST, hours[1] - hours[0]) == (2 * 1440 + 840, 150)
    assert parse_span("00:00..00:05", history)[0] == FIRST + 6 * 1440


@pytest.mark.parametrize("text", ["mon", "2026-13-01", "monday 25", "2020-01-01", "monday 14:00"])
def test_unknown_times_are_refused(tmp_path, text):
    write_rank(tmp_path, 0, [50.0] * 60)
    with pytest.raises(UsageError):
        parse_span(text, read_history(tmp_path))


def test_a_host_keeps_the_means_of_its_minutes(tmp_path, monkeypatch):
    clock = [0.0]
    monkeypatch.setattr("traceprof.recording.live.node.time.time", lambda: 600 + clock[0])
    monkeypatch.setattr("traceprof.recording.live.node.time.monotonic", lambda: 1000 + clock[0])
    gpu = [("gpu:0", "sm_clock_mhz", 1500.0)]
    monkeypatch.setattr("traceprof.recording.live.node.open_gpus", lambda: [(1.0, lambda: gpu)])
    monkeypatch.setattr("traceprof.recording.live.node._MAX_HISTORY_BYTES", 300)
    node = NodeStatus(tmp_path)
    for _ in range(600):
        node.write()
        clock[0] += 2
    files = list(tmp_path.glob("history.*"))
    assert sum(path.stat().st_size for path in files) < 1200  # bounded
    (path,) = tmp_path.glob("history.*.jsonl")
    line = json.loads(path.read_text().splitlines()[-1])
    assert line["minute"] == 28
    assert line["values"]["gpu:0 sm_clock_mhz"] == 1500


def test_metrics_have_the_text_format(tmp_path):
    write_rank(tmp_path, 3, [50.0] * 3)
    text = metrics_text(LiveRun(tmp_path).refresh())
    assert '# TYPE traceprof_steps_total counter\ntraceprof_steps_total{rank="3",' in text
    assert "traceprof_step_seconds{" not in text  # no step yet: unknown, not zero
    assert "device_memory" not in text
    assert text.endswith("\n")


def traceprof(*arguments):
    command = [sys.executable, "-m", "traceprof", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_commands_read_the_folder(tmp_path):
    write_rank(tmp_path, 0, [50.0] * 1440 + [60.0] * 1440)
    page = traceprof("analyze", tmp_path)
    assert (page.returncode, "(+20%)" in page.stdout) == (0, True), page.stderr
    (change,) = json.loads(traceprof("analyze", tmp_path, "--json").stdout)["changes"]
    assert change["minute"] == FIRST + 1440
    times = ("compare", tmp_path, "--at", "monday", "--with", "tuesday")
    assert "+20.0%" in traceprof(*times).stdout
    assert traceprof(*times, "--json").returncode == 2
    assert traceprof(*times[:4]).returncode == 2
    assert traceprof("analyze", tmp_path, "--output", tmp_path / "a.txt").returncode == 2
    assert traceprof("record", "--live", "--always", "--", "true").returncode == 2


def test_a_run_with_captures_is_no_history(tmp_path):
    write_rank(tmp_path, 0, [50.0] * 3)
    assert is_history(tmp_path)
    (tmp_path / "capture-1").mkdir()
    assert not is_history(tmp_path)
