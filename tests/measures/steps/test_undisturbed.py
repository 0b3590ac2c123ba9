"""Steps that were not profiled, and what profiling did to the others."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.builders import TraceBuilder
from traceprof.measures.steps.undisturbed import disturbances
from traceprof.model.ranks import Ranks
from traceprof.model.timing import TRACEPROF_DOMAIN
from traceprof.model.trace import Trace
from traceprof.render.formatting import note_text
from traceprof.session.answer import Document, page
from traceprof.session.run import open_run, run_of

US = 1_000
KERNELS = 100
N_STEPS, FIRST, LAST = 30, 3, 10


def recorded_in_part(
    plain_us: int, added_us: int, kernel_us: int, *, long_us: int = 0, has_window: bool = True
) -> Trace:
    """Return 30 steps of which a profiler recorded 8, in which each launch takes longer.

    The device waits ``plain_us`` for each launch, and once in a step ``long_us`` for other code.
    """
    builder, now = TraceBuilder(), 0
    borders = []
    for number in range(N_STEPS):
        is_recorded = FIRST <= number <= LAST
        begin = now
        for place in range(KERNELS):
            now += (long_us if place == KERNELS // 2 else 0) * US
            now += (plain_us + (added_us if is_recorded else 0)) * US
            if is_recorded:
                launched = (now - 2 * US, now - US)
                builder.kernel("gemm", now, now + kernel_us * US, launched_ns=launched)
            now += kernel_us * US
        builder.step(begin, now, number).batch(begin, 5)
        borders.append((begin, now))
    if has_window:
        start, end = borders[FIRST][0], borders[LAST][1]
        builder.range("traceprof.window", start, end, domain=TRACEPROF_DOMAIN, thread=2)
    return builder.build()


def page_of(trace: Trace) -> Document:
    return page(run_of(Ranks.of(trace)))


def said(document: Document) -> str:
    assert document.verdict is not None
    return " ".join(map(note_text, document.verdict.sentences))


_OF_PROFILING = {"unprofiled_count", "profiled_ns", "profiler_overhead_ratio"}


def assert_idle_adds_up(document: Document) -> None:
    """The causes of idle time are shares of the same step as the parts; 1% may be left out."""
    assert document.verdict is not None
    idle, parts = document.verdict.idle, document.verdict.parts
    assert parts["idle"] - 0.01 <= sum(idle.values()) <= parts["idle"] + 1e-9
    assert sum(parts.values()) == pytest.approx(1)


@pytest.mark.parametrize("has_window", [True, False])
def test_what_recording_adds_is_measured_and_taken_out(has_window: bool) -> None:
    # 100 kernels of 100 µs with gaps of 1 µs; of 46 µs while each launch is recorded.
    trace = recorded_in_part(1, 45, 100, has_window=has_window)
    (own,) = disturbances(trace).values()
    assert (own.period_ns, own.excess_ns) == (10_100 * US, 4_500 * US)
    document = page_of(trace)
    scalars = document.results["steps"].scalars
    assert scalars["profiler_overhead_ratio"] == pytest.approx(4_500 / 10_100)
    assert scalars["profiler_overhead_per_launch_ns"] == pytest.approx(45 * US)
    assert (scalars["base"], scalars["base_ns"], scalars["step_ns"]) == ("step", *[10_100 * US] * 2)
    assert scalars["profiled_ns"] == 14_600 * US
    # 19 steps come after the window; the last has no next one, and of the others the first half
    # is left out, in which the host runs ahead.
    assert (scalars["unprofiled_count"], scalars["steady_count"]) == (9, 9)
    assert scalars["usual_count"] == LAST - FIRST + 1
    assert document.verdict is not None
    assert document.verdict.bound_by == "GPU-bound"
    assert document.verdict.parts["compute"] == pytest.approx(100 / 101)
    assert sum(document.verdict.parts.values()) == pytest.approx(1)
    assert "GPU time per step of 10.1 ms: compute 99.0%" in said(document)
    words = "takes 1.45× as long (45.0 µs more per launch); the overhead is subtracted"
    assert words in said(document)
    assert document.results["findings"].table.empty
    assert "profiler overhead" not in document.verdict.fine


def test_the_table_of_steps_tells_the_throughput_of_the_page() -> None:
    document = page_of(recorded_in_part(1, 45, 100))
    (told,) = (
        note_text(note)
        for note in document.results["steps"].notes
        if note.text.startswith("Throughput")
    )
    # Steps of 10.1 ms, of 14.6 ms while they are recorded.
    assert told == "Throughput: 495 samples/s (unprofiled steps)"
    assert "Step time 10.1 ms (99 steps/s, 495 samples/s): mean of 9 unprof" in said(document)
    scalars = document.results["steps"].scalars
    assert scalars["samples_per_s"] == pytest.approx(5 * scalars["steps_per_s"])


def test_a_finding_saves_at_most_what_undisturbed_steps_allow() -> None:
    # Undisturbed: 100 × 50 µs of kernels, 100 × 20 µs of launching, 2 ms of other code.
    document = page_of(recorded_in_part(20, 30, 50, long_us=2_000))
    table = document.results["findings"].table
    saved = dict(zip(table["rule"].tolist(), table["saving_ns"].tolist(), strict=True))
    assert saved["launch_bound"] == pytest.approx(2_000 * US, rel=0.02)
    assert saved["host_code"] == pytest.approx(2_000 * US, rel=0.03)
    assert "profiler_overhead" not in saved


def test_steps_that_take_as_long_change_nothing() -> None:
    document = page_of(recorded_in_part(20, 0, 50))
    scalars = document.results["steps"].scalars
    assert scalars["profiler_overhead_ratio"] == 0
    assert scalars["profiled_ns"] == scalars["step_ns"] == 7_000 * US
    assert "Profiling adds less than 2%." in said(document)
    assert_idle_adds_up(document)


def test_what_no_launch_explains_is_taken_out_of_the_idle_time() -> None:
    # The loader, too, takes longer while it is recorded: no launch has to do with that.
    builder, now = TraceBuilder(), 0
    for number in range(N_STEPS):
        begin, is_recorded = now, FIRST <= number <= LAST
        data_end = now + (6_000 if is_recorded else 3_000) * US
        builder.phase("data", now, data_end)
        now = data_end + 7_000 * US
        if is_recorded:
            launched = (data_end, data_end + US)
            builder.kernel("gemm", data_end + US, now, launched_ns=launched)
        builder.step(begin, now, number)
    document = page_of(builder.build())
    assert document.verdict is not None
    assert document.results["steps"].scalars["profiler_overhead_ratio"] == pytest.approx(0.3)
    assert "GPU time per step of 10.0 ms: compute 70.0%, idle 30.0%." in said(document)
    # The loader of a step that is not profiled takes 3 ms.
    assert document.verdict.idle == pytest.approx({"data": 0.3}, abs=0.001)
    assert_idle_adds_up(document)


def test_of_a_host_that_runs_ahead_nothing_is_concluded() -> None:
    builder, now = TraceBuilder(), 0
    for number in range(N_STEPS):
        begin, is_recorded = now, FIRST <= number <= LAST
        if is_recorded:
            builder.kernel("gemm", now + US, now + 1_000 * US, launched_ns=(now, now + US))
        now += (1_000 if is_recorded else 300) * US
        builder.step(begin, now, number)
    assert not disturbances(builder.build())


def test_without_undisturbed_steps_nothing_changes() -> None:
    builder, now = TraceBuilder(), 0
    for number in range(12):
        builder.kernel("gemm", now + US, now + 500 * US, launched_ns=(now, now + US))
        builder.step(now, now + 1_000 * US, number)
        now += 1_000 * US
    assert not disturbances(builder.build())
    document = page_of(builder.build())
    assert not _OF_PROFILING & {*document.results["steps"].scalars}
    assert "rofiled" not in said(document)


def test_gpt_on_an_h100_is_what_its_undisturbed_steps_are(
    real_trace: Callable[[str], Path],
) -> None:
    document = page(open_run([real_trace("h100/gpt-embedded.sqlite.gz")]))
    assert document.verdict is not None
    assert document.verdict.bound_by == "GPU-bound"
    scalars = document.results["steps"].scalars
    for name in ("step_ns", "base_ns", "median_ns", "p10_ns", "p90_ns"):
        assert 10.9e6 <= scalars[name] <= 11.7e6
    assert scalars["step_ns"] == scalars["base_ns"] == scalars["mean_ns"]
    assert scalars["profiled_ns"] > 1.3 * scalars["step_ns"]
    assert 1.35 <= 1 + scalars["profiler_overhead_ratio"] <= 1.45
    table = document.results["findings"].table
    assert_idle_adds_up(document)
    assert set(table["base"]) <= {"a step", "the mean step with slow steps"}
    idle_ns = document.verdict.parts["idle"] * scalars["step_ns"]
    for rule, ns in zip(table["rule"].tolist(), table["saving_ns"].tolist(), strict=True):
        assert rule not in ("launch_bound", "host_code") or ns <= idle_ns
    assert "profiler overhead" not in document.verdict.fine
    cases = open_run([real_trace("h100/gpt-embedded.sqlite.gz")]).result("whatif").table
    assert (cases["gain_ns"] <= idle_ns).all()


def test_graphs_on_an_h100_whose_host_runs_ahead(real_trace: Callable[[str], Path]) -> None:
    scalars = open_run([real_trace("h100/graphs-embedded.sqlite.gz")]).result("steps").scalars
    assert not _OF_PROFILING & {*scalars}
    for name in ("step_ns", "median_ns"):
        assert 8.0e6 <= scalars[name] <= 8.5e6
