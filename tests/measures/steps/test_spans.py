"""Steps on the devices' clock: spans follow one another, whatever the host does meanwhile."""

import numpy as np
import pytest

from tests.builders import TraceBuilder, plain
from tests.running import run
from traceprof.measures.steps.find import find_steps
from traceprof.measures.steps.measured import measured_steps
from traceprof.model.ranks import Ranks
from traceprof.model.timing import TRACEPROF_DOMAIN, TimeWindow
from traceprof.render.formatting import sentences

SPAN = ("step", "device_start_ns", "device_end_ns", "on_device")


def lagging(lag_ns: int, n_steps: int = 5) -> TraceBuilder:
    """Steps of 100 on the host; 60 of compute and 40 of communication follow ``lag_ns`` later."""
    builder = TraceBuilder()
    for i in range(n_steps):
        at, ran = 100 * i, 100 * i + lag_ns
        builder.step(at, at + 100, number=i)
        builder.kernel("gemm", ran, ran + 60, launched_ns=(at + 5, at + 6))
        builder.kernel("ncclDevKernel", ran + 60, ran + 100, launched_ns=(at + 7, at + 8))
    return builder


@pytest.mark.parametrize("lag_ns", [10, 250])
def test_the_parts_of_a_step_are_its_own_however_far_the_device_lags(lag_ns: int) -> None:
    steps = run("steps", lagging(lag_ns).build())
    parts = ("at_ns", "duration_ns", "compute_ns", "exposed_communication_ns", "lag_ns")
    assert plain(steps.table.to_frame(), *parts) == [
        (100 * i + lag_ns, 100, 60, 40, lag_ns) for i in range(5)
    ]
    assert steps.scalars["lag_ns"] == lag_ns


def test_the_lag_is_said_where_it_matters() -> None:
    notes = {note.text: note.values for note in run("steps", lagging(250).build()).notes}
    assert notes["The GPUs lag behind the CPU by {lag:ns} (median)."] == {"lag": 250}
    said = [note.text for note in run("steps", lagging(4).build()).notes]
    assert not any("lag" in text for text in said)


def test_a_step_is_in_a_window_that_holds_its_span() -> None:
    trace = lagging(250).build()
    cut = find_steps(trace.within(TimeWindow(450, 650)))
    assert plain(cut.table.to_frame(), *SPAN) == [(2, 450, 550, True), (3, 550, 650, True)]


def test_work_of_autograds_threads_is_the_steps() -> None:
    trace = (
        TraceBuilder()
        .step(0, 100, number=0)
        .step(100, 200, number=1)
        .kernel("forward", 20, 60, launched_ns=(10, 11))
        .kernel("backward", 60, 150, launched_ns=(50, 51), thread=9)
        .kernel("forward", 150, 230, launched_ns=(110, 111))
        .build()
    )
    assert plain(find_steps(trace).table.to_frame(), *SPAN) == [
        (0, 20, 150, True),
        (1, 150, 230, True),
    ]


def test_work_between_two_steps_lies_in_the_second() -> None:
    trace = (
        TraceBuilder()
        .step(0, 100, number=0)
        .step(200, 300, number=1)
        .kernel("a", 50, 100, launched_ns=(10, 11))
        .kernel("evaluate", 120, 180, launched_ns=(110, 111))
        .kernel("b", 210, 290, launched_ns=(205, 206))
        .build()
    )
    table = run("steps", trace).table.to_frame()
    assert plain(table, "duration_ns", "compute_ns") == [(100, 50), (190, 140)]


def test_where_launches_are_not_known_a_step_is_its_period() -> None:
    builder = TraceBuilder()
    for i in range(3):
        builder.step(100 * i, 100 * i + 60, number=i).kernel("gemm", 100 * i + 20, 100 * i + 80)
    result = run("steps", builder.build())
    assert plain(result.table.to_frame(), "at_ns", "duration_ns", "compute_ns") == [
        (0, 100, 60),
        (100, 100, 60),
        (200, 60, 40),
    ]
    assert result.table.to_frame()["device_ns"].isna().all()
    assert any("does not link GPU work to steps" in note.text for note in result.notes)


def test_the_spans_of_a_process_follow_one_another() -> None:
    random = np.random.default_rng(5)
    builder = TraceBuilder()
    for i in range(20):
        builder.step(100 * i, 100 * i + 70, number=i)
        for _ in range(int(random.integers(0, 4))):
            at = 100 * i + int(random.integers(0, 70))
            start = at + int(random.integers(1, 400))
            builder.kernel("gemm", start, start + 30, launched_ns=(at, at + 1))
    table = find_steps(builder.build()).table.to_frame()
    assert table["device_start_ns"].tolist()[1:] == table["device_end_ns"].tolist()[:-1]
    assert (table["device_end_ns"] >= table["device_start_ns"]).all()


def test_a_first_step_cut_by_the_recording_is_not_called_fast() -> None:
    builder = TraceBuilder()
    for i in range(8):
        builder.step(100 * i, 100 * i + 100, number=i)
        builder.kernel("gemm", 100 * i + 80, 100 * i + 90, launched_ns=(100 * i, 100 * i + 1))
    steps = measured_steps(Ranks.of(builder.build()))
    assert steps.table.to_frame()["duration_ns"].tolist() == [90] + [100] * 7
    assert steps.table.to_frame()["excess_ns"].isna().all()
    assert steps.scalars["warmup_count"] == 0
    # What it misses lies before the recording: it tells nothing of how long steps are.
    assert (steps.scalars["steady_count"], steps.scalars["min_ns"]) == (7, 100)
    assert steps.scalars["steps_per_s"] == 1e9 / 100


def test_a_first_step_that_a_lagging_device_tells_whole_is_in_the_statistics() -> None:
    scalars = measured_steps(Ranks.of(lagging(10).build())).scalars
    assert (scalars["steady_count"], scalars["min_ns"]) == (5, 100)


def test_work_that_no_window_recorded_is_no_idle_time_of_the_next_step() -> None:
    # The device is 50 behind; of steps 0 to 2 nothing is recorded, though step 2 ran to 350.
    builder = TraceBuilder()
    for i in range(8):
        builder.step(100 * i, 100 * i + 100, number=i)
        if i >= 3:
            ran = (100 * i + 50, 100 * i + 150)
            builder.kernel("gemm", *ran, launched_ns=(100 * i + 5, 100 * i + 6))
    unrecorded = find_steps(builder.build()).table
    assert plain(unrecorded.take([2, 3]).to_frame(), *SPAN) == [
        (2, 200, 300, False),
        (3, 300, 450, True),
    ]
    # Where a recorder begins a window meanwhile, it is not known what ran before.
    builder.range("traceprof.window.start", 298, 299, domain=TRACEPROF_DOMAIN)
    table = find_steps(builder.build()).table
    assert plain(table.take([2, 3, 4]).to_frame(), *SPAN) == [
        (2, 200, 300, False),
        (3, 350, 450, True),
        (4, 450, 550, True),
    ]
    assert np.isnan(run("steps", builder.build()).table["excess_ns"].astype(float)).all()


@pytest.mark.parametrize(
    ("ran", "spans"),
    [
        # The host reads data first: 70 of 100 without any work.
        ((70, 95), [(0, 100)]),
        # The device lags by 30: so late did it end the work of the step before, which is not known.
        ((70, 130), [(30, 130)]),
        # It worked on what was launched before: the step begins with its own work.
        ((20, 150), [(20, 150)]),
    ],
)
def test_a_single_step_takes_what_the_host_does_before_its_first_work(
    ran: tuple[int, int], spans: list[tuple[int, int]]
) -> None:
    builder = TraceBuilder().step(0, 100, number=0)
    trace = builder.kernel("gemm", *ran, launched_ns=(15, 16)).build(span=(0, 150))
    assert plain(find_steps(trace).table, *SPAN[1:3]) == spans


def test_what_the_host_does_before_the_first_work_of_a_step_is_host_code() -> None:
    builder = TraceBuilder().step(0, 100_000_000, number=0)
    builder.kernel("gemm", 70_000_000, 100_000_000, launched_ns=(69_990_000, 69_995_000))
    found = run("idle", builder.build(span=(0, 100_000_000))).tables["causes"]
    assert plain(found, "cause", "total_ns") == [("host", 69_990_000), ("launch", 10_000)]


def test_one_step_has_one_length() -> None:
    builder = TraceBuilder().step(0, 100, number=0)
    builder.kernel("gemm", 10, 100, launched_ns=(5, 6))
    said = sentences(run("steps", builder.build()).notes)
    assert "1 usual step: 100 ns" in said


def test_lengths_of_several_ranks_say_so() -> None:
    builder = TraceBuilder()
    for process in (1, 2):
        for i in range(3):
            at = 100 * i
            builder.step(at, at + 100, number=i, process=process)
            launched = (at + 5, at + 6)
            builder.kernel(
                "k", at, at + 100, launched_ns=launched, process=process, device=process - 1
            )
    said = sentences(run("steps", builder.build()).notes)
    assert any(own.startswith("6 usual steps of 2 ranks: median 100 ns") for own in said)
