"""Slow steps name the work that explains them, and do not blame work that does not."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.builders import TraceBuilder
from tests.findings.found import Found, findings_of, in_default_window
from tests.running import run
from traceprof.model.trace import Trace

MS, US = 1_000_000, 1_000
SLOW = (7, 12)
ALLOCATION, RANKS, CPU = (
    "memory allocation",
    "load balance across ranks",
    "CPU work between launches",
)
Pause = Callable[[TraceBuilder, int, int], None]
"""Adds the host activity of a process from a time, for 300 ms, to a builder."""


def calls(name: str) -> Pause:
    def add(builder: TraceBuilder, process: int, at: int) -> None:
        builder.api_call(name, at, at + 300 * MS, process=process, thread=process)

    return add


def in_range(name: str) -> Pause:
    def add(builder: TraceBuilder, process: int, at: int) -> None:
        builder.range(name, at, at + 300 * MS, process=process, thread=process)

    return add


def nothing(builder: TraceBuilder, process: int, at: int) -> None:
    pass


def loop(pause: Pause, *, late: tuple[int, ...] = (1,), slow: tuple[int, ...] = SLOW) -> Trace:
    """20 steps of 2 ranks: each computes for 40 ms, and they all-reduce for 5 ms.

    In ``slow`` steps, the ranks ``late`` pause for 300 ms before they launch the compute kernel.
    """
    builder, now = TraceBuilder(), 0
    for number in range(20):
        pauses = 300 * MS if number in slow else 0
        ends = now + pauses + 50 * MS
        for rank in (0, 1):
            place = {"process": rank + 1, "device": rank}
            on_host = {"process": rank + 1, "thread": rank + 1}
            builder.step(now, ends, number, **on_host)
            at = now + MS
            if pauses and rank in late:
                pause(builder, rank + 1, at)
                at += pauses
            builder.kernel(
                "gemm", at + MS, at + 41 * MS, launched_ns=(at, at + US), thread=rank + 1, **place
            )
            builder.kernel(
                "ncclDevKernel_AllReduce_Sum_f32_RING_LL",
                at + 41 * MS,
                ends - MS,
                launched_ns=(at + 2 * US, at + 3 * US),
                thread=rank + 1,
                **place,
            )
        now = ends
    for rank in (0, 1):
        builder.process(rank + 1, rank=rank).device(rank, "NVIDIA H100")
    return builder.build()


def alone(pause: Pause, *, busy: bool = False) -> Trace:
    """20 steps of one rank; each computes for 40 ms.

    In two steps, the host pauses for 300 ms before it launches the kernel. If ``busy``, the kernel
    was launched before the pause and runs as long as the pause.
    """
    builder, now = TraceBuilder(), 0
    for number in range(20):
        pauses = 300 * MS if number in SLOW else 0
        ends = now + pauses + 50 * MS
        builder.step(now, ends, number)
        at = now + 100 * US
        called = at if busy else at + pauses
        if pauses:
            pause(builder, 1, at + (2 * US if busy else 0))
        builder.kernel("gemm", called + 10 * US, ends - 100 * US, launched_ns=(called, called + US))
        now = ends
    return builder.build()


def slow_steps(trace: Trace) -> tuple[Found, set[str]]:
    """Return the finding on slow steps, and the subjects without a problem, also of few kernels."""
    ranks = in_default_window(trace)
    (found,) = [one for one in findings_of(ranks) if one.rule == "slow_steps"]
    checked = run("findings", ranks).to_frame("checked")
    return found, set(checked[checked["is_fine"] | (checked["lacks"] != "")]["subject"])


def test_a_rank_in_cuda_free_explains_slow_steps() -> None:
    found, fine = slow_steps(loop(calls("cudaFree")))
    assert found.title.endswith(", mostly due to memory allocation (cudaFree) on rank 1")
    assert found.evidence == tuple(
        f"step {step}: slower by 300 ms, exposed communication +300 ms; rank 1 is 300 ms "
        "late at a collective: the CPU is in cudaFree while the GPU is idle (+300 ms)"
        for step in SLOW
    )
    assert "`PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True`" in found.action
    assert not {ALLOCATION, RANKS} & fine


def test_a_rank_that_is_late_for_an_unknown_reason_does_not_blame_allocation() -> None:
    found, fine = slow_steps(loop(nothing))
    assert "mostly" not in found.title
    assert all(text.endswith("rank 1 is 300 ms late at a collective") for text in found.evidence)
    assert "Common causes" in found.action
    assert ALLOCATION in fine
    assert RANKS not in fine


def test_ranks_that_all_free_memory_are_not_late() -> None:
    found, fine = slow_steps(loop(calls("cudaFree"), late=(0, 1)))
    assert found.title.endswith(", mostly due to memory allocation (cudaFree)")
    assert RANKS in fine
    assert ALLOCATION not in fine


@pytest.mark.parametrize(
    ("pause", "title", "action", "blamed"),
    [
        (
            calls("cudaMalloc"),
            "memory allocation (cudaMalloc)",
            "expandable_segments:True",
            ALLOCATION,
        ),
        (calls("cudaHostAlloc"), "memory allocation (cudaHostAlloc)", "pinned", ALLOCATION),
        (calls("cudaStreamCreate"), f"{CPU} (cudaStreamCreate)", "before the loop", CPU),
        (in_range("gather_metrics"), f"{CPU} (gather_metrics)", "longer in gather_metrics", CPU),
        (
            calls("cudaStreamSynchronize"),
            "host synchronization (cudaStreamSynchronize)",
            "Remove the synchronizing calls",
            "host synchronization",
        ),
    ],
)
def test_recorded_work_of_the_host_is_named(
    pause: Pause, title: str, action: str, blamed: str
) -> None:
    found, fine = slow_steps(alone(pause))
    assert found.title.endswith(f", mostly due to {title}")
    assert found.evidence[0].endswith(" while the GPU is idle (+300 ms)")
    assert action in found.action
    assert blamed not in fine


def test_a_pause_without_recorded_work_stays_general() -> None:
    found, fine = slow_steps(alone(nothing))
    assert "mostly" not in found.title
    assert found.evidence == tuple(f"step {n}: slower by 300 ms, idle +300 ms" for n in SLOW)
    assert "Common causes" in found.action
    assert {ALLOCATION, CPU} <= fine


def test_a_range_around_the_loop_explains_nothing() -> None:
    def in_loop(builder: TraceBuilder, process: int, at: int) -> None:
        if at < 7 * 60 * MS:
            builder.range("train epoch 1", 0, 2000 * MS)

    found, _ = slow_steps(alone(in_loop))
    assert "mostly" not in found.title
    assert "epoch" not in found.evidence[0]


def test_calls_while_the_gpu_computes_explain_nothing() -> None:
    found, fine = slow_steps(alone(calls("cudaFree"), busy=True))
    assert found.title.endswith(", mostly due to compute (gemm)")
    assert found.evidence[0].endswith("compute +300 ms; gemm (+300 ms)")
    assert ALLOCATION in fine


@pytest.mark.parametrize("is_compute", [True, False])
def test_many_names_that_each_take_a_little_longer_are_not_named(is_compute: bool) -> None:
    builder, now = TraceBuilder(), 0
    for number in range(20):
        usual = 2 * MS if is_compute else 100 * US
        each = 20 * MS if number in SLOW else usual
        builder.step(now, now + 20 * each + (0 if is_compute else 40 * MS), number)
        for i in range(20):
            at = now + i * each
            called = (at, at + US) if is_compute else (at + each - 2 * US, at + each - US)
            if is_compute:
                builder.kernel(f"gemm_{i}", at + US, at + each, launched_ns=called)
                continue
            builder.host_op(f"aten::op{i}", at, at + each - 3 * US)
            builder.kernel(f"gemm_{i}", at + each - US, at + each, launched_ns=called)
        now += 20 * each
        if not is_compute:
            builder.kernel("gemm", now, now + 40 * MS, launched_ns=(now - 2 * US, now - US))
            now += 40 * MS
    found, _ = slow_steps(builder.build())
    assert found.title.endswith(", mostly due to compute" if is_compute else "of all steps")
    assert ("Compare the kernels" in found.action) == is_compute
    assert not any("aten::" in text or "gemm" in text for text in found.evidence)


def test_the_title_names_no_cause_of_the_smaller_part() -> None:
    builder, now = TraceBuilder(), 0
    for number in range(30):
        pauses = {3: 310, **dict.fromkeys((7, 11, 15), 300)}.get(number, 0) * MS
        builder.step(now, now + pauses + 50 * MS, number)
        if number == 3:
            builder.api_call("cudaFree", now + MS, now + MS + pauses)
        called = now + MS + pauses
        builder.kernel("gemm", called + MS, called + 48 * MS, launched_ns=(called, called + US))
        now += pauses + 50 * MS
    found, fine = slow_steps(builder.build())
    assert "mostly" not in found.title
    assert "cudaFree" in found.evidence[0]
    assert "Common causes" in found.action
    assert ALLOCATION not in fine
