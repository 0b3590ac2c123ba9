"""What lies between two steps belongs to their period, with its cause."""

import pytest

from tests.builders import TraceBuilder, plain
from tests.running import run
from traceprof.measures.steps.between import between_steps
from traceprof.model.timing import TimeWindow

ROW = ("step", "start_ns", "end_ns", "cause")


def loop(n_steps: int = 4) -> TraceBuilder:
    """Step ranges of 72, one every 765, with a kernel in each."""
    builder = TraceBuilder()
    for i in range(n_steps):
        at = 765 * i
        builder.range(f"step {i}", at, at + 72).batch(at + 1, 10)
        builder.kernel("gemm", at + 10, at + 70, launched_ns=(at + 5, at + 6))
    return builder


def test_a_wait_for_data_between_ranges_is_part_of_the_step() -> None:
    builder = loop()
    for i in range(3):
        # The loader's own thread has it.
        builder.range("DataLoader.__next__", 765 * i + 72, 765 * (i + 1), thread=5)
    trace = builder.build()
    assert plain(between_steps(trace), *ROW) == [
        (i, 765 * i + 72, 765 * (i + 1), "data wait") for i in range(3)
    ]
    steps = run("steps", trace)
    host = ("period_ns", "between_ns", "between_cause", "duration_ns")
    assert plain(steps.table.to_frame(), *host) == [
        (765, 693, "data wait", 70),
        (765, 693, "data wait", 765),
        (765, 693, "data wait", 765),
        (72, 0, "", 765),
    ]
    # The first step on the device is cut by the beginning of the recording.
    assert steps.table["kind"].tolist() == ["cut by an edge", "usual", "usual", "usual"]
    assert steps.scalars["samples_per_s"] == pytest.approx(10 / 765e-9)
    notes = {note.text.split(" of CPU time")[0]: note.values for note in steps.notes}
    assert notes["{share:ratio}"]["cause"] == "data wait"
    assert notes["{share:ratio}"]["between"] == 3 * 693


@pytest.mark.parametrize(
    ("name", "cause"),
    [
        ("validation", "evaluation"),
        ("eval_loop", "evaluation"),
        ("forward", "evaluation"),
        ("save_checkpoint", "checkpoint"),
        ("torch.save", "checkpoint"),
        ("checkpoint", "checkpoint"),
        ("CheckpointFunctionBackward", "unknown"),
        ("save_for_backward", "unknown"),
        ("log metrics", "logging"),
        ("get_batch", "data wait"),
        ("dialogue", "unknown"),
        ("evaluable", "unknown"),
    ],
)
def test_causes_by_name(name: str, cause: str) -> None:
    trace = loop(2).range(name, 72, 765).build()
    assert plain(between_steps(trace), *ROW) == [(0, 72, 765, cause)]


@pytest.mark.parametrize(
    ("call", "cause"),
    [("cudaStreamSynchronize", "host synchronization"), ("cudaMalloc", "unknown")],
)
def test_the_cpu_may_wait_for_the_gpu_between_steps(call: str, cause: str) -> None:
    trace = loop(2).api_call(call, 72, 700).range("save", 700, 765).build()
    assert plain(between_steps(trace), *ROW) == [
        (0, 72, 700, cause),
        (0, 700, 765, "checkpoint"),
    ]


def test_a_forward_pass_before_a_backward_pass_is_no_evaluation() -> None:
    trace = loop(2).range("forward", 100, 200).range("backward", 200, 300).build()
    assert set(between_steps(trace)["cause"]) == {"unknown"}


def test_time_is_charged_by_overlap_and_once() -> None:
    # Evaluation loads data itself: that is evaluation.
    trace = loop(2).range("eval", 100, 400).range("dataloader", 90, 150, thread=3).build()
    assert plain(between_steps(trace), *ROW) == [
        (0, 72, 90, "unknown"),
        (0, 90, 400, "evaluation"),
        (0, 400, 765, "unknown"),
    ]
    assert run("steps", trace).table.to_frame()["between_cause"].tolist() == ["unknown", ""]


def test_evaluation_every_few_steps_makes_the_step_slow_and_says_so() -> None:
    builder, at = TraceBuilder(), 0
    for i in range(12):
        builder.range(f"step {i}", at, at + 100)
        builder.kernel("gemm", at + 10, at + 90, launched_ns=(at + 5, at + 6))
        if i == 5:
            builder.range("evaluate", at + 100, at + 600)
        at += 600 if i == 5 else 100
    table = run("steps", builder.build()).table.to_frame()
    slow = table[table["excess_ns"].notna()]
    assert plain(slow, "step", "excess_ns", "grown_phase") == [(6, 500, "eval")]


def test_a_window_has_the_time_between_its_own_steps() -> None:
    trace = loop().build()
    cut = trace.within(TimeWindow(70, 2 * 765 + 80))
    assert between_steps(cut)["step"].tolist() == [1, 2]


def test_a_stall_that_nobody_names_between_two_steps_is_said_to_lie_there() -> None:
    builder, at = TraceBuilder(), 0
    for i in range(12):
        builder.range(f"step {i}", at, at + 100)
        builder.kernel("gemm", at + 10, at + 90, launched_ns=(at + 5, at + 6))
        at += 600 if i == 5 else 100
    table = run("steps", builder.build()).table.to_frame()
    slow = table[table["excess_ns"].notna()]
    assert plain(slow, "step", "excess_ns", "grown_phase") == [(6, 500, "between_steps")]


def test_what_an_evaluation_fetches_and_does_between_its_passes_is_its_own() -> None:
    builder = loop(2)
    for name, start, end in (
        *(("data", 100, 200), ("eval", 200, 250), ("data", 300, 400), ("eval", 400, 450)),
        ("data", 500, 600),
    ):
        builder.phase(name, start, end)
    assert plain(between_steps(builder.build()), *ROW) == [
        (0, 72, 100, "unknown"),
        (0, 100, 450, "evaluation"),
        (0, 450, 500, "unknown"),
        (0, 500, 600, "data wait"),
        (0, 600, 765, "unknown"),
    ]
