"""What the issue asks of particular real traces."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.builders import plain
from traceprof.analysis.device.breakdown import measure_breakdown
from traceprof.analysis.training.phases import UNCLAIMED, measure_phases
from traceprof.analysis.training.steps import measure_steps
from traceprof.formats import open_trace
from traceprof.session.selection import select
from traceprof.model.trace import Trace

pytestmark = pytest.mark.traces


def load(real_trace: Callable[[str], Path], name: str, window: str | None = None) -> Trace:
    trace = open_trace(real_trace(f"nsys/{name}.sqlite"))
    return trace.within(select(trace, window).window)


def test_backward_kernels_of_the_autograd_thread(real_trace: Callable[[str], Path]) -> None:
    trace = load(real_trace, "2025.1-llm-17k-kernels")
    rows = measure_phases(trace).to_frame().set_index("phase")
    # 6642 kernels, most of them launched by the autograd thread, which has no range of its own.
    assert rows.loc["backward", "kernel_count"] == 6642
    assert rows["kernel_count"].sum() == len(trace.kernels)
    # What is left was launched between the phases: the initialisation of the model.
    assert rows.loc[UNCLAIMED, "kernel_count"] == 10


def test_no_phases_claim_nothing(real_trace: Callable[[str], Path]) -> None:
    # This trace has ranges, but none of a phase; its kernels are of forward passes only.
    trace = load(real_trace, "2024.6-llm-2.7b-nvtx-a100")
    assert measure_phases(trace).notes == (
        "no range names a phase (data, forward, backward, optimizer …)",
    )
    assert not trace.kernels["name"].astype(str).str.contains("backward", case=False).any()


def test_every_gpu_has_its_own_breakdown(real_trace: Callable[[str], Path]) -> None:
    for name in ("2026.2-2gpu-nccl-before", "2026.2-2gpu-nccl-after"):
        devices = measure_breakdown(load(real_trace, name)).devices
        assert [device.device for device in devices] == ["0", "1"]
        assert all(device.exposed_communication_ns > 0 for device in devices)
        assert {device.duration_ns for device in devices} == {devices[0].duration_ns}


def test_cuda_graphs_are_not_idle(real_trace: Callable[[str], Path]) -> None:
    total = measure_breakdown(load(real_trace, "2024.6-cuda-graphs-a100")).total
    assert total is not None
    assert total.idle_ns < 0.001 * total.duration_ns


def test_steps_with_names_of_a_warmup(real_trace: Callable[[str], Path]) -> None:
    trace = load(real_trace, "2025.1-llm-17k-kernels", "all")
    table = measure_steps(trace).table
    assert plain(table, "step", "is_warmup") == [
        (1, True),
        (2, False),
        (3, False),
        (4, False),
        (5, False),
    ]
    assert table["remark"][2].startswith("slow by 20.97 ms: idle devices +21.62 ms, backward")
