from tests.builders import TraceBuilder, plain
from tests.running import run
from traceprof.facts.names.phases import UNCLAIMED
from traceprof.model.window import TimeWindow


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
        "no phase claims {count:count} kernels and copies, {lost:ns} ({share:ratio} of all): "
        "{outside:count} were launched outside any phase"
    )
    values = {"count": 1, "lost": 5, "share": 5 / 185, "outside": 1, "unlinked": 0}
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
    table = run("phases", TraceBuilder().phase("forward", 0, 10).build()).table
    assert table["phase"].tolist() == ["forward", UNCLAIMED]
    assert "device_ns" not in table


def test_ranges_without_phases_say_so() -> None:
    phases = run("phases", TraceBuilder().range("attention", 0, 10).build())
    assert phases.to_frame().empty
    assert [note.text for note in phases.notes] == [
        "no range names a phase (data, forward, backward, optimizer …)"
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
    table = run("phases", trace).table
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
    found = plain(run("phases", trace).table, "process", "phase", "host_ns")
    assert found == [
        (1, "forward", 30),
        (1, "backward", 10),
        (1, UNCLAIMED, 60),
        (4, "optimizer", 5),
        (4, UNCLAIMED, 95),
    ]
