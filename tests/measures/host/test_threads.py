"""Threads in the background: their work ends no step, is of no phase and disturbs no pattern."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tests.builders import THREAD, TraceBuilder, plain
from tests.running import run
from traceprof.comparison.explaining import explain
from traceprof.measures.host.phases import phases_of_work
from traceprof.measures.steps.find import find_pattern, find_steps
from traceprof.model.ranks import Ranks
from traceprof.model.trace import Trace
from traceprof.names.ranges import PHASES
from traceprof.session.run import run_of

US = 1_000
MS = 1_000 * US
PERIOD = 10 * MS
OTHER = 50
COMPUTE, OWN = 7, 30
N_STEPS = 12
Extra = Callable[[TraceBuilder, int, int], object]


def loop(extra: Extra, *, is_named: bool = True, n_steps: int = N_STEPS) -> Trace:
    """Return steps of 10 ms: eight kernels of 1 ms, launched one after the other, from 0.1 ms."""
    builder = TraceBuilder()
    for step in range(n_steps):
        at = step * PERIOD
        if is_named:
            builder.step(at, at + PERIOD, number=step)
        for i in range(8):
            called = at + 100 * US + i * MS
            builder.kernel(
                f"gemm{i}", called + 10 * US, called + MS, launched_ns=(called, called + 5 * US)
            )
        extra(builder, step, at)
    return builder.build()


def lengths(trace: Trace) -> list[int]:
    return run("steps", trace).table.to_frame()["duration_ns"].tolist()[1:]


def late(builder: TraceBuilder, at: int, n: int, *, stream: int = OWN, thread: int = OTHER) -> None:
    """Launch kernels in the step that end up to 4 ms after it."""
    for i in range(3):
        called = at + (2 + 2 * i) * MS + (n * 777 + i * 311) % 900 * US
        end = at + PERIOD + n % 5 * MS if i == 2 else called + MS
        builder.kernel(
            "flip",
            called + 9 * US,
            end,
            launched_ns=(called, called + 4 * US),
            thread=thread,
            stream=stream,
        )


EVEN = [PERIOD] * (N_STEPS - 1)


@pytest.mark.parametrize("stream", [OWN, COMPUTE], ids=["a stream of its own", "the same stream"])
def test_what_a_loader_launches_from_another_thread_ends_no_step(stream: int) -> None:
    def load(builder: TraceBuilder, n: int, at: int) -> None:
        late(builder, at, n, stream=stream)

    assert lengths(loop(load)) == EVEN
    # The same from the thread of the loop is work of the step.
    assert lengths(loop(lambda b, n, at: late(b, at, n, thread=THREAD))) != EVEN


def test_copies_of_a_loader_end_no_step() -> None:
    def load(builder: TraceBuilder, n: int, at: int) -> None:
        called = at + 5 * MS + n % 3 * MS
        builder.copy(
            "h2d",
            called + US,
            at + PERIOD + n % 4 * MS,
            launched_ns=(called, called + US),
            thread=OTHER,
            stream=OWN,
        )

    assert lengths(loop(load)) == EVEN


def backward(builder: TraceBuilder, at: int, n: int, stream: int = COMPUTE) -> None:
    """Launch eight kernels, one after the other, once the loop's last call has returned."""
    for i in range(8):
        called = at + (7_500 + i * 50) * US
        end = at + (8_200 + (i + 1) * (100 + n % 5 * 30)) * US
        builder.kernel(
            "dgrad",
            end - 90 * US,
            end,
            launched_ns=(called, called + 4 * US),
            thread=OTHER,
            stream=stream,
        )


def ends(n: int) -> int:
    """Return when a step ends with what `backward` launched in it."""
    return n * PERIOD + (8_200 + 8 * (100 + n % 5 * 30)) * US


def test_a_thread_that_takes_turns_with_the_loop_works_for_it() -> None:
    trace = loop(lambda b, n, at: backward(b, at, n))
    assert find_steps(trace).table["device_end_ns"].tolist() == [ends(n) for n in range(N_STEPS)]


@pytest.mark.parametrize("named", ["thread", "operator", "range"])
def test_a_thread_that_is_named_works_for_the_loop_on_any_stream(named: str) -> None:
    def work(builder: TraceBuilder, n: int, at: int) -> None:
        backward(builder, at, n, OWN)
        if named == "thread" and not n:
            builder.thread_name(OTHER, "pt_autograd_0")
        if named == "operator":
            op = "autograd::engine::evaluate_function: MmBackward0"
            builder.host_op(op, at + 7 * MS, at + 9 * MS, thread=OTHER)
        if named == "range":
            builder.range("backward", at + 7 * MS, at + 9 * MS, thread=OTHER)

    found = find_steps(loop(work)).table["device_end_ns"]
    assert found.tolist() == [ends(n) for n in range(N_STEPS)]


@pytest.mark.parametrize("named", ["range", "thread"])
def test_a_thread_that_says_that_it_loads_does_not_work_for_the_loop(named: str) -> None:
    def load(builder: TraceBuilder, n: int, at: int) -> None:
        backward(builder, at, n)
        if named == "range":
            builder.range("load batch", at + 7 * MS, at + 9 * MS, thread=OTHER)
        elif not n:
            builder.thread_name(OTHER, "DALI_WorkerThread_0")

    found = find_steps(loop(load)).table["device_end_ns"]
    assert found.tolist() == [n * PERIOD + 8_100 * US for n in range(N_STEPS)]


def test_collectives_are_the_steps_whoever_launches_them() -> None:
    def reduce(builder: TraceBuilder, n: int, at: int) -> None:
        called = at + 3 * MS
        builder.kernel(
            "ncclDevKernel_AllReduce",
            at + 8 * MS,
            at + (9_000 + n) * US,
            launched_ns=(called, called + US),
            thread=OTHER,
            stream=OWN,
        )

    found = find_steps(loop(reduce)).table["device_end_ns"]
    assert found.tolist() == [n * PERIOD + (9_000 + n) * US for n in range(N_STEPS)]


def test_where_the_loop_launches_hardly_anything_all_threads_work_for_it() -> None:
    builder = TraceBuilder()
    for n in range(N_STEPS):
        at = n * PERIOD
        builder.step(at, at + PERIOD, number=n)
        builder.copy("h2d", at + US, at + 2 * US, launched_ns=(at, at + US), stream=OWN)
        backward(builder, at, n)
    found = find_steps(builder.build()).table["device_end_ns"]
    assert found.tolist() == [ends(n) for n in range(N_STEPS)]


@pytest.mark.parametrize("stream", [OWN, COMPUTE])
def test_a_loader_hides_no_pattern(stream: int) -> None:
    """It launches more kernels than the loop, and never in the same order."""
    random = np.random.default_rng(1)

    def load(builder: TraceBuilder, n: int, at: int) -> None:
        for i in range(16):
            called = at + 150 * US + i * 480 * US + int(random.integers(400)) * US
            name = f"decode{random.integers(5)}"
            builder.kernel(
                name,
                called + 9 * US,
                called + 20 * US,
                launched_ns=(called, called + 4 * US),
                thread=OTHER,
                stream=stream,
            )

    trace = loop(load, is_named=False, n_steps=30)
    assert not len(find_steps(trace).table)
    pattern = find_pattern(trace)
    assert set(pattern.durations_ns.tolist()) == {PERIOD}
    assert len(pattern) >= 28


def test_kernels_of_a_step_are_counted_by_launch() -> None:
    """Of the next batch's copies and flips some run in this step, some in the next."""

    def load(builder: TraceBuilder, n: int, at: int) -> None:
        for i in range(4):
            called = at + (2 + i) * MS
            start = at + (5 + i + n % 7) * MS
            builder.kernel(
                "flip",
                start,
                start + 500 * US,
                launched_ns=(called, called + US),
                thread=OTHER,
                stream=OWN,
            )

    result = explain(run_of(Ranks.of(loop(load))), "step:8", "step:6").results["explain"]
    causes = result.table.take(result.table["kind"] == "kernel")
    counts = plain(causes, "name", "explained_count", "reference_count")
    assert {("flip", 4, 4)} == {own for own in counts if own[0] == "flip"}
    assert {own[1:] for own in counts if own[0] != "flip"} == {(1, 1)}


def test_the_first_step_counts_what_was_launched_in_it() -> None:
    trace = loop(lambda *_: None)
    causes = explain(run_of(Ranks.of(trace)), "step:0").results["explain"].table
    kernels = causes.take(causes["kind"] == "kernel")
    assert set(plain(kernels, "explained_count", "reference_count")) == {(1, 1)}


def test_work_in_the_background_is_of_no_phase() -> None:
    def work(builder: TraceBuilder, n: int, at: int) -> None:
        builder.phase("forward", at, at + 7 * MS)
        builder.phase("backward", at + 7_200 * US, at + 9 * MS)
        backward(builder, at, n)
        late(builder, at, n, thread=OTHER + 1)

    trace = loop(work)
    phases = phases_of_work(trace, "kernels")
    names = trace.kernels["name"]
    assert set(phases[names == "dgrad"]) == {PHASES.index("backward")}
    assert set(phases[names == "flip"]) == {-1}
