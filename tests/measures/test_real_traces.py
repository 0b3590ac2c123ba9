"""What the issue asks of particular real traces."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.running import run
from traceprof.formats import open_trace
from traceprof.model.ranks import Ranks
from traceprof.model.trace import Trace
from traceprof.names.ranges import UNCLAIMED
from traceprof.session.selection import select

pytestmark = pytest.mark.traces


def load(real_trace: Callable[[str], Path], name: str, window: str | None = None) -> Trace:
    trace = open_trace(real_trace(f"nsys/{name}.sqlite"))
    return trace.within(select(Ranks.of(trace), window).window)


def test_backward_kernels_of_the_autograd_thread(real_trace: Callable[[str], Path]) -> None:
    trace = load(real_trace, "2025.1-llm-17k-kernels", "all")
    rows = run("phases", trace).to_frame().set_index("phase")
    # 6642 kernels, most of them launched by the autograd thread, which has no range of its own.
    assert rows.loc["backward", "kernel_count"] == 6642
    assert rows["kernel_count"].sum() == len(trace.kernels)
    # What is left was launched between the phases: the initialization of the model.
    assert rows.loc[UNCLAIMED, "kernel_count"] == 10


def test_no_phases_claim_nothing(real_trace: Callable[[str], Path]) -> None:
    # This trace has ranges, but none of a phase; its kernels are of forward passes only.
    trace = load(real_trace, "2024.6-llm-2.7b-nvtx-a100")
    assert [note.text for note in run("phases", trace).notes] == [
        "the trace contains no ranges of phases (data, forward, backward …)"
    ]
    assert (
        not trace.kernels.to_frame()["name"].astype(str).str.contains("backward", case=False).any()
    )


def test_every_gpu_has_its_own_breakdown(real_trace: Callable[[str], Path]) -> None:
    for name in ("2026.2-2gpu-nccl-before", "2026.2-2gpu-nccl-after"):
        devices = run("breakdown", load(real_trace, name)).table.to_frame()
        assert devices["device"].tolist() == [0, 1]
        assert (devices["exposed_communication_ns"] > 0).all()
        assert devices["duration_ns"].nunique() == 1


def test_cuda_graphs_are_not_idle(real_trace: Callable[[str], Path]) -> None:
    result = run("breakdown", load(real_trace, "2024.6-cuda-graphs-a100"))
    total = result.to_frame("total").iloc[0]
    assert total.idle_ns < 0.001 * total.duration_ns


def test_steps_with_names_of_a_warmup(real_trace: Callable[[str], Path]) -> None:
    trace = load(real_trace, "2025.1-llm-17k-kernels", "all")
    # All five are named "Warm-up Step": the first is, by its length.
    table = run("steps", trace).table.to_frame()
    assert table["step"].tolist() == [1, 2, 3, 4, 5]
    assert table["is_warmup"].tolist() == [True, False, False, False, False]
    # Its work took 244.24 ms, of which the device was idle 27.16 ms; medians of the three others:
    # 223.19 ms and 5.49 ms.
    slow = table.iloc[2]
    assert round(slow["excess_ns"] / 1e6, 2) == 21.05
    assert (slow["grown_part"], round(slow["grown_part_ns"] / 1e6, 2)) == ("idle", 21.68)
    assert slow["grown_phase"] == "backward"
