"""When windows of torch's profiler are opened, with a torch that only pretends."""

import os
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import pytest


@pytest.fixture
def opened(runtime, monkeypatch):
    """Return a function that trains, and returns the steps in which windows were open."""

    def train(n_steps, n_bytes, **variables):
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
            _C=SimpleNamespace(_autograd=SimpleNamespace(_profiler_enabled=lambda: False)),
            autograd=SimpleNamespace(
                profiler=SimpleNamespace(profile=lambda **_: made), _disable_profiler=disable
            ),
            cuda=SimpleNamespace(is_initialized=lambda: False),
        )
        steps.on_boundary(windows._Windows(torch, 5, 10, 20).at_step)
        seen = []
        for _ in range(n_steps):
            steps.passing(may_train=True)
            if is_open.now:
                seen.append(steps.number)
            steps.begin_optimizer(1)
            steps.end_optimizer(1)
        return seen

    return train


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
    assert "the windows of operators have 2 MB: no more of them" in capsys.readouterr().err
