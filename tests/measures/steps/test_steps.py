import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.builders import PROCESS, TraceBuilder, plain
from tests.findings.found import findings_of
from tests.measures.generated_run import make_host_ahead
from tests.running import run
from traceprof.measures.steps.parts import DEVICE_PARTS
from traceprof.model.ranks import Ranks
from traceprof.model.timing import TRACEPROF_DOMAIN, TimeWindow
from traceprof.render.formatting import note_text
from traceprof.session.selection import select

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
    table = run("steps", training([20, 20]).build(span=(0, 40 * MS))).table
    # The first from its start on the host, the second from the end of the work of the first.
    assert plain(table, "process", "step", "at_ns", "duration_ns", "device_ns") == [
        (1, 0, 0, 12 * MS, 12 * MS),
        (1, 1, 12 * MS, 20 * MS, 20 * MS),
    ]
    parts = ["compute_ns", "exposed_transfer_ns", "idle_ns", "h2d_bytes"]
    assert plain(table, *parts) == [(10 * MS, MS, MS, 10**6), (10 * MS, MS, 9 * MS, 10**6)]
    host = ["host_at_ns", "period_ns", "between_ns", "lag_ns", "data_ns"]
    assert plain(table, *host) == [(0, 20 * MS, 0, -8 * MS, MS), (20 * MS, 20 * MS, 0, -8 * MS, MS)]
    assert plain(table, "samples_count", "samples_per_s") == [(32, 1600)] * 2


def test_a_host_that_runs_ahead_makes_no_program_faster() -> None:
    result = run("steps", make_host_ahead())
    assert result.table["period_ns"].tolist() == [5 * MS] * 8
    assert result.table["samples_per_s"].tolist() == pytest.approx([1600] * 8)
    assert result.scalars["samples_per_s"] == pytest.approx(1600)
    assert result.scalars["steps_per_s"] == pytest.approx(50)


EXCESS = ("excess_ns", "grown_part", "grown_part_ns", "grown_phase", "grown_phase_ns")


def test_slow_steps_say_why() -> None:
    # In words: slow by 30.00 ms: idle devices +30.00 ms, data +30.00 ms
    trace = training([20] * 6 + [50] + [20] * 5, data_ms={6: 31}).build()
    table = run("steps", trace).table.to_frame()
    assert plain(table[table["step"] == 6], *EXCESS) == [
        (30 * MS, "idle", 30 * MS, "data", 30 * MS)
    ]
    others = table[table["step"] != 6]
    assert others["excess_ns"].isna().all()
    assert set(others["grown_part"]) == set(others["grown_phase"]) == {""}


def test_a_step_that_the_profiler_made_slow_is_no_advice() -> None:
    builder = training([20] * 6 + [50] + [20] * 5)
    at = 6 * 20 * MS
    builder.range("traceprof.window.stop", at + 12 * MS, at + 32 * MS, domain=TRACEPROF_DOMAIN)
    builder.overhead("CUPTI buffer flush", at + 30 * MS, at + 40 * MS)
    trace = builder.build()
    table = run("steps", trace).table.to_frame()
    # The 20 ms in which its window ended are in no period.
    assert table["profiler_ns"].tolist() == [0] * 6 + [8 * MS] + [0] * 5
    assert table["period_ns"].tolist() == [20 * MS] * 6 + [30 * MS] + [20 * MS] * 5
    # On the devices it is the next step that had to wait for it; the recorder's time is cut out.
    assert plain(table[table["step"] == 7], "excess_ns", "grown_phase", "grown_phase_ns") == [
        (10 * MS, "profiler", 8 * MS)
    ]
    assert "slow_steps" not in set(run("findings", trace).table.to_frame()["rule"])
    without = training([20] * 6 + [50] + [20] * 5).build()
    assert "slow_steps" in set(run("findings", without).table.to_frame()["rule"])


def test_fast_steps_and_unexplained_ones() -> None:
    builder = TraceBuilder()
    at = 0
    for i, duration in enumerate([20] * 5 + [10] + [20] * 6):
        builder.step(at, at + duration, number=i)
        at += duration
    table = run("steps", builder.build()).table.to_frame()
    assert table["excess_ns"][5] == -10
    assert (table["grown_part"][5], table["grown_phase"][5]) == ("", "")


def test_each_process_has_its_own_typical_step() -> None:
    builder = TraceBuilder()
    for process, usual in ((1, 10), (2, 100)):
        start = 0
        for i in range(8):
            length = usual * (3 if (i, process) in ((5, 1), (6, 2)) else 1)
            builder.step(start, start + length, number=i, process=process)
            builder.phase("forward", start, start + length - 2, process=process)
            start += length
    table = run("steps", builder.build()).table.to_frame()
    slow = table[table["excess_ns"].notna()]
    assert plain(slow, "process", "step", "excess_ns", "grown_phase", "grown_phase_ns") == [
        (1, 5, 20, "forward", 20),
        (2, 6, 200, "forward", 200),
    ]


def test_warmup_is_marked_and_left_out() -> None:
    result = run("steps", training([500, 300, 20, 20, 20, 20, 20, 20]).build())
    # The device is done with a step 8 ms before the host: the third waits for the slow second.
    assert result.table.to_frame()["is_warmup"].tolist() == [True, True, True] + [False] * 5
    scalars = result.scalars
    assert (scalars["steady_count"], scalars["mean_ns"]) == (5, 20 * MS)
    assert scalars["samples_per_s"] == pytest.approx(1600)
    # The host begins 2 ms ahead of the first kernel.
    assert (scalars["warmup_count"], scalars["warmup_ns"]) == (3, 812 * MS)
    notes = {note.text: note.values for note in result.notes}
    dropped = "The first {n:count} steps ({lost:ns}) are warm-up. The statistics exclude them."
    assert notes[dropped] == {"n": 3, "lost": 812 * MS}
    assert notes["Throughput: {rate:count} samples/s"] == {"rate": pytest.approx(1600)}


def test_ranks_add_up_to_the_throughput() -> None:
    builder = TraceBuilder()
    for process in (1, 2):
        for i in range(4):
            builder.step(100 * i, 100 * i + 100, number=i, process=process)
            builder.batch(100 * i + 1, 5, process=process)
    scalars = run("steps", builder.build()).scalars
    assert scalars["samples_per_s"] == pytest.approx(2 * 5 / 100e-9)


def test_only_whole_steps_of_a_window_count() -> None:
    trace = training([20] * 6).build()
    table = run("steps", trace.within(TimeWindow(30 * MS, 90 * MS))).table
    assert table["step"].tolist() == [2, 3]
    # Recorded phases make the same steps inside a window as outside.
    none = run("steps", trace.within(TimeWindow(25 * MS, 30 * MS)))
    assert none.table.to_frame().empty
    assert [note.text for note in none.notes] == [
        "The window contains no whole step. Choose a larger window."
    ]


def test_without_steps_it_says_what_to_do() -> None:
    steps = run("steps", TraceBuilder().kernel("gemm", 0, 10).build())
    assert steps.table.to_frame().empty
    assert [note.text for note in steps.notes] == [
        "the trace contains no steps: record with `traceprof record`, or call traceprof.step()"
    ]


def test_a_pattern_is_no_step() -> None:
    builder, at = TraceBuilder(), 0
    for i in range(60):
        # One turn of twelve is slow, and the first as well.
        length = 40 if i in (2, 33) else 10
        builder.kernel(f"k{i % 5}", at, at + length - 1)
        at += length
    result = run("steps", builder.build())
    scalars = result.scalars
    assert (scalars["is_pattern"], scalars["source"]) == (True, "repeating pattern of kernels")
    assert scalars["warmup_count"] == 0
    assert "trend_ns" not in scalars
    assert result.table.to_frame()["excess_ns"].isna().all()
    assert not result.table.to_frame()["is_warmup"].any()
    assert result.notes[0].text.startswith(
        "No step markers found. traceprof detected iterations from the kernel sequence"
    )
    assert set(result.table.to_frame()["duration_ns"]) == {50, 80}


def test_a_trend_is_said() -> None:
    builder, at = TraceBuilder(), 0
    for i in range(20):
        builder.step(at, at + 100 + i, number=i)
        at += 100 + i
    result = run("steps", builder.build())
    assert result.scalars["trend_ns"] == 1.0
    texts = [note_text(note) for note in result.notes[:2]]
    assert texts == [
        "Steps get slower throughout: 102 ns before step 6, 112 ns from there on (+9.8%)",
        "median of the first 3 steps 101 ns, of the last 3 steps 118 ns (+16.8%)",
    ]


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
    # Devices are recorded from the first step to the last.
    builder.kernel("gemm", 0, 1).kernel("gemm", at - 1, at)
    for start, length, kind in work:
        if kind == 2:
            builder.copy("h2d", start, start + length)
        else:
            builder.kernel(["gemm", "ncclDevKernel"][kind], start, start + length, stream=kind)
    trace = builder.build(span=(0, 200))
    table = run("steps", trace).table.to_frame()
    for _, row in table.iterrows():
        window = select(Ranks.of(trace), f"step:{row['step']}").window
        device = run("breakdown", trace.within(window)).table.to_frame().iloc[0]
        assert [row[part] for part in DEVICE_PARTS] == [device[part] for part in DEVICE_PARTS]
    assert np.allclose(table[list(DEVICE_PARTS)].sum(axis=1), table["duration_ns"])


def test_slow_steps_say_what_was_different_of_the_machine() -> None:
    builder = training([20] * 60 + [50] + [20] * 60)
    slow_at = 60 * 20 * MS
    for at in range(0, 121 * 20 * MS, 100 * MS):
        is_slow = slow_at - 50 * MS <= at <= slow_at + 50 * MS
        builder.sample("sm_clock_mhz", at, 345 if is_slow else 1980, source="gpu:0")
        builder.sample("throttled_by_heat", at, float(is_slow), source="gpu:0")
    for count, at in ((9, 0), (10, slow_at + 50 * MS)):
        builder.sample("torch_alloc_retries", at, count, source=f"process:{PROCESS}")
    (found,) = [one for one in findings_of(builder.build()) if one.rule == "slow_steps"]
    clock, tried = found.evidence[1:]
    assert clock == (
        "the GPU clock was 1,816 MHz instead of 1,980 MHz, limited by heat 10.0% of the time"
    )
    assert tried == "in these steps, PyTorch ran out of memory, freed its cache, and retried 1 time"
