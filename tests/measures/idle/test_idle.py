from tests.builders import TraceBuilder, plain
from tests.reading import said
from tests.running import run
from traceprof.model.results import Note
from traceprof.model.timing import TimeWindow

US = 1000
MS = 1000 * US


def causes(builder: TraceBuilder) -> dict[str, int]:
    trace = builder.build()
    table = run("idle", trace.within(TimeWindow(0, trace.span.end_ns))).table
    return dict(plain(table, "cause", "total_ns"))


def between(launched_ns: tuple[int, int], gap_ns: tuple[int, int]) -> TraceBuilder:
    """Two kernels with a gap between them, the second launched at ``launched_ns``."""
    return (
        TraceBuilder()
        .kernel("first", 0, gap_ns[0], launched_ns=(-20, -10))
        .kernel("second", gap_ns[1], gap_ns[1] + MS, launched_ns=launched_ns)
    )


def test_waiting_for_data() -> None:
    # The gap is 10 ms, 8 of them in the data loader; the rest is other code and the launch.
    trace = between((10_900 * US, 10_950 * US), (MS, 11 * MS)).phase("data", 2 * MS, 10 * MS)
    assert causes(trace) == {
        "data": 8 * MS,
        "host": MS + 900 * US,  # before and after the fetch
        "launch": 70 * US,  # the call of 50 µs and 20 µs for it to arrive
        "queued": 30 * US,
    }


def test_launching_too_slowly() -> None:
    trace = between((140 * US, 148 * US), (100 * US, 150 * US))
    assert causes(trace) == {"launch": 50 * US}


def test_synchronizing() -> None:
    builder = between((5 * MS, 5 * MS + 5 * US), (MS, 5 * MS + 10 * US))
    trace = builder.api_call("cudaDeviceSynchronize", 0, 4 * MS)
    # Without the wait of 1 ms ahead of the gap the host would be ready that much earlier: the 1 ms
    # behind the wait is its doing, too.
    assert causes(trace) == {"synchronizing": 4 * MS, "launch": 10 * US}


def test_waits_of_threads_that_launch_nothing_do_not_count() -> None:
    builder = between((5 * MS, 5 * MS + 5 * US), (MS, 5 * MS + 10 * US))
    trace = builder.api_call("cudaEventSynchronize", 0, 4 * MS, thread=77)
    assert causes(trace) == {"host": 4 * MS, "launch": 10 * US}


def test_waiting_in_the_queue() -> None:
    assert causes(between((-9, -5), (100 * US, 3 * MS))) == {"queued": 2900 * US}


def test_waiting_for_a_peer() -> None:
    trace = (
        TraceBuilder()
        .kernel("gemm", 0, 100 * US, launched_ns=(-20, -10))
        .kernel("ncclDevKernel_AllReduce", 900 * US, MS, launched_ns=(-9, -5))
        .kernel("gemm", MS + 5 * US, 2 * MS, launched_ns=(-4, -3))
    )
    # The 5 µs behind the collective are the usual pause.
    assert causes(trace) == {"peer": 800 * US, "queued": 5 * US}


def test_a_gap_at_the_end_of_the_window_waits_for_what_is_behind_it() -> None:
    trace = between((5 * MS, 5 * MS + 5 * US), (MS, 5 * MS + 10 * US)).build()
    table = run("idle", trace.within(TimeWindow(0, 3 * MS))).table
    assert plain(table, "cause", "total_ns") == [("host", 2 * MS)]


def test_a_launch_that_takes_long() -> None:
    # The call lasts from before the gap to its end, as when a module is loaded lazily.
    assert causes(between((50 * US, 3 * MS), (100 * US, 3 * MS))) == {"host": 2900 * US}
    assert causes(between((50 * US, 900 * US), (100 * US, 900 * US))) == {"launch": 800 * US}


def test_the_profiler_itself() -> None:
    builder = between((5 * MS, 5 * MS + 5 * US), (MS, 5 * MS + 10 * US))
    trace = builder.overhead("CUDA profiling data flush overhead", 2 * MS, 4 * MS)
    trace = trace.phase("data", 3 * MS, 5 * MS)
    # Where the profiler is at work nothing else counts.
    assert causes(trace) == {
        "profiler": 2 * MS,
        "data": MS,
        "host": MS,
        "launch": 10 * US,
    }


def test_before_the_first_and_after_the_last_work() -> None:
    trace = TraceBuilder().kernel("gemm", 100, 200, launched_ns=(50, 60)).build(span=(0, 1000))
    assert plain(run("idle", trace).table, "cause", "total_ns") == [("edge", 900)]


def test_work_without_a_recorded_launch() -> None:
    trace = TraceBuilder().kernel("a", 0, 10).kernel("b", 50, 60)
    assert causes(trace) == {"unknown": 40}


def test_host_bound_steps_are_named() -> None:
    builder = between((11 * MS, 11 * MS + 1), (MS, 11 * MS)).step(0, 12 * MS, number=4)
    # Step 4 is from 0, its first work, to 12 ms.
    builder.kernel("beside", 0, MS, launched_ns=(0, 1), stream=8)
    idle = run("idle", builder.step(12 * MS, 13 * MS, number=5).build(span=(0, 13 * MS)))
    assert plain(idle.to_frame("host_bound_steps"), "process", "step", "idle_ratio") == [
        (1, 4, 10 / 12)
    ]
    text = (
        "Host-bound steps: {n:count} ({steps}{more}). In these steps, the GPUs wait for the host "
        "for more than {limit:ratio} of the time."
    )
    assert idle.notes[0] == Note.of(text, n=1, limit=0.3, steps="4", more="")


def test_a_step_that_is_host_bound_on_two_ranks_is_one_step() -> None:
    builder = TraceBuilder()
    for process in (1, 2):
        builder.step(0, 12 * MS, number=4, process=process)
        for start, end in ((0, MS), (11 * MS, 12 * MS)):
            launched = (start, start + 1)
            builder.kernel(
                "k", start, end, launched_ns=launched, process=process, device=process - 1
            )
    idle = run("idle", builder.build(span=(0, 12 * MS)))
    assert len(idle.to_frame("host_bound_steps")) == 2
    assert (idle.notes[0].values["n"], idle.notes[0].values["steps"]) == (1, "4")


def test_gaps_by_length() -> None:
    builder, at = TraceBuilder(), 0
    for gap in (5 * US, 50 * US, 60 * US, 5 * MS):
        builder.kernel("k", at, at + US)
        at += US + gap
    histogram = run("idle", builder.kernel("k", at, at + US).build()).to_frame("histogram")
    assert plain(histogram, "device", "lower_bound_ns", "upper_bound_ns", "count", "total_ns") == [
        (0, 0, 10 * US, 1, 5 * US),
        (0, 10 * US, 100 * US, 2, 110 * US),
        (0, MS, 10 * MS, 1, 5 * MS),
    ]


def test_the_longest_gaps_with_what_ran_around_them() -> None:
    trace = (
        TraceBuilder()
        .range("epoch", 0, 1000 * US)
        .range("validate", 90 * US, 600 * US)
        .kernel("a", 0, 100 * US, launched_ns=(0, 5))
        .copy("d2h", 110 * US, 120 * US, launched_ns=(105 * US, 106 * US))
        .kernel("b", 500 * US, 600 * US, launched_ns=(490 * US, 500 * US))
        .build(span=(0, 600 * US))
    )
    table = run("gaps", trace).table.to_frame()
    assert plain(table, "at_ns", "duration_ns", "cause", "before", "after", "host_name") == [
        (120 * US, 380 * US, "host", "d2h", "b", "validate"),
        (100 * US, 10 * US, "launch", "a", "d2h", "validate"),
    ]
    assert table["cause_ratio"].tolist() == [370 / 380, 1.0]


def test_gaps_tell_what_the_host_was_in_for_most_of_them() -> None:
    trace = (
        between((5 * MS, 5 * MS + 5 * US), (MS, 5 * MS + 10 * US))
        .range("open when it began", 0, MS + 6 * US)
        .range("compile, op_id = 1", 2 * MS, 4 * MS)
        .range("compile, op_id = 2", 4 * MS, 5 * MS)
        .range("nvrtc", 2 * MS, 4 * MS, thread=2)
        .build()
    )
    trace = trace.within(TimeWindow(0, trace.span.end_ns))
    gaps = run("gaps", trace).table.to_frame()
    columns = ("duration_ns", "host_name", "host_ratio", "overlapping_activity", "overlap_ratio")
    assert plain(gaps, *columns) == [
        (4010 * US, "compile", 3000 / 4010, "nvrtc", 2000 / 4010),
    ]
    idle = run("idle", trace)
    assert said(idle) == [
        "CPU activity while the GPUs were idle: compile 3.00 ms, (nothing recorded) 999 µs, "
        "open when it began 6.00 µs."
    ]
    names = idle.to_frame("names")
    assert plain(names, "cause", "name", "thread", "total_ns", "gap_count") == [
        ("host", "compile", "launching", 3 * MS, 1),
        ("host", "(nothing recorded)", "", 994 * US, 1),
        ("host", "open when it began", "launching", 6 * US, 1),
        ("launch", "(nothing recorded)", "", 5 * US, 1),
        ("launch", "cudaLaunchKernel", "launching", 5 * US, 1),
    ]


def test_no_gaps() -> None:
    trace = TraceBuilder().kernel("a", 0, 10).build()
    assert run("gaps", trace).table.empty
    assert run("idle", trace).table.empty
    assert run(
        "gaps", TraceBuilder().build(recorded=["kernels", "copies", "api_calls"])
    ).table.empty
