"""Sizes that the hooks take from torch, with stand-ins for its GPU part."""

from types import SimpleNamespace

import pytest


@pytest.fixture
def known():
    """Return what torch's allocator says of itself."""
    return {
        "allocated_bytes": {"all": {"current": 2048}},
        "reserved_bytes": {"all": {"current": 4096}},
        "num_alloc_retries": 0,
        "num_device_alloc": 0,
    }


@pytest.fixture
def cuda(known):
    return SimpleNamespace(is_initialized=lambda: True, memory_stats_as_nested_dict=lambda: known)


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
    runtime("hook_optimizers").install_sizes(torch_with(cuda, "12.4"))
    steps = runtime("steps")
    steps.begin_forward(may_train=True)
    steps.begin_optimizer(1)
    steps.end_optimizer(1)
    per_step = [
        ("metric:torch_allocated_bytes", 2048),
        ("metric:torch_reserved_bytes", 4096),
    ]
    assert marks(runtime) == 2 * per_step  # before the first step and after it


def test_what_the_allocator_had_to_do_is_noted_at_the_steps_that_have_any(runtime, cuda, known):
    runtime("session").begin()
    runtime("hook_optimizers").install_sizes(torch_with(cuda, "12.4"))
    steps = runtime("steps")
    for retries in (0, 2, 2, 3):
        known["num_alloc_retries"] = retries
        steps.begin_forward(may_train=True)
        steps.begin_optimizer(1)
        steps.end_optimizer(1)
    noted = [value for name, value in marks(runtime) if name == "metric:torch_alloc_retries"]
    assert noted == [2, 3]


def test_a_gpu_that_the_program_has_not_touched_stays_untouched(runtime, cuda):
    cuda.is_initialized = lambda: False
    runtime("session").begin()
    runtime("hook_optimizers").install_sizes(torch_with(cuda, "12.4"))
    runtime("steps").begin_forward(may_train=True)
    assert marks(runtime) == []


def test_the_parameters_of_an_optimizer_are_counted_in_bytes(runtime, cuda):
    runtime("session").begin()
    torch = torch_with(cuda, None)
    runtime("hook_optimizers").install_sizes(torch)
    half = SimpleNamespace(numel=lambda: 10, element_size=lambda: 2)
    whole = SimpleNamespace(numel=lambda: 3, element_size=lambda: 4)
    torch.optim.Optimizer([half, whole], [half])
    assert marks(runtime) == [("metric:parameter_bytes", 2 * 20 + 12)]
