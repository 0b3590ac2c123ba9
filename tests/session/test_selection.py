"""What people type to choose a window, and what it means."""

from __future__ import annotations

import pytest

from tests.builders import TraceBuilder
from tests.measures.generated_run import Clock, Plan, make_run
from traceprof.errors import NotRecordedError, UsageError
from traceprof.measures.steps.find import find_pattern
from traceprof.model.placement import place_run
from traceprof.model.ranks import Ranks
from traceprof.model.timing import TRACEPROF_DOMAIN
from traceprof.model.trace import Trace
from traceprof.names.ranges import CYCLE
from traceprof.render.formatting import sentences
from traceprof.session.selection import Selection, select


def selected(trace: Trace, text: str | None) -> Selection:
    return select(Ranks.of(trace), text)


def said(selection: Selection) -> list[str]:
    return sentences(selection.notes)


@pytest.fixture
def trace() -> Trace:
    """Ten steps of 100 ns from 1000 ns on, the first of them 300 ns long, each with a forward."""
    builder = TraceBuilder().step(1000, 1300, number=0).range("forward", 1010, 1200)
    for i in range(1, 10):
        start = 1200 + 100 * i
        builder.step(start, start + 100, number=i).range("forward", start + 10, start + 50)
    builder.range("ncclAllReduce", 1400, 1450, domain="NCCL", thread=2)
    builder.range("odd#3@x", 1500, 1510, thread=3).range("a & b", 1600, 1610, thread=3)
    return builder.kernel("gemm", 1100, 2150).build(span=(1000, 2300))


def bounds(selection: Selection) -> tuple[int, int]:
    return selection.window.start_ns, selection.window.end_ns


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("all", (1000, 2300)),
        ("active", (1100, 2150)),
        ("steady", (1300, 2200)),
        ("100ns..0.25us", (1100, 1250)),
        ("..100ns", (1000, 1100)),
        ("1us..", (2000, 2300)),
        ("@1100..@1200", (1100, 1200)),
        ("@1100..1200", (1100, 1200)),
        ("@1.1us..@1.2us", (1100, 1200)),
        ("30%..50%", (1390, 1650)),
        ("..12.5%", (1000, 1162)),
        ("90%..", (2170, 2300)),
        ("1us.. 90 %", (2000, 2170)),
        ("@1100..50%", (1100, 1650)),
        ("last:10%", (2170, 2300)),
        ("step:3..4 & 50%..100%", (1600, 1700)),
        ("first:100ns", (1000, 1100)),
        ("last:100ns", (2200, 2300)),
        ("last:1h", (1000, 2300)),
        ("step:3", (1500, 1600)),
        ("step:3..4", (1500, 1700)),
        ("step:8..", (2000, 2200)),
        ("step:..1", (1000, 1400)),
        ("range:forward", (1010, 1200)),
        ("range:forward#2", (1310, 1350)),
        ("range:forward#2..3", (1310, 1450)),
        ('range:"forward"#2', (1310, 1350)),
        ("range:/^for/#3", (1410, 1450)),
        ("range:/nccl.*Reduce/", (1400, 1450)),
        ("range:ncclAllReduce@NCCL", (1400, 1450)),
        ("range:/./@NCCL#1", (1400, 1450)),
        ("range:odd#3@x", (1500, 1510)),
        ('range:"a & b"', (1600, 1610)),
        ("range:a & b", (1600, 1610)),
        ("step:3 & range:forward", (1510, 1550)),
        ("steady & last:50ns", (2150, 2200)),
        ("step:2..5&10ns..20ns", (1410, 1420)),
        ('active & range:"a & b" & first:5ns', (1600, 1605)),
        (None, (1300, 2200)),
    ],
)
def test_what_a_window_means(trace: Trace, text: str | None, expected: tuple[int, int]) -> None:
    assert bounds(selected(trace, text)) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nonsense", "invalid window 'nonsense'"),
        ("", "invalid window ''"),
        ("step:77", "no step 77: the trace contains 0–9"),
        ("range:missing", "no range 'missing'"),
        ("range:forward@NCCL", "no range"),
        ("range:forward#99", "occurs 10 times"),
        ("range:forward#0", "occurs 10 times"),
        ("range:/(/", "not a valid regular expression"),
        ("5..6", "is not a time"),
        ("50s..60s", "contains no data"),
        ("20ns..10ns", "contains no data"),
        ("step:3 & step:5", "the trace contains no steps|no step"),
        ("last:nothing", "is not a time"),
    ],
)
def test_a_window_that_means_nothing_is_an_error(trace: Trace, text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        selected(trace, text)


def test_what_was_dropped_as_warmup_is_said(trace: Trace) -> None:
    assert said(selected(trace, None)) == [
        "Steps 1–9 (traceprof.step()), timed on the host, because the trace does not link them to "
        "GPU activity. The first step (300 ns) is excluded as warm-up."
    ]


# Without warm-up the first step is a slow one, which is a gap of the window.
@pytest.mark.parametrize(("warmup", "start_ns"), [(0, 1000), (1, 1300), (4, 1600)])
def test_warmup_can_be_given(trace: Trace, warmup: int, start_ns: int) -> None:
    assert bounds(selected(trace.with_warmup(warmup), None)) == (start_ns, 2200)


def test_a_slow_first_step_is_named_where_it_is_no_warmup(trace: Trace) -> None:
    notes = said(selected(trace.with_warmup(0), None))
    assert "Steps excluded from the measures: 1 slow (300 ns)." in notes


def test_a_warmup_of_all_steps_is_an_error(trace: Trace) -> None:
    with pytest.raises(UsageError, match="all 10 steps are warm-up"):
        selected(trace.with_warmup(10), "steady")


def test_without_steps_the_default_is_where_devices_worked() -> None:
    trace = TraceBuilder().kernel("gemm", 20, 30).range("x", 0, 100).build()
    assert bounds(selected(trace, None)) == (20, 30)
    with pytest.raises(NotRecordedError, match="the trace contains no steps"):
        selected(trace, "steady")


def test_without_devices_the_default_is_everything() -> None:
    selection = selected(TraceBuilder().range("x", 0, 100).build(), None)
    assert (selection.label, bounds(selection)) == ("all", (0, 100))
    assert said(selection) == ["No GPU activity was recorded. traceprof shows the whole trace."]


def test_without_devices_and_steps_imports_are_left_out() -> None:
    builder = TraceBuilder().range("import torch", 0, 400)
    for start in (500, 600, 700):
        builder.range("eval", start, start + 80)
    selection = selected(builder.range("exit", 800, 900).build(), None)
    assert (selection.label, bounds(selection)) == ("active", (500, 780))
    said_so = "No GPU activity was recorded. The window covers all passes of the model on the host."
    assert said(selection) == [said_so]


def test_steps_that_are_all_declared_warmup_are_not_the_default() -> None:
    builder = TraceBuilder().kernel("gemm", 0, 500)
    for i in range(4):
        builder.range(f"Warm-up Step {i}", 10 * i, 10 * i + 10)
    selection = selected(builder.build(), None)
    assert bounds(selection) == (0, 500)
    assert said(selection) == [
        "No step markers found. The window covers all GPU activity.",
        "Only warm-up steps have markers (4), so the window does not consist of steps.",
    ]


def test_steps_that_are_all_there_is_are_judged_whatever_they_are_called() -> None:
    builder = TraceBuilder()
    for i, length in enumerate((90, *[10] * 8)):
        start = 90 * (i > 0) + 10 * max(i - 1, 0)
        builder.range(f"Warm-up Step {i}", start, start + length)
        builder.kernel("gemm", start + 1, start + length, launched_ns=(start, start + 1))
    selection = selected(builder.build(), None)
    assert bounds(selection) == (90, 170)
    assert "All steps are marked as warm-up" in said(selection)[-1]


def _run_of(*parts: Trace) -> Ranks:
    return Ranks(parts, parts[0].info)


def test_one_step_of_many_ranks_is_called_one() -> None:
    ranks = _run_of(*(TraceBuilder().step(0, 100, number=10).build() for _ in range(2)))
    assert said(select(ranks, None))[0].startswith("Step 10 (")
    assert select(ranks, "step:10").label == "step:10"


def test_turns_of_several_ranks_count_once() -> None:
    parts = []
    for _ in range(2):
        builder = TraceBuilder()
        for i in range(60):
            builder.kernel(f"k{i % 5}", 1000 + 10 * i, 1000 + 10 * i + 9)
        parts.append(builder.build())
    found = said(select(_run_of(*parts), None))[0]
    assert found.startswith("No step markers found. traceprof detected 10 iterations"), found


def test_a_pattern_is_the_main_loop_and_no_step() -> None:
    builder = TraceBuilder()
    for i in range(60):
        builder.kernel(f"k{i % 5}", 1000 + 10 * i, 1000 + 10 * i + 9)
    trace = builder.copy("h2d", 0, 900).build()
    chosen = selected(trace, None)
    assert (chosen.label, bounds(chosen)) == ("main loop", (1059, 1559))
    assert said(chosen) == [
        "No step markers found. traceprof detected 10 iterations from the kernel sequence. It "
        "ignores 1.06 µs before and 40 ns after."
    ]
    assert bounds(selected(trace, "pattern:2..3")) == (1109, 1209)
    for text in ("steady", "step:2"):
        with pytest.raises(NotRecordedError, match="only iterations in the kernel sequence"):
            selected(trace, text)


def test_a_step_is_the_work_that_it_launched() -> None:
    builder = TraceBuilder()
    for i in range(5):
        # The device begins 300 after the host and works through.
        builder.step(100 * i, 100 * i + 90, number=i)
        launched = (100 * i + 10, 100 * i + 12)
        builder.kernel("gemm", 300 + 100 * i, 400 + 100 * i, launched_ns=launched)
    chosen = selected(builder.build(), "step:3")
    assert bounds(chosen) == (600, 700)
    assert said(chosen) == ["Steps detected from traceprof.step(), timed on the GPU."]
    assert bounds(selected(builder.build(), None)) == (300, 800)


def test_a_range_window_needs_ranges() -> None:
    with pytest.raises(NotRecordedError, match="no ranges recorded"):
        selected(TraceBuilder().kernel("gemm", 0, 1).build(), "range:forward")


def test_devices_that_were_recorded_in_windows_are_looked_at_there_only() -> None:
    builder = TraceBuilder()
    for i in range(10):
        builder.range("forward", 100 * i, 100 * i + 20, domain="traceprof")
        builder.range("backward", 100 * i + 20, 100 * i + 50, domain="traceprof")
        builder.range("optimizer", 100 * i + 50, 100 * i + 90, domain="traceprof")
    for start in (200, 600):
        builder.range("traceprof.window", start, start + 190, domain="traceprof", thread=2)
        builder.kernel("gemm", start, start + 190)
    selection = selected(builder.build(), None)
    # Of the step from 700 on the devices were recorded in a part.
    assert bounds(selection) == (600, 700)
    assert "captured in 2 windows. This is the last one" in said(selection)[-1]


def test_steps_of_a_run_are_those_of_all_its_ranks() -> None:
    run = place_run(make_run(Plan(n_ranks=2, clocks=(Clock(), Clock(offset_ns=1_000)))))
    window = select(run, "step:3..4").window
    alone = [select(Ranks.of(part), "step:3..4").window for part in run]
    assert alone[0].start_ns + 1_000 == alone[1].start_ns
    assert (window.start_ns, window.end_ns) == (alone[0].start_ns, alone[1].end_ns)


def two_recordings(n_turns: int) -> TraceBuilder:
    """Two recordings of 100 ns, 800 ns apart, of ``n_turns`` alike kernels each."""
    builder = TraceBuilder()
    for start in (0, 900):
        builder.range(CYCLE, start, start + 100, domain=TRACEPROF_DOMAIN)
        length = 100 // n_turns
        for i in range(n_turns):
            at = start + length * i
            builder.kernel("gemm", at, at + length // 2, launched_ns=(at, at + 1))
    return builder


def test_without_steps_the_last_of_several_recordings_is_judged() -> None:
    selection = selected(two_recordings(2).build(span=(0, 1000)), None)
    assert (selection.label, bounds(selection)) == ("active, recorded", (900, 975))
    assert said(selection)[-1] == "A process has 2 recordings. This is the last one."


def test_no_iteration_of_a_pattern_has_time_that_was_not_recorded() -> None:
    trace = two_recordings(20).build(span=(0, 1000))
    turns = find_pattern(trace).table
    assert len(turns) > 2
    assert (turns["end_ns"] - turns["start_ns"]).max() < 800
