"""When the history of a GPU's memory is kept, and what is written, with a torch that pretends."""

import pickle
from types import SimpleNamespace

import pytest

from traceprof.snapshots.reading import read_snapshot

SEGMENT = {"device": 0, "address": 64, "total_size": 512, "blocks": []}


class Tensor:
    """A tensor on a GPU, with its gradient."""

    is_cuda = True
    device = SimpleNamespace(index=0)

    def __init__(self, address, grad=None):
        self.grad = grad
        self._storage = SimpleNamespace(data_ptr=lambda: address, nbytes=lambda: 64)

    def untyped_storage(self):
        return self._storage


class Module:
    """A module with a parameter."""

    def __init__(self, **parameters):
        self._parameters, self._buffers = parameters, {}


class Optimizer:
    """An optimizer with a state."""

    def __init__(self, **state):
        self.state = {1: state}


class Pretended:
    """What of torch the hook asks for."""

    nn = SimpleNamespace(Module=Module)
    optim = SimpleNamespace(Optimizer=Optimizer)
    Tensor = Tensor

    def __init__(self, *, on_gpu=True):
        self.calls = []
        self.on_failure = []
        self.cuda = SimpleNamespace(
            is_initialized=lambda: on_gpu,
            memory=SimpleNamespace(
                _record_memory_history=self._record,
                _snapshot=lambda: {"segments": [dict(SEGMENT)], "device_traces": [[]]},
            ),
        )
        self._C = SimpleNamespace(_cuda_attach_out_of_memory_observer=self.on_failure.append)

    def _record(self, what, **_options):
        self.calls.append(what)


@pytest.fixture
def trained(runtime, monkeypatch, tmp_path):
    """Return a function that trains, and gives the calls of torch by step, and the file."""

    def train(n_steps, asked, torch, fails_at=None):
        monkeypatch.setenv("TRACEPROF_MEMORY", asked)
        session, steps = runtime("session"), runtime("steps")
        runtime("hook_memory").install_memory(torch)
        session.begin()
        seen = []
        for number in range(n_steps):
            steps.begin_forward(may_train=True)
            if number == fails_at:
                torch.on_failure[0](0, 1, 2, 3)
            steps.begin_optimizer(1)
            steps.end_optimizer(1)
            seen.append(list(torch.calls))
        session.close()
        return seen, next(tmp_path.glob("memory.*.pickle"), None)

    return train


def test_it_is_kept_during_the_steps_that_were_asked_for(trained):
    seen, path = trained(6, "2..3", Pretended())
    assert seen == [[], ["all"], ["all"], ["all", None], ["all", None], ["all", None]]
    (ends,) = [pickle.loads(path.read_bytes())["traceprof"]["step_ends_us"]]
    assert len(ends) == 2
    assert ends == sorted(ends)


def test_the_end_of_the_program_ends_it(trained):
    seen, path = trained(3, "1..9", Pretended())
    assert seen[-1] == ["all"]
    assert path is not None


def test_memory_that_runs_out_is_seen_as_it_is_then(trained):
    torch = Pretended()
    seen, path = trained(5, "0..9", torch, fails_at=2)
    assert seen[2] == ["all", None]
    assert torch.calls == ["all", None]
    assert path is not None


def test_a_program_that_uses_no_gpu_is_left_alone(trained):
    torch = Pretended(on_gpu=False)
    _, path = trained(3, "0..1", torch)
    assert torch.calls == []
    assert path is None


def test_tensors_are_told_with_what_they_are_for(trained):
    kept = [
        Module(weight=Tensor(100, grad=Tensor(200))),
        Optimizer(exp_avg=Tensor(300), step=3),
    ]
    _, path = trained(2, "0..0", Pretended())
    told = pickle.loads(path.read_bytes())["traceprof"]["tensors"]
    found = {(one["address"], one["kind"], one["name"]) for one in told}
    assert found >= {
        (100, "parameters", "Module.weight"),
        (200, "gradients", "Module.weight"),
        (300, "optimizer state", "Optimizer.exp_avg"),
    }
    (device,) = read_snapshot(path).devices
    assert len(device.tensors) == len(kept) + 1


def test_a_snapshot_is_written_in_a_range_of_the_recorder(trained, runtime, monkeypatch, tmp_path):
    monkeypatch.setenv("TRACEPROF_MEMORY", "1..2")  # read when the runtime is loaded
    ranges = []
    emitter = SimpleNamespace(
        push=lambda name, number=0: ranges.append((name, number, _has_snapshot(tmp_path))),
        pop=lambda: ranges.append(("end", _has_snapshot(tmp_path))),
        start=lambda *_: None,
        end=lambda *_: None,
    )
    monkeypatch.setattr(runtime("session"), "emitter", lambda: emitter)
    trained(6, "1..2", Pretended())
    written = ("traceprof.window.stop", 3, False)
    assert written in ranges
    assert ranges[ranges.index(written) + 1] == ("end", True)


def _has_snapshot(folder):
    return any(folder.glob("memory.*.pickle"))
