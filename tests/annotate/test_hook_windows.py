"""When windows of torch's profiler are opened, with a torch that only pretends."""

import _thread
import os
import threading
from functools import partial
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import pytest


@pytest.fixture
def opened(runtime, monkeypatch):
    """Return a function that trains, and returns the steps in which windows were open."""

    def train(n_steps, n_bytes, *, on_gpu=False, asked=(), plan=(5, 10, 20), **variables):
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        session, steps = runtime("session"), runtime("steps")
        windows = runtime("hook_windows")
        session.begin()
        is_open = SimpleNamespace(now=False)
        made = SimpleNamespace(
            _prepare_trace=lambda: None, _start_trace=lambda: setattr(is_open, "now", True)
        )

        def save(path):
            Path(path).write_bytes(b"")
            os.truncate(path, n_bytes)

        def disable():
            is_open.now = False
            return SimpleNamespace(save=save)

        torch = SimpleNamespace(
            __version__="2.11.0",
            _C=SimpleNamespace(_autograd=SimpleNamespace(_profiler_enabled=lambda: False)),
            autograd=SimpleNamespace(
                profiler=SimpleNamespace(profile=partial(_made, made, asked)),
                _disable_profiler=disable,
            ),
            cuda=SimpleNamespace(is_initialized=lambda: on_gpu),
        )
        steps.on_boundary(windows._Windows(torch, *plan).at_step)
        seen = []
        for _ in range(n_steps):
            steps.begin_forward(may_train=True)
            if is_open.now:
                seen.append(steps.number)
            steps.begin_optimizer(1)
            steps.end_optimizer(1)
        return seen

    return train


def _made(profile, asked, **options):
    if isinstance(asked, list):
        asked.append(options)
    return profile


def lengths(numbers):
    starts = [i for i, number in enumerate(numbers) if number - 1 not in numbers[:i]]
    return [end - start for start, end in zip(starts, [*starts[1:], len(numbers)], strict=True)]


def test_windows_are_steady_at_first_and_rarer_the_longer_the_run(opened):
    numbers = opened(2_000, 1_000)
    assert numbers[:2] == [5, 6]  # the trial
    assert lengths(numbers)[1:-1] == [10] * (len(lengths(numbers)) - 2)
    starts = [number for number in numbers if number - 1 not in numbers]
    paces = [later - earlier for earlier, later in pairwise(starts[1:])]
    assert paces[:14] == [20] * 14
    assert paces[14:30] == [40] * 16
    assert max(paces) <= 160


def test_windows_that_are_large_are_shorter(opened):
    numbers = opened(30, 40 << 20)  # 20 MB a step: three fit into a window
    assert lengths(numbers)[:2] == [2, 3]


def test_windows_end_where_they_have_taken_what_they_may(opened, capsys):
    numbers = opened(200, 1_000_000, TRACEPROF_MAX_BYTES="2500000")
    assert len(lengths(numbers)) == 3
    assert "recorded operators use 2 MB (the limit)" in capsys.readouterr().err


class Clock:
    def __init__(self):
        self.now_ns = 0

    def __call__(self):
        return self.now_ns


@pytest.fixture
def without_steps(runtime, monkeypatch, tmp_path):
    """Return a function that works without steps for a while; it returns when windows were open."""

    def work(*, n_optimizers=0, captures=(), length_ms=30_000):
        session, steps, windows = runtime("session"), runtime("steps"), runtime("hook_windows")
        session.begin()
        clock, seen, is_open = Clock(), [], SimpleNamespace(now=False)
        monkeypatch.setattr(windows, "time_ns", clock)
        made = SimpleNamespace(
            _prepare_trace=lambda: None, _start_trace=lambda: setattr(is_open, "now", True)
        )

        def disable():
            is_open.now = False
            return SimpleNamespace(save=lambda path: Path(path).write_bytes(b""))

        class Profile:
            def __new__(cls, **_):
                return made

        class Graph:
            def replay(self):
                return "replayed"

        torch = SimpleNamespace(
            _C=SimpleNamespace(_autograd=SimpleNamespace(_profiler_enabled=lambda: False)),
            autograd=SimpleNamespace(
                profiler=SimpleNamespace(profile=Profile),
                _disable_profiler=disable,
            ),
            cuda=SimpleNamespace(
                CUDAGraph=Graph,
                is_initialized=lambda: bool(captures),
                is_current_stream_capturing=lambda: clock.now_ns // 1_000_000 in captures,
            ),
            __version__="2.11.0",
        )
        monkeypatch.setattr(runtime("settings"), "WINDOWS", (5, 10, 200))
        windows.install_windows(torch)
        for number in range(n_optimizers):
            steps.add_optimizer(number + 1)
        for at_ms in range(0, length_ms, 10):
            clock.now_ns = 1_000_000 * at_ms
            assert Graph().replay() == "replayed"  # no model is called
            if is_open.now:
                seen.append(at_ms)
        return seen

    return work


def test_work_without_steps_has_a_window_from_the_second_pass_on_and_every_20_s(without_steps):
    seen = without_steps()
    assert (seen[0], seen[-1]) == (10, 21_000)
    assert len(seen) == 2 * 50


def test_what_has_an_optimizer_is_left_alone_for_a_while(without_steps):
    assert without_steps(n_optimizers=1)[0] == 2_000


def test_no_window_begins_or_ends_while_a_graph_is_captured(without_steps):
    seen = without_steps(captures=range(10, 100), length_ms=400)
    assert seen[0] == 100


def test_on_a_gpu_the_first_window_has_operators_and_those_that_are_judged_have_none(opened):
    asked = []
    opened(60, 1_000, on_gpu=True, asked=asked)
    first, *others = asked
    assert first["use_cpu"]
    assert first["record_shapes"]
    assert others
    assert {(one["use_cpu"], one["use_device"]) for one in others} == {(False, "cuda")}


@pytest.mark.parametrize(("on_gpu", "plan"), [(False, (5, 10, 20)), (True, (5, 3, 0))])
def test_elsewhere_and_in_steps_that_are_asked_for_every_window_has_operators(opened, on_gpu, plan):
    asked = []
    opened(60, 1_000, on_gpu=on_gpu, asked=asked, plan=plan)
    assert asked
    assert all(one["use_cpu"] for one in asked)
    assert not any("record_shapes" in one for one in asked)


def test_a_window_is_prepared_and_opened_in_ranges_of_the_recorder(runtime, monkeypatch):
    """On a GPU, the first preparation takes as long as many steps."""
    session, windows = runtime("session"), runtime("hook_windows")
    events = []
    emitter = SimpleNamespace(
        push=lambda name, _number: events.append(name),
        pop=lambda: events.append("end"),
        start=lambda name, _number: events.append(name),
    )
    monkeypatch.setattr(session, "emitter", lambda: emitter)
    profile = SimpleNamespace(
        _prepare_trace=lambda: events.append("prepare"),
        _start_trace=lambda: events.append("open"),
    )
    torch = SimpleNamespace(
        _C=SimpleNamespace(_autograd=SimpleNamespace(_profiler_enabled=lambda: False)),
        autograd=SimpleNamespace(profiler=SimpleNamespace(profile=lambda **_: profile)),
        cuda=SimpleNamespace(is_initialized=lambda: False),
    )
    opened = windows._Windows(torch, 5, 2, 0)
    for number in range(6):
        opened.at_step(number)
    assert events == [
        *("traceprof.window.start", "prepare", "end"),
        *("traceprof.window.start", "open", "traceprof.window", "end"),
    ]


def test_only_the_thread_that_opened_a_window_closes_it(runtime, monkeypatch, capsys):
    """Requests of torch.distributed.rpc run on threads of C++, which take turns."""
    session, windows = runtime("session"), runtime("hook_windows")
    emitter = SimpleNamespace(push=lambda *_: None, pop=lambda: None, start=lambda *_: 1)
    monkeypatch.setattr(session, "emitter", lambda: emitter)
    calls = []
    profile = SimpleNamespace(
        _prepare_trace=lambda: None, _start_trace=lambda: calls.append("open")
    )
    torch = SimpleNamespace(
        _C=SimpleNamespace(_autograd=SimpleNamespace(_profiler_enabled=lambda: False)),
        autograd=SimpleNamespace(
            profiler=SimpleNamespace(profile=lambda **_: profile),
            _disable_profiler=lambda: calls.append("close"),
        ),
        cuda=SimpleNamespace(is_initialized=lambda: False),
    )
    opened = windows._Windows(torch, 1, 2, 0)

    def run_in(start, function, *args):
        ended = threading.Event()

        def call():
            function(*args)
            ended.set()

        start(call)
        assert ended.wait(10)

    def start_python_thread(call):
        threading.Thread(target=call).start()

    def start_foreign_thread(call):
        _thread.start_new_thread(call, ())

    run_in(start_foreign_thread, opened.at_step, 1)
    assert calls == []  # the next step may run on another thread
    run_in(start_python_thread, opened.at_step, 1)
    assert calls == ["open"]
    run_in(start_foreign_thread, opened.at_step, 3)
    opened.stop()
    opened.stop()
    assert calls == ["open"]
    assert capsys.readouterr().err.count("a recording of operators was lost") == 1
