import pytest

from tests.builders import TraceBuilder, plain
from traceprof.analysis.training.phases import UNCLAIMED, measure_phases, phase_of
from traceprof.model.window import TimeWindow


@pytest.mark.parametrize(
    ("name", "phase"),
    [
        ("Forward", "forward"),
        ("## forward ##", "forward"),
        ("## copy_batch_to_gpu ##", "h2d"),
        ("forward_pass", "forward"),
        ("DistributedDataParallel.forward", "forward"),
        ("loss.backward", "backward"),
        ("optimizer.step", "optimizer"),
        ("Optimizer.step#AdamW.step", "optimizer"),
        ("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", "data"),
        ("load batch", "data"),
        ("copy to gpu", "h2d"),
        ("all_reduce", "communication"),
        ("validation", "eval"),
        ("validate", "eval"),
        ("attention", None),
    ],
)
def test_names_of_phases(name: str, phase: str | None) -> None:
    assert phase_of(name, "") == phase


def test_host_and_device_time_of_phases() -> None:
    trace = (
        TraceBuilder()
        .phase("data", 0, 100)
        .phase("forward", 100, 200)
        .phase("backward", 200, 300)
        .phase("comm:all_reduce", 250, 260)
        .kernel("gemm", 210, 260, launched_ns=(110, 115))
        .kernel("gemm", 250, 300, launched_ns=(120, 125), stream=8)
        .kernel("dgrad", 300, 380, launched_ns=(210, 215), thread=2)
        .copy("h2d", 90, 95, launched_ns=(390, 395))
        .build(span=(0, 400))
    )
    phases = measure_phases(trace)
    assert plain(phases.to_frame(), "phase", "host_ns", "count", "device_ns", "kernel_count") == [
        ("data", 100, 1, 0, 0),
        ("forward", 100, 1, 90, 2),  # the two overlap for 10 ns
        ("backward", 90, 1, 80, 1),
        ("communication", 10, 1, 0, 0),
        (UNCLAIMED, 100, 0, 5, 0),
    ]
    assert sum(phases.to_frame()["host_ns"]) == 400
    assert phases.notes == (
        "no phase claims 1 kernels and copies, 5 ns (2.7 % of all): "
        "1 were launched outside any phase",
    )


def test_work_in_the_window_of_a_phase_before_it_is_shown() -> None:
    trace = (
        TraceBuilder()
        .range("forward", 0, 100)
        .range("backward", 100, 200)
        .kernel("gemm", 100, 150, launched_ns=(50, 55))
        .build()
    )
    rows = measure_phases(trace.within(TimeWindow(120, 200))).to_frame()
    assert plain(rows, "phase", "host_ns", "device_ns") == [
        ("forward", 0, 30),
        ("backward", 80, 0),
        (UNCLAIMED, 0, 0),
    ]


def test_without_device_work_there_is_no_device_time() -> None:
    phases = measure_phases(TraceBuilder().phase("forward", 0, 10).build()).phases
    assert [(phase.phase, phase.device_ns) for phase in phases] == [
        ("forward", None),
        (UNCLAIMED, None),
    ]


def test_ranges_without_phases_say_so() -> None:
    phases = measure_phases(TraceBuilder().range("attention", 0, 10).build())
    assert phases.to_frame().empty
    assert phases.notes == ("no range names a phase (data, forward, backward, optimizer …)",)
