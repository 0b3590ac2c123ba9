from tests.builders import TraceBuilder, plain
from tests.running import run
from tests.training import MS, Training
from traceprof.names.ranges import UNCLAIMED

COLUMNS = ("step", "device", "phase", "host_ns", "device_ns", "work_count")


def test_what_a_phase_launches_counts_for_its_step_whenever_it_runs() -> None:
    trace = (
        TraceBuilder()
        .step(0, 100, number=0)
        .step(100, 200, number=1)
        .range("forward", 10, 60)
        .range("forward", 110, 160)
        .kernel("a", 150, 250, launched_ns=(20, 25))
        .kernel("b", 200, 260, launched_ns=(30, 35), stream=9)
        .kernel("c", 260, 300, launched_ns=(120, 125))
        .kernel("d", 300, 310, launched_ns=(190, 195))
        .build()
    )
    assert plain(run("step-phases", trace).table.to_frame(), *COLUMNS) == [
        (0, 0, "forward", 50, 110, 2),
        (0, 0, UNCLAIMED, 50, 0, 0),
        (1, 0, "forward", 50, 40, 1),
        (1, 0, UNCLAIMED, 50, 10, 1),
    ]


def test_a_program_without_a_device() -> None:
    trace = TraceBuilder().step(0, 100, number=3).phase("data", 0, 30).build()
    table = run("step-phases", trace).table.to_frame()
    assert table.columns.tolist() == ["process", "step", "phase", "host_ns"]
    assert plain(table, "step", "phase", "host_ns") == [(3, "data", 30), (3, UNCLAIMED, 70)]


def test_host_times_add_up_to_the_steps() -> None:
    table = run(
        "step-phases", Training(n_steps=4, n_ranks=2, all_reduce_ns=MS).build()
    ).table.to_frame()
    sums = table.groupby(["process", "step", "device"])[["host_ns", "work_count"]].sum()
    # 40 kernels, a copy and an all-reduce; every step is measured on the device of its rank.
    assert sums["work_count"].tolist() == [42] * 8
    assert set(table["device"]) == {0, 1}


def test_no_steps_no_phases() -> None:
    result = run("step-phases", TraceBuilder().range("x", 0, 1).build())
    assert (result.table.to_frame().empty, len(result.notes)) == (True, 1)
