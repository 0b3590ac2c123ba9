"""Sizes that the hooks take from torch, with stand-ins for its GPU part."""

from types import SimpleNamespace

import pytest


@pytest.fixture
def cuda():
    return SimpleNamespace(
        is_initialized=lambda: True,
        memory_allocated=lambda: 2048,
        memory_reserved=lambda: 4096,
    )


def torch_with(cuda, version):
    class Optimizer:
        def __init__(self, *groups):
            self.param_groups = [{"params": list(group)} for group in groups]

    return SimpleNamespace(
        cuda=cuda,
        optim=SimpleNamespace(Optimizer=Optimizer),
        nn=SimpleNamespace(parallel=SimpleNamespace()),
        version=SimpleNamespace(cuda=version, hip=None),
    )


def marks(runtime):
    rows = runtime("session").spool()._rows
    return [(row[2], row[3]) for row in rows if row[2].startswith("metric:")]


def test_gpu_memory_is_noted_at_every_step(runtime, cuda):
    runtime("session").begin()
    runtime("hook_sizes").install(torch_with(cuda, "12.4"))
    steps = runtime("steps")
    steps.passing(may_train=True)
    steps.begin_optimizer(1)
    steps.end_optimizer(1)
    per_step = [
        ("metric:torch_allocated_bytes", 2048),
        ("metric:torch_reserved_bytes", 4096),
    ]
    assert marks(runtime) == 2 * per_step  # before the first step and after it


def test_a_gpu_that_the_program_has_not_touched_stays_untouched(runtime, cuda):
    cuda.is_initialized = lambda: False
    runtime("session").begin()
    runtime("hook_sizes").install(torch_with(cuda, "12.4"))
    runtime("steps").passing(may_train=True)
    assert marks(runtime) == []


def test_the_parameters_of_an_optimizer_are_counted_in_bytes(runtime, cuda):
    runtime("session").begin()
    torch = torch_with(cuda, None)
    runtime("hook_sizes").install(torch)
    half = SimpleNamespace(numel=lambda: 10, element_size=lambda: 2)
    whole = SimpleNamespace(numel=lambda: 3, element_size=lambda: 4)
    torch.optim.Optimizer([half, whole], [half])
    assert marks(runtime) == [("metric:parameter_bytes", 2 * 20 + 12)]
