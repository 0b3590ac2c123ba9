from tests.builders import TraceBuilder, plain
from tests.running import run
from traceprof.model.timing import TimeWindow
from traceprof.names.ranges import UNCLAIMED


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
    phases = run("phases", trace)
    assert plain(phases.to_frame(), "phase", "host_ns", "count", "device_ns", "kernel_count") == [
        ("data", 100, 1, 0, 0),
        ("forward", 100, 1, 90, 2),  # the two overlap for 10 ns
        ("backward", 90, 1, 80, 1),
        ("communication", 10, 1, 0, 0),
        (UNCLAIMED, 100, 0, 5, 0),
    ]
    assert sum(phases.to_frame()["host_ns"]) == 400
    (note,) = phases.notes
    assert note.text == (
        "{count:count} kernels and copies have no phase ({lost:ns}, {share:ratio} of all): "
        "{outside:count} launched outside any phase"
    )
    values = {"count": 1, "lost": 5, "share": 5 / 185, "outside": 1, "earlier": 0, "unlinked": 0}
    assert note.values == values


def test_work_in_the_window_of_a_phase_before_it_is_shown() -> None:
    trace = (
        TraceBuilder()
        .range("forward", 0, 100)
        .range("backward", 100, 200)
        .kernel("gemm", 100, 150, launched_ns=(50, 55))
        .build()
    )
    rows = run("phases", trace.within(TimeWindow(120, 200))).to_frame()
    assert plain(rows, "phase", "host_ns", "device_ns") == [
        ("forward", 0, 30),
        ("backward", 80, 0),
        (UNCLAIMED, 0, 0),
    ]


def test_without_device_work_there_is_no_device_time() -> None:
    table = run("phases", TraceBuilder().phase("forward", 0, 10).build()).table.to_frame()
    assert table["phase"].tolist() == ["forward", UNCLAIMED]
    assert "device_ns" not in table


def test_ranges_without_phases_say_so() -> None:
    phases = run("phases", TraceBuilder().range("attention", 0, 10).build())
    assert phases.to_frame().empty
    assert [note.text for note in phases.notes] == [
        "the trace contains no ranges of phases (data, forward, backward …)"
    ]


def test_phases_are_exclusive_and_add_up_to_the_window() -> None:
    trace = (
        TraceBuilder()
        .range("forward", 10, 40)
        .range("backward", 40, 90)
        .range("all_reduce", 60, 80)
        .build()
        .within(TimeWindow(0, 100))
    )
    table = run("phases", trace).table.to_frame()
    found = dict(zip(table["phase"], table["host_ns"], strict=True))
    assert found == {"forward": 30, "backward": 30, "communication": 20, UNCLAIMED: 20}
    assert table["host_ratio"].tolist() == [0.3, 0.3, 0.2, 0.2]


def test_the_thread_that_names_the_most_phases_speaks() -> None:
    trace = (
        TraceBuilder()
        .range("forward", 0, 10, thread=3)
        .range("forward", 20, 50, thread=2)
        .range("backward", 50, 60, thread=2)
        .range("optimizer", 0, 5, thread=9, process=4)
        .build(span=(0, 100))
    )
    found = plain(run("phases", trace).table.to_frame(), "process", "phase", "host_ns")
    assert found == [
        (1, "forward", 30),
        (1, "backward", 10),
        (1, UNCLAIMED, 60),
        (4, "optimizer", 5),
        (4, UNCLAIMED, 95),
    ]


def _steps(*, backward_thread: int, n_steps: int = 3) -> TraceBuilder:
    """Forward 0 .. 40, backward 50 .. 90, optimizer 90 .. 100 of each 100 ns; loss at 45."""
    builder = TraceBuilder()
    for start in range(0, 100 * n_steps, 100):
        builder.range("forward", start, start + 40).range("optimizer.step", start + 90, start + 100)
        builder.kernel("gemm", start + 10, start + 30, launched_ns=(start + 5, start + 7))
        builder.kernel("loss", start + 45, start + 47, launched_ns=(start + 44, start + 46))
        for at in (50, 70):
            times = (start + at, start + at + 10)
            launched = (start + at, start + at + 5)
            builder.kernel("dgrad", *times, launched_ns=launched, thread=backward_thread)
        builder.kernel("adam", start + 92, start + 95, launched_ns=(start + 91, start + 92))
    return builder


def test_backward_without_a_name_is_what_another_thread_launches_before_the_optimizer() -> None:
    phases = run("phases", _steps(backward_thread=2).build(span=(0, 300)))
    columns = ("phase", "host_ns", "count", "device_ns", "kernel_count", "inferred_count")
    assert plain(phases.to_frame(), *columns) == [
        ("forward", 120, 3, 60, 3, 0),
        ("backward", 75, 3, 60, 6, 6),
        ("optimizer", 30, 3, 9, 3, 0),
        (UNCLAIMED, 75, 0, 6, 3, 0),
    ]
    assert phases.scalars["inferred_ns"] == 60
    assert phases.notes[0].text.startswith("traceprof assigned {count:count} kernels and copies")
    assert phases.notes[0].values == {"count": 6, "time": 60}


def test_steps_have_the_inferred_backward_too() -> None:
    builder = _steps(backward_thread=2, n_steps=2).step(0, 100).step(100, 200)
    rows = run("step-phases", builder.build()).to_frame()
    backward = rows[rows["phase"] == "backward"]
    assert plain(backward, "host_ns", "device_ns", "work_count", "inferred_count") == [
        (25, 20, 2, 2),
        (25, 20, 2, 2),
    ]
    assert rows["inferred_count"].sum() == 4


def test_backward_on_the_thread_of_the_loop_is_all_between_forward_and_optimizer() -> None:
    phases = run("phases", _steps(backward_thread=1).build(span=(0, 300)))
    rows = plain(phases.to_frame(), "phase", "kernel_count", "inferred_count")
    assert rows == [
        ("forward", 3, 0),
        ("backward", 9, 9),  # nothing tells where the loss ends
        ("optimizer", 3, 0),
        (UNCLAIMED, 0, 0),
    ]


def test_gradients_are_zeroed_before_backward() -> None:
    builder = _steps(backward_thread=1, n_steps=1).range("zero_grad", 47, 49)
    rows = plain(run("phases", builder.build()).to_frame(), "phase", "kernel_count")
    assert rows == [("forward", 1), ("backward", 2), ("optimizer", 1), (UNCLAIMED, 1)]


def test_a_thread_that_launches_at_any_time_is_no_backward() -> None:
    builder = _steps(backward_thread=2, n_steps=1)
    for at in (95, 105, 115, 145, 165):
        builder.kernel("resize", at, at + 2, launched_ns=(at, at + 1), thread=3)
    rows = plain(run("phases", builder.build()).to_frame(), "phase", "inferred_count")
    assert ("backward", 2) in rows


def test_operators_of_autograd_tell_the_backward_of_a_loop_that_names_only_its_optimizer() -> None:
    name = "autograd::engine::evaluate_function: MmBackward0"
    builder = (
        TraceBuilder()
        .range("Optimizer.step#SGD.step", 90, 100)
        .kernel("gemm", 10, 30, launched_ns=(5, 7))
        .kernel("dgrad", 50, 60, launched_ns=(45, 47), thread=2)
        .host_op(name, 44, 48, thread=2)
        .kernel("all_reduce_hook", 60, 70, launched_ns=(49, 50), thread=2)
    )
    rows = plain(run("phases", builder.build()).to_frame(), "phase", "kernel_count")
    assert rows == [("backward", 2), ("optimizer", 0), (UNCLAIMED, 1)]
    named = builder.range("backward", 44, 60).build()
    assert run("phases", named).scalars["inferred_count"] == 0


def test_evaluation_between_forward_and_optimizer_has_no_backward() -> None:
    trace = (
        TraceBuilder()
        .range("forward", 0, 10)
        .kernel("loss", 12, 14, launched_ns=(12, 13))
        .range("eval", 20, 30)
        .kernel("save", 32, 34, launched_ns=(32, 33))
        .range("optimizer.step", 40, 50)
        .build()
    )
    assert run("phases", trace).scalars["inferred_count"] == 0


def test_work_launched_before_the_recording_is_told_apart() -> None:
    trace = (
        TraceBuilder()
        .range("forward", 0, 10)
        .kernel("early", 0, 10, correlation=3)
        .kernel("gemm", 10, 20, launched_ns=(5, 6), correlation=7)
        .kernel("lost", 20, 30, correlation=8)
        .build()
    )
    phases = run("phases", trace)
    assert phases.scalars["launched_before_recording_count"] == 1
    assert phases.scalars["unlinked_count"] == 2
    assert phases.notes[0].text.endswith(
        "{earlier:count} launched before the recording began, "
        "{unlinked:count} without a recorded launch"
    )


def test_forward_passes_within_a_rollout_are_part_of_it() -> None:
    trace = (
        TraceBuilder()
        .phase("generation", 0, 100)
        .phase("eval", 10, 30)
        .phase("eval", 40, 60)
        .phase("reward", 100, 150)
        .phase("eval", 110, 140)
        .phase("eval", 150, 160)
        .build(span=(0, 200))
    )
    rows = run("phases", trace).to_frame()
    assert plain(rows, "phase", "host_ns") == [
        ("eval", 10),
        ("generation", 100),
        ("reward", 50),
        (UNCLAIMED, 40),
    ]


def test_the_time_of_a_phase_in_a_gap_of_the_window_does_not_count() -> None:
    trace = TraceBuilder().phase("generation", 0, 100).phase("forward", 100, 120).build()
    window = TimeWindow(0, 120, ((40, 60),))
    rows = run("phases", trace.within(window)).to_frame()
    assert plain(rows, "phase", "host_ns") == [("forward", 20), ("generation", 80), (UNCLAIMED, 0)]


def test_pauses_of_the_recorder_are_part_of_no_phase() -> None:
    """The recorder opens a window in an update, and closes it in a rollout and in a pass."""
    builder = TraceBuilder()
    for begin in (0, 1_000):
        builder.phase("rollout", begin, begin + 400)
        builder.phase("environment", begin + 100, begin + 300)
        builder.phase("rollout.used", begin + 500, begin + 500)
        builder.phase("update", begin + 500, begin + 950)
        builder.phase("forward", begin + 500, begin + 600)
        builder.phase("backward", begin + 600, begin + 700)
        builder.phase("optimizer", begin + 850, begin + 950)
    builder.phase("traceprof.window.start", 720, 770)  # within the update
    builder.phase("traceprof.window.stop", 1_150, 1_250)  # within a step of the environment
    builder.phase("traceprof.window.stop", 1_610, 1_690)  # within a backward pass
    trace = builder.build(span=(0, 2_000))
    true_ns = {
        "rollout": 400,
        "environment": 400 - 100,
        "forward": 200,
        "backward": 200 - 80,
        "optimizer": 200,
        "update": 300 - 50,
        "profiler": 50 + 100 + 80,
        UNCLAIMED: 300,
    }
    phases = run("phases", trace).to_frame()
    assert dict(plain(phases, "phase", "host_ns")) == true_ns
    steps = run("steps", trace).table
    assert steps["period_ns"].tolist() == [1_000 - 50, 950 - 100 - 80]
    for phase in ("rollout", "environment", "forward", "backward", "optimizer", "update"):
        assert steps[f"{phase}_ns"].sum() == true_ns[phase]
    rows = run("step-phases", trace).to_frame()
    sums = rows.groupby("phase")["host_ns"].sum()
    del true_ns["profiler"]  # excluded from the period
    assert sums.to_dict() == {**true_ns, UNCLAIMED: 200}
    assert sums.sum() == steps["period_ns"].sum() - steps["between_ns"].sum()
