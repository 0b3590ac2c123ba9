"""The live status of a process: steps, phases, waiting, and captures on request."""

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from traceprof.errors import TraceError
from traceprof.recording.live import status as reading
from traceprof.recording.live.status import LiveRun, read_header, read_periods
from traceprof.recording.live.view import view_of


@pytest.fixture
def now(runtime, monkeypatch):
    """Return the clock of the live status, in ns, which tests set."""
    live = runtime("live")
    clock = [1_000_000]
    monkeypatch.setattr(live, "monotonic_ns", lambda: clock[0])
    monkeypatch.setattr(live.clock, "_OFFSET_NS", 0)
    return clock


@pytest.fixture
def emitter(runtime, now):
    return runtime("live").LiveEmitter()


def spend(emitter, now, name, ns):
    emitter.push(name)
    now[0] += ns
    emitter.pop()


def train_step(emitter, now, number, wait_ns=0):
    token = emitter.start("step", number)
    spend(emitter, now, "data", 100)
    emitter.mark("batch", 8)
    emitter.push("optimizer")  # a closure: forward and backward inside the optimizer
    spend(emitter, now, "forward", 200)
    emitter.push("backward")
    now[0] += 300
    if wait_ns:
        call = emitter.start("comm.async:allreduce")
        start = now[0]
        now[0] += wait_ns
        emitter.end(call)
        emitter.collective(start, now[0], "allreduce", 8, 1, {"backend": "gloo"})
    emitter.pop()
    now[0] += 40
    emitter.pop()
    emitter.end(token)
    emitter.at_step(number + 1)


def write(runtime, emitter, folder):
    status = runtime("live").Status(emitter, str(folder))
    status.write()
    (process,) = LiveRun(folder).refresh()
    return status, process


def test_reader_and_writer_have_one_layout(runtime):
    live = runtime("live")
    assert runtime("live_periods").PERIODS == reading.PERIODS
    for name in ("MAGIC", "HEADER_BYTES", "N_STEPS"):
        assert getattr(live, name) == getattr(reading, name)
    assert live.STEP.size == 8 * len(reading.STEP_FIELDS)
    assert live.live_periods.PERIOD.size == 8 * len(reading.PERIOD_FIELDS)
    assert live.N_BYTES < 1_100_000  # bounded: what a process writes in any time


def test_phases_are_exclusive_and_waiting_is_apart(runtime, emitter, now, tmp_path):
    for number in range(3):
        train_step(emitter, now, number, wait_ns=50)
    _, process = write(runtime, emitter, tmp_path)
    assert process.column("number").tolist() == [0, 1, 2]
    last = dict(zip(reading.STEP_FIELDS, process.steps[-1].tolist(), strict=True))
    assert last["duration_ns"] == 100 + 200 + 300 + 50 + 40
    phases = [last[f"{name}_ns"] for name in ("data", "forward", "backward", "optimizer")]
    assert phases == [100, 200, 350, 0]  # a closure: its own 40 ns may be code of the program
    assert (last["wait_ns"], last["samples"], last["calls"]) == (50, 8, 1)


def test_a_kill_in_the_middle_of_a_write_keeps_what_was_written_before(
    runtime, emitter, now, tmp_path, monkeypatch
):
    """Each write stops after another call on the file, as a kill would stop it."""

    class Killed(BaseException):
        pass

    class File(io.FileIO):
        n_left = 1 << 60

        def write(self, data):
            File.n_left -= 1
            if not File.n_left:
                raise Killed
            return super().write(data)

    def open_file(path, mode="r", **more):
        is_status = Path(path).name.startswith("status.")
        return File(path, mode.replace("b", "")) if is_status else Path(path).open(mode, **more)

    monkeypatch.setattr(runtime("live"), "open", open_file, raising=False)
    status, process = write(runtime, emitter, tmp_path)
    n_killed = 0
    while True:
        for number in range(emitter.n_steps, emitter.n_steps + 300):
            train_step(emitter, now, number)
        n_killed += 1
        File.n_left = n_killed
        n_before = process.header.n_steps
        try:
            status.write()
        except Killed:
            (process,) = LiveRun(tmp_path).refresh()
            assert process.header.n_steps == n_before
            numbers = process.column("number").tolist()
            assert numbers == list(range(numbers[0], numbers[0] + len(numbers)) if numbers else [])
            assert (read_periods(process.path)[:, 1] >= n_before).all()
        else:
            break
    (process,) = LiveRun(tmp_path).refresh()
    assert process.header.n_steps == emitter.n_steps
    assert n_killed >= 5  # steps in two pieces, three periods, header


def test_a_long_header_fits_in_one_page(runtime):
    long = {"stack": ["f" * 160] * 30, "metrics": {"m" * 60: [1.0, 3]}}
    data = runtime("live").encode({"n_steps": 3, **long})
    assert not data[4096:].strip(b"\0")
    assert data.count(b"ffff") and b"mmmm" in data  # only outer calls are missing


def test_time_between_steps_does_not_count(runtime, emitter, now, tmp_path):
    train_step(emitter, now, 0)
    spend(emitter, now, "data", 5_000)  # an evaluation
    spend(emitter, now, "eval", 5_000)
    train_step(emitter, now, 1)
    _, process = write(runtime, emitter, tmp_path)
    assert process.column("data_ns").tolist() == [100, 100]
    assert process.column("duration_ns").tolist() == [640, 640]


def test_overlapping_collectives_count_once(emitter, now):
    """Two buckets: the second call begins at 15; both end at 40 and 41."""
    token = emitter.start("step", 0)
    base = now[0]
    for at in (10, 15):
        now[0] = base + at
        emitter.start("comm.async:allreduce")
    now[0] = base + 60
    emitter.collective(base + 10, base + 40, "allreduce", 8, 1, {})
    emitter.collective(base + 15, base + 41, "allreduce", 8, 1, {})
    assert emitter._wait_ns == 26
    emitter.end(token)


def test_a_call_that_is_noted_late_belongs_to_its_step(runtime, emitter, now, tmp_path):
    token = emitter.start("step", 0)
    start = now[0] + 10
    now[0] += 100
    emitter.end(token)
    emitter.at_step(1)
    emitter.start("step", 1)
    emitter.collective(start, start + 70, "allreduce", 8, 1, {})
    _, process = write(runtime, emitter, tmp_path)
    assert process.column("wait_ns").tolist() == [70]


def test_waiting_is_unknown_with_nccl(runtime, emitter, now, tmp_path):
    train_step(emitter, now, 0)
    emitter.collective(now[0], now[0] + 1, "allreduce", 8, 1, {"backend": "nccl"})
    _, process = write(runtime, emitter, tmp_path)
    assert process.header.is_wait_unknown


def test_minutes_survive_the_ring(runtime, emitter, now, tmp_path):
    """2,000 steps in two minutes, written from time to time; the ring keeps 1,024."""
    now[0] = 59_000_000_000
    status = runtime("live").Status(emitter, str(tmp_path))
    for number in range(2_000):
        if number == 1_500:
            now[0] = 60_000_000_000
        train_step(emitter, now, number)
        if number % 500 == 499:
            status.write()
    (path,) = tmp_path.glob("status.*")
    minutes = read_periods(path)
    assert minutes[:, 1].tolist() == [500]  # minute 0 means "no data" in the file
    (process,) = LiveRun(tmp_path).refresh()
    assert process.header.n_steps == 2_000
    assert path.stat().st_size == runtime("live").N_BYTES


def test_a_week_is_kept_by_minute_and_by_hour(runtime, emitter, now, tmp_path):
    """A step of 40 s in each minute of eight days; the last is written by a full disk's end."""
    status = runtime("live").Status(emitter, str(tmp_path))
    folder = status._directory
    start = 30 * 86_400
    for minute in range(8 * 1440):
        emitter.rows.append(
            ((start + 60 * minute) * 10**9, (start + 60 * minute + 40) * 10**9, 7, 8)
        )
        if minute % 60 == 59:
            status._directory = str(tmp_path / "full") if minute % 1440 == 59 else folder
            status.write()
    (path,) = tmp_path.glob("status.*")
    minutes, hours, days = (read_periods(path, seconds) for seconds in (60, 3600, 86_400))
    assert minutes[:, 0].tolist() == list(range(start // 60 + 1440, start // 60 + 8 * 1440))
    assert set(minutes[:, 1]) == {1}  # a write that failed is repeated, and counts once
    assert hours[:, 1].tolist() == [60] * 192
    assert days[:, 1].tolist() == [1440] * 8
    assert days[0].tolist() == [
        30,
        1440,
        1440 * 40 * 10**9,
        40 * 10**9,
        40 * 10**9,
        *(0, 1440 * 7, 1440 * 8, 1440 * 40 * 10**9),
    ]
    assert path.stat().st_size == runtime("live").N_BYTES < 50_000_000
    assert len(status.periods.sums) <= 6  # memory is bounded


def test_the_clock_of_the_machine_may_jump(runtime, emitter, now, tmp_path, monkeypatch):
    status = runtime("live").Status(emitter, str(tmp_path))
    for day in (5, 6):
        emitter.rows.append((day * 86_400 * 10**9, day * 86_400 * 10**9 + 5, 0, 0))
        status.write()
        monkeypatch.setattr("time.time_ns", lambda: 0)
    (path,) = tmp_path.glob("status.*")
    assert read_periods(path, 86_400)[:, 0].tolist() == [5, 6]


def test_the_program_goes_on_without_its_folder(runtime, emitter, now, tmp_path):
    status = runtime("live").Status(emitter, str(tmp_path / "missing"))
    train_step(emitter, now, 0)
    status.write()
    (tmp_path / "missing").mkdir()
    train_step(emitter, now, 1)
    status.write()
    (process,) = LiveRun(tmp_path / "missing").refresh()
    assert process.header.n_errors == 1
    assert process.column("number").tolist() == [0, 1]


def test_a_metric_that_is_not_a_number_is_shown(runtime, emitter, now, tmp_path):
    train_step(emitter, now, 0)
    emitter.mark("metric:loss", float("nan"))
    emitter.mark("metric:accuracy", 0.5)
    emitter.mark("metric:thread_cpu_ns", 7)  # of a hook
    for number in range(40):
        emitter.mark(f"metric:m{number}", number)
    _, process = write(runtime, emitter, tmp_path)
    assert process.header.metrics["loss"][0] is None
    assert process.header.metrics["accuracy"][0] == 0.5
    assert len(process.header.metrics) == 16
    assert "thread_cpu_ns" not in process.header.metrics


def test_a_status_that_is_too_long_loses_its_details(runtime, tmp_path):
    data = runtime("live").encode({"stack": ["x" * 100] * 100, "n_steps": 3})
    assert len(data) == reading.HEADER_BYTES
    assert b'"n_steps": 3' in data
    with pytest.raises(TraceError):
        read_header(data, tmp_path)  # it lacks the other fields


def test_the_stack_of_a_quiet_process_is_written(runtime, emitter, now, tmp_path):
    train_step(emitter, now, 0)
    _, process = write(runtime, emitter, tmp_path)
    assert process.header.stack == ()
    now[0] += 60_000_000_000
    _, process = write(runtime, emitter, tmp_path)
    assert any("test_live.py" in frame for frame in process.header.stack)


def test_an_incomplete_collective_is_written(runtime, emitter, now, tmp_path):
    token = emitter.start("comm.async:allreduce")
    _, process = write(runtime, emitter, tmp_path)
    assert process.header.pending == ("allreduce", now[0], 1)
    emitter.end(token)
    _, process = write(runtime, emitter, tmp_path)
    assert process.header.pending is None


@pytest.fixture
def program(runtime, monkeypatch, tmp_path):
    """Return a function that trains some steps in a process with a live status."""
    monkeypatch.setenv("TRACEPROF_LIVE", "1")
    monkeypatch.setenv("RANK", "0")
    install, live = runtime("install"), runtime("live")
    monkeypatch.setattr(live.Status, "begin", lambda _status: None)  # no thread: tests write
    install.start()
    steps, session = runtime("steps"), runtime("session")

    def train(n_steps):
        for _ in range(n_steps):
            steps.begin_forward(may_train=True)
            session.emitter().push("forward", steps.number)
            session.emitter().pop()
            steps.end_forward()
            steps.begin_optimizer(1)
            steps.end_optimizer(1)
        live.status.write()

    return train


def request(folder, **fields):
    (folder / f"capture-{fields['id']}").mkdir(exist_ok=True)
    (folder / "request.json").write_text(json.dumps(fields))


def state(folder):
    (process,) = LiveRun(folder).refresh()
    return process.header.capture


def names(folder):
    (events,) = folder.glob("events.*.jsonl")
    lines = [json.loads(line) for line in events.read_text().splitlines()[1:]]
    return [(line[2], line[3]) for line in lines]


def test_the_requested_steps_are_captured(program, tmp_path):
    program(5)
    request(tmp_path, id=1, first=8, steps=2)
    program(0)
    assert state(tmp_path)["state"] == "waiting"
    program(10)
    assert state(tmp_path) == {"id": 1, "state": "done", "error": "", "steps": [8, 9]}
    captured = names(tmp_path / "capture-1")
    assert [number for name, number in captured if name == "step"] == [8, 9]
    assert [number for name, number in captured if name == "forward"] == [8, 9]
    assert list((tmp_path / "capture-1").glob("process.*.json"))
    assert not list(tmp_path.glob("events.*"))


def test_a_request_that_is_seen_late_begins_at_the_next_step(program, tmp_path):
    program(5)
    request(tmp_path, id=1, first=0, steps=1)
    program(0)
    program(3)
    assert state(tmp_path)["steps"] == [6, 6]  # step 5 has begun already


def test_captures_follow_one_another(program, tmp_path):
    program(1)
    for number in (1, 2):
        request(tmp_path, id=number, first=0, steps=1)
        program(0)
        program(2)
        assert state(tmp_path)["state"] == "done"
        assert len(list((tmp_path / f"capture-{number}").glob("events.*"))) == 1
    assert view_of(LiveRun(tmp_path).refresh()).ranks[0].n_steps == 5


@pytest.mark.parametrize(
    "fields",
    [
        {"id": 1, "first": 0, "steps": 1, "ranks": [1, 2]},
        {"id": 1, "first": 0, "steps": 0},
        {"id": 1, "first": -1, "steps": 1},
        {"id": 1, "first": 0, "steps": 10**9},
        {"id": 1},
    ],
)
def test_other_ranks_and_damaged_requests_capture_nothing(program, tmp_path, fields):
    program(1)
    request(tmp_path, **fields)
    program(3)
    program(3)
    assert state(tmp_path) == {}
    assert not list((tmp_path / "capture-1").iterdir())


def test_a_capture_without_its_folder_fails_and_the_program_goes_on(program, tmp_path):
    program(1)
    request(tmp_path, id=1, first=0, steps=1)
    (tmp_path / "capture-1").rmdir()
    program(0)
    program(3)
    assert state(tmp_path)["state"] == "failed"
    request(tmp_path, id=2, first=0, steps=1)
    program(0)
    program(3)
    assert state(tmp_path)["state"] == "done"


class Windows:
    """A stand-in for torch's profiler: a window of ``step_bytes`` per step."""

    def __init__(self, steps, settings, step_bytes):
        self._steps, self._settings, self._step_bytes = steps, settings, step_bytes
        self._first, self._n = None, 0

    def open_for(self, number, _n_steps):
        self._first = number

    def stop(self):
        if self._first is None:
            return ""
        path = Path(self._settings.DIRECTORY) / f"window.{self._n}.json"
        path.write_bytes(bytes(self._step_bytes * (self._steps.number - self._first)))
        self._first, self._n = None, self._n + 1
        return str(path)


@pytest.mark.parametrize(
    ("step_bytes", "n_steps", "window_bytes", "error"),
    [
        (200, 5, [200, 800], ""),  # exactly the limit
        (201, 4, [201, 603], "recorded 4 of 5 steps because of --max-size"),
        (501, 1, [501], "recorded 1 of 5 steps because of --max-size"),
        (1001, 1, [], "operators removed because of --max-size"),
    ],
)
def test_a_capture_keeps_to_its_size(
    runtime, program, tmp_path, step_bytes, n_steps, window_bytes, error
):
    program(5)
    captures, settings = runtime("live_capture").captures, runtime("settings")
    captures._windows = Windows(runtime("steps"), settings, step_bytes)
    request(tmp_path, id=1, first=8, steps=5, max_bytes=1000)
    program(0)
    program(15)
    assert (state(tmp_path)["state"], state(tmp_path)["error"]) == ("done", error)
    numbers = [number for name, number in names(tmp_path / "capture-1") if name == "step"]
    assert numbers == list(range(8, 8 + n_steps))
    windows = sorted((tmp_path / "capture-1").glob("window.*"))
    assert [path.stat().st_size for path in windows] == window_bytes
    assert settings.MAX_BYTES == 0


TOKEN_PROGRAM = """
import torch
model = torch.nn.Sequential(torch.nn.Embedding(9, 4), torch.nn.Linear(4, 9))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for length in (3, *[5] * 24, 7):
    for _ in range(2):  # gradient accumulation
        model(torch.ones(2, length).long()).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def test_the_tokens_of_the_last_steps_are_counted(tmp_path):
    """19 steps of 2 × 2 × 5 tokens, and one of 2 × 2 × 7."""
    pytest.importorskip("torch")
    inject = Path(reading.__file__).parents[2] / "annotate" / "inject"
    variables = {"PYTHONPATH": str(inject), "TRACEPROF_DIR": str(tmp_path), "TRACEPROF_LIVE": "1"}
    command = [sys.executable, "-c", TOKEN_PROGRAM]
    subprocess.run(command, env={**os.environ, **variables}, check=True)
    (process,) = LiveRun(tmp_path, tmp_path).refresh()
    assert process.header.tokens == (20, 19 * 20 + 28)
