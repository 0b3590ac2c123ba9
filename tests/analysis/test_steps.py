import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.builders import TraceBuilder, plain
from traceprof.analysis.advice.findings import measure_findings
from traceprof.analysis.device.breakdown import measure_breakdown
from traceprof.facts.steps.steadiness import measure_steadiness
from traceprof.facts.steps.parts import DEVICE_PARTS
from traceprof.analysis.training.steps import measure_steps
from traceprof.session.selection import select
from traceprof.model.steps import OWN_DOMAIN
from traceprof.model.window import TimeWindow

MS = 1_000_000


def training(durations_ms: list[int], data_ms: dict[int, int] | None = None) -> TraceBuilder:
    """Steps that wait for data, copy 1 MB, and compute for 10 ms; batches of 32 samples."""
    builder, at = TraceBuilder(), 0
    for i, duration in enumerate(durations_ms):
        data = (data_ms or {}).get(i, 1) * MS
        start, end = at * MS, (at + duration) * MS
        builder.step(start, end, number=i).phase("data", start, start + data)
        builder.batch(start + data, 32)
        builder.copy("h2d", start + data, start + data + MS, n_bytes=10**6)
        begin = start + data + MS
        builder.kernel("gemm", begin, begin + 10 * MS, launched_ns=(start + data, begin))
        at += duration
    return builder


def test_each_step_has_its_parts() -> None:
    table = measure_steps(training([20, 20]).build(span=(0, 40 * MS))).table
    assert plain(table, "process", "step", "at_ns", "duration_ns") == [
        (1, 0, 0, 20 * MS),
        (1, 1, 20 * MS, 20 * MS),
    ]
    parts = ["compute_ns", "exposed_transfer_ns", "idle_ns", "data_ns", "h2d_bytes"]
    assert plain(table, *parts) == [(10 * MS, MS, 9 * MS, MS, 10**6)] * 2
    assert plain(table, "samples_count", "samples_per_s") == [(32, 1600)] * 2
    # The first from its first work (the copy has no launch), the second from the end of that.
    assert table["device_ns"].tolist() == [10 * MS, 20 * MS]


def test_slow_steps_say_why() -> None:
    trace = training([20] * 6 + [50] + [20] * 5, data_ms={6: 31}).build()
    result = measure_steps(trace)
    remarks = [remark for remark in result.table["remark"] if remark]
    assert remarks == ["slow by 30.00 ms: idle devices +30.00 ms, data +30.00 ms"]
    assert result.table["remark"][6]


def test_a_step_that_the_profiler_made_slow_is_no_advice() -> None:
    builder = training([20] * 6 + [50] + [20] * 5)
    at = 6 * 20 * MS
    builder.range("traceprof.window.stop", at + 12 * MS, at + 32 * MS, domain=OWN_DOMAIN)
    builder.overhead("CUPTI buffer flush", at + 30 * MS, at + 40 * MS)
    trace = builder.build()
    table = measure_steps(trace).table
    assert table["profiler_ns"].tolist() == [0] * 6 + [28 * MS] + [0] * 5
    assert table["remark"][6].endswith("the profiler itself +28.00 ms")
    assert not [f for f in measure_findings(trace).findings if f.rule == "slow_steps"]
    without = measure_findings(training([20] * 6 + [50] + [20] * 5).build()).findings
    assert [f for f in without if f.rule == "slow_steps"]


def test_fast_steps_and_unexplained_ones() -> None:
    builder = TraceBuilder()
    at = 0
    for i, duration in enumerate([20] * 5 + [10] + [20] * 6):
        builder.step(at, at + duration, number=i)
        at += duration
    remarks = measure_steps(builder.build()).table["remark"]
    assert remarks[5] == "fast by 10 ns: no part of it stands out"


def test_warmup_is_marked_and_left_out() -> None:
    result = measure_steps(training([500, 300, 20, 20, 20, 20, 20, 20]).build())
    assert result.table["is_warmup"].tolist() == [True, True] + [False] * 6
    assert result.steadiness is not None
    assert (result.steadiness.count, result.steadiness.mean_ns) == (6, 20 * MS)
    assert result.throughput is not None
    assert result.throughput.mean_per_s == pytest.approx(1600)
    assert "2 leading step(s), 800.0 ms, are warm-up and not in the statistics" in result.notes
    assert "throughput: 1600 samples/s" in result.notes


def test_ranks_add_up_to_the_throughput() -> None:
    builder = TraceBuilder()
    for process in (1, 2):
        for i in range(4):
            builder.step(100 * i, 100 * i + 100, number=i, process=process)
            builder.batch(100 * i + 1, 5, process=process)
    throughput = measure_steps(builder.build()).throughput
    assert throughput is not None
    assert throughput.mean_per_s == pytest.approx(2 * 5 / 100e-9)


def test_only_whole_steps_of_a_window_count() -> None:
    trace = training([20] * 6).build()
    table = measure_steps(trace.within(TimeWindow(30 * MS, 90 * MS))).table
    assert table["step"].tolist() == [2, 3]
    # Recorded phases make the same steps inside a window as outside.
    none = measure_steps(trace.within(TimeWindow(25 * MS, 30 * MS)))
    assert none.table.empty
    assert none.notes == ("no step lies wholly inside the window: choose a larger one",)


def test_without_steps_it_says_what_to_do() -> None:
    steps = measure_steps(TraceBuilder().kernel("gemm", 0, 10).build())
    assert steps.table.empty
    assert steps.notes == (
        "no steps are known: record with `traceprof record`, or call traceprof.step()",
    )


def test_inferred_steps_are_named_so() -> None:
    builder = TraceBuilder()
    for i in range(60):
        builder.kernel(f"k{i % 5}", 10 * i, 10 * i + 9)
    result = measure_steps(builder.build())
    assert result.confidence_ratio == 0.99
    assert result.notes[0] == (
        "steps are from: inferred from the period of the kernel sequence "
        "(99.0 % of it repeats); times are the device's"
    )
    assert set(result.table["device_ns"]) == {50}


def test_a_trend_is_said() -> None:
    builder, at = TraceBuilder(), 0
    for i in range(20):
        builder.step(at, at + 100 + i, number=i)
        at += 100 + i
    result = measure_steps(builder.build())
    assert result.steadiness is not None
    assert result.steadiness.trend_ns == 1.0
    assert "steps get longer: 17.4 % from first to last" in result.notes


@settings(deadline=None, max_examples=50)
@given(
    st.lists(st.tuples(st.integers(0, 80), st.integers(1, 30), st.integers(0, 2)), max_size=12),
    st.lists(st.integers(5, 30), min_size=1, max_size=5),
)
def test_the_parts_of_a_step_are_the_breakdown_of_its_window(
    work: list[tuple[int, int, int]], durations: list[int]
) -> None:
    builder, at = TraceBuilder(), 0
    for i, duration in enumerate(durations):
        builder.step(at, at + duration, number=i)
        at += duration
    builder.kernel("gemm", 0, 1)
    for start, length, kind in work:
        if kind == 2:
            builder.copy("h2d", start, start + length)
        else:
            builder.kernel(["gemm", "ncclDevKernel"][kind], start, start + length, stream=kind)
    trace = builder.build(span=(0, 200))
    table = measure_steps(trace).table
    for _, row in table.iterrows():
        window = select(trace, f"step:{row['step']}").window
        (device,) = measure_breakdown(trace.within(window)).devices
        assert [row[part] for part in DEVICE_PARTS] == [getattr(device, p) for p in DEVICE_PARTS]
    assert np.allclose(table[list(DEVICE_PARTS)].sum(axis=1), table["duration_ns"])


def test_ranks_of_different_speed_are_no_trend() -> None:
    durations = np.array([10.0, 20.0, 30.0, 10.0, 20.0, 30.0, 10.0, 20.0, 30.0])
    ranks = np.array([0, 1, 2] * 3)
    steady = measure_steadiness(durations, ranks)
    assert steady is not None
    assert (steady.count, steady.row_count, steady.trend_ns) == (9, 3, 0.0)
    one_step = measure_steadiness(durations[:3], ranks[:3])
    assert one_step is not None
    assert (one_step.trend_ns, one_step.drift_ratio) == (0.0, 0.0)
    slower = measure_steadiness(durations + np.repeat([0.0, 2.0, 4.0], 3), ranks)
    assert slower is not None
    assert slower.trend_ns == 2.0
