"""Once, in a few steps, or again and again: each is said only of what occurred so often."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.builders import TraceBuilder
from tests.findings.found import Found, findings_of, in_default_window
from tests.measures.generated_run import Plan, make_ranks_of
from tests.requirements import require
from tests.running import run
from traceprof.measures.steps.costs import one_off_costs
from traceprof.model.ranks import Ranks
from traceprof.model.trace import Trace
from traceprof.render.formatting import note_text
from traceprof.session.answer import page
from traceprof.session.run import Run, open_run, run_of

US = 1_000
MS = 1_000 * US


def with_calls(
    calls: dict[int, int], *, name: str = "cudaMalloc", is_named: bool = True, n: int = 12
) -> Trace:
    """Return turns of 10 ms that compute for 8; ``calls`` says how many calls of 1 ms each has.

    A call keeps the host from launching: so much later the kernel of the turn begins.
    """
    builder, now = TraceBuilder(), 0
    for turn in range(n):
        own = calls.get(turn, 0)
        end = now + 10 * MS + own * MS
        if is_named:
            builder.step(now, end, number=turn)
        at = now + 100 * US
        for _ in range(own):
            builder.api_call(name, at, at + MS)
            at += MS
        # No two alike: without names nothing repeats.
        kernel = "gemm" if is_named else f"gemm{turn * turn % 7}"
        builder.kernel(kernel, at + 50 * US, at + 8_050 * US, launched_ns=(at, at + 10 * US))
        now = end
    return builder.build()


def allocations(of: Trace) -> Found:
    found = findings_of(in_default_window(of))
    return next(own for own in found if own.rule == "allocations")


def said(own: Found) -> str:
    return " ".join((own.title, *own.evidence))


def test_what_every_step_does_is_saved_by_each() -> None:
    own = allocations(with_calls(dict.fromkeys(range(12), 1)))
    assert (own.kind, own.one_time_ns) == ("measured", None)
    assert "in the loop" in said(own)
    assert "1 call to cudaMalloc per step" in said(own)
    assert own.saving_ns == pytest.approx(MS, rel=0.1)


def test_what_half_of_the_steps_do_is_counted_with_these() -> None:
    own = allocations(with_calls(dict.fromkeys(range(2, 12, 2), 2)))
    assert own.kind == "measured"
    # Of 12 steps the first is cut.
    assert "10 calls to cudaMalloc in 5 of 11 steps" in said(own)
    assert own.saving_ns == pytest.approx(10 * MS / 11, rel=0.1)


def test_what_one_step_does_costs_once() -> None:
    own = allocations(with_calls({1: 1}, n=4))
    assert own.kind == "once"
    assert own.one_time_ns == pytest.approx(MS, rel=0.1)
    assert "in the loop" not in said(own)
    assert "1 call to cudaMalloc in 1 of 3 steps" in said(own)


@pytest.mark.parametrize(("n_calls", "kind"), [(2, "once"), (9, "measured")])
def test_one_step_alone_does_not_tell_that_others_do_the_same(n_calls: int, kind: str) -> None:
    builder = TraceBuilder().step(0, 10 * MS, number=7)
    for i in range(9):
        at = MS * i
        builder.kernel("k", at + MS // 2, at + MS, launched_ns=(at, at + US))
        if i < n_calls:
            builder.api_call("cudaFree", at + US, at + MS // 2)
    own = allocations(builder.build(span=(0, 10 * MS)))
    assert own.kind == kind
    assert ("in the loop" in said(own)) == (kind == "measured")
    assert ("cudaFree per step" in said(own)) == (kind == "measured")


def test_without_steps_calls_all_the_time_do_not_cost_once() -> None:
    own = allocations(with_calls(dict.fromkeys(range(12), 1), name="cudaFree", is_named=False))
    assert (own.kind, own.one_time_ns) == ("measured", None)
    # Of the first call devices knew nothing yet.
    assert own.saving_ns == pytest.approx(11 * MS, rel=0.1)


def test_without_steps_memory_that_is_kept_is_allocated_once() -> None:
    own = allocations(with_calls(dict.fromkeys(range(12), 1), is_named=False))
    assert own.kind == "once"
    assert own.one_time_ns == pytest.approx(11 * MS, rel=0.1)
    assert own.action.startswith("Run one pass before you measure")


def capturing(turns: range, *, is_named: bool) -> Trace:
    """Return 6 turns of 10 ms that compute for 2; in some a thread captures launches for 5 ms.

    In between the device waits.
    """
    builder = TraceBuilder()
    for turn in range(6):
        now = 10 * MS * turn
        if is_named:
            builder.step(now, now + 10 * MS, number=turn)
        builder.kernel(f"k{turn * turn % 5}", now + MS, now + 3 * MS, launched_ns=(now, now + US))
        if turn in turns:
            builder.api_call("hipStreamBeginCapture", now + 4 * MS, now + 4 * MS + US)
            for i in range(4):
                at = now + (5 + i) * MS
                builder.api_call("hipLaunchKernel", at, at + US)
            builder.api_call("hipStreamEndCapture", now + 9 * MS - US, now + 9 * MS)
            builder.api_call("hipGraphInstantiate", now + 9 * MS, now + 9 * MS + 500 * US)
    return builder.build(span=(0, 60 * MS))


@pytest.mark.parametrize(("turns", "is_named"), [(range(2, 3), True), (range(6), False)])
def test_graphs_are_captured_once(turns: range, is_named: bool) -> None:
    own = next(
        one for one in findings_of(capturing(turns, is_named=is_named)) if one.rule == "loading"
    )
    assert own.kind == "once"
    assert "Capture of HIP graphs leaves the GPU idle" in own.title
    assert ("1 graph capture" if is_named else "6 graph captures") in said(own)
    assert own.one_time_ns == pytest.approx(len(turns) * 5.5 * MS, rel=0.2)


def test_graphs_that_are_captured_in_every_step_are_of_the_loop() -> None:
    own = findings_of(in_default_window(capturing(range(6), is_named=True)))[0]
    assert (own.rule, own.kind) == ("loading", "measured")
    assert "Capture of HIP graphs in the loop" in own.title
    assert own.saving_ns == pytest.approx(5.5 * MS, rel=0.2)


def test_without_steps_calls_at_the_beginning_cost_once() -> None:
    own = allocations(with_calls({1: 6, 2: 3}, is_named=False))
    assert own.kind == "once"
    assert own.one_time_ns == pytest.approx(9 * MS, rel=0.1)


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        *((own, "Reuse pinned buffers") for own in ("cudaHostAlloc", "cudaMallocHost")),
        *((own, "Reuse pinned buffers") for own in ("cudaHostRegister", "cuMemHostAlloc")),
        *((own, "Keep tensor sizes constant") for own in ("cudaMalloc", "cuMemAlloc_v2")),
    ],
)
def test_pinned_memory_is_to_be_reused(name: str, advice: str) -> None:
    own = allocations(with_calls(dict.fromkeys(range(12), 1), name=name))
    assert own.action.startswith(advice)


def delayed(times: tuple[int, ...], *, ns: int = 90 * MS) -> Ranks:
    """Return 12 steps of four ranks, of which rank 2 is late in some."""
    extra = {(2, "forward", step): ns for step in times}
    return make_ranks_of(Plan(n_ranks=4, n_steps=12, extra_of_step_ns=extra))


def test_a_rank_that_is_late_once_is_to_blame_once() -> None:
    result = run("stragglers", delayed((5,)))
    (first, *others) = result.table.rows()
    assert (first["rank"], first["delays_count"]) == (2, 1)
    assert not any(row["is_straggler"] for row in (first, *others))
    told = " ".join(map(note_text, result.notes))
    assert "rank 2 is late once, in one of " in told
    assert "No single rank causes" not in told


def test_a_rank_that_is_late_twice_is_a_straggler() -> None:
    result = run("stragglers", delayed((3, 8)))
    first = result.table.row(0)
    assert (first["rank"], first["is_straggler"], first["delays_count"]) == (2, True, 2)
    assert "once" not in " ".join(map(note_text, result.notes))


def test_a_rank_with_one_large_delay_and_a_small_one_is_late_once() -> None:
    extra = {(2, "forward", 5): 90 * MS, (2, "forward", 8): 5 * MS}
    result = run("stragglers", make_ranks_of(Plan(n_ranks=4, n_steps=12, extra_of_step_ns=extra)))
    assert result.table.row(0)["delays_count"] == 1
    assert "rank 2 is late once" in " ".join(map(note_text, result.notes))


def test_batches_are_no_model_that_is_loaded() -> None:
    builder = TraceBuilder()
    builder.copy("h2d", 0, 50 * MS, n_bytes=4_000_000_000)
    for turn in range(20):
        at = 60 * MS + turn * 10 * MS
        builder.copy("h2d", at, at + MS, n_bytes=16_000_000)
        builder.kernel("gemm", at + MS, at + 9 * MS)
    costs = one_off_costs(Ranks.of(builder.build()))
    assert costs.select("kind", "total_ns").rows() == [{"kind": "loading", "total_ns": 50 * MS}]


@pytest.mark.parametrize(("n", "label"), [(1, "once"), (3, "periodic")])
def test_evaluations_are_told_as_often_as_they_were(n: int, label: str) -> None:
    builder, now = TraceBuilder(), 0
    for _ in range(n):
        builder.range("validation", now, now + 100 * MS)
        now += 101 * MS
    for number in range(10):
        builder.step(now, now + 10 * MS, number=number)
        builder.kernel("gemm", now + MS, now + 9 * MS, launched_ns=(now, now + US))
        now += 10 * MS
    verdict = page(run_of(Ranks.of(builder.build()))).verdict
    assert verdict is not None
    (told,) = getattr(verdict, label)
    expected = "evaluation 100 ms" if n == 1 else "evaluation: 3 times, 300 ms in total"
    assert note_text(told) == expected


def wild(name: str) -> Run:
    return open_run([Path(require("traces")).parent / "wild" / name])


@pytest.mark.traces
def test_a_straggler_and_what_it_costs_are_of_one_time() -> None:
    opened = open_run([Path(require("traces")) / "kineto" / "torchrec-4ranks-straggler-v100"])
    first = opened.result("findings").table.row(0)
    assert first["rule"] == "straggler"
    assert note_text(first["title"]).endswith(
        "the other ranks wait for rank 2 for 90.0% of step time"
    )
    assert first["title"].values["share"] == pytest.approx(first["saving_ratio"])


@pytest.mark.traces
def test_a_collective_of_a_benchmark_that_one_rank_comes_late_to() -> None:
    """Rank 1 is to blame for all 5.00 s, in one collective of 40."""
    opened = wild("nccltests184")
    told = " ".join(map(note_text, opened.result("stragglers").notes))
    assert "rank 1 is late once, in one of 40 shared collectives" in told
    assert "5.00 s for it (99.2% of the window)" in told
    assert "No single rank" not in told
    first = opened.result("findings").table.row(0)
    assert (first["rule"], first["kind"], first["one_time_ns"]) == ("straggler", "once", 5_000 * MS)
    verdict = page(opened).verdict
    assert verdict is not None
    assert "load balance across ranks" not in verdict.fine


@pytest.mark.traces
def test_pinned_memory_of_every_step_of_a_server() -> None:
    """A cudaHostAlloc of 5.0 ms in every one of 8 steps of 30 ms, before a graph is launched."""
    opened = wild("trtllm16313-prepare.json")
    first = opened.result("findings").table.row(0)
    assert (first["rule"], first["kind"]) == ("allocations", "measured")
    assert first["saving_ns"] == pytest.approx(5 * MS, rel=0.1)
    assert first["action"].startswith("Reuse pinned buffers")
    assert "1 call to cudaHostAlloc per step" in " ".join(map(note_text, first["evidence"]))
    steps = opened.result("steps")
    assert steps.scalars["median_ns"] == 30 * MS
    verdict = page(opened).verdict
    assert verdict is not None
    assert not verdict.once


@pytest.mark.parametrize(("every", "is_told"), [(1, True), (4, False)])
def test_advice_on_waits_names_every_step_where_every_step_waits(every: int, is_told: bool) -> None:
    builder = TraceBuilder().range("aten::mm", 0, 1)
    for turn in range(24):
        now = turn * 10 * MS
        builder.step(now, now + 10 * MS, number=turn)
        ends = now + (6 if turn % every == 0 else 9) * MS
        builder.kernel("gemm", now + 100 * US, ends, launched_ns=(now, now + 10 * US))
        if turn % every == 0:
            builder.api_call("cudaDeviceSynchronize", now + 20 * US, ends)
    waits = next(own for own in findings_of(builder.build()) if own.rule == "host_sync")
    assert ("in every step" in waits.action) is is_told
    assert ("of 23 steps" in said(waits)) is not is_told  # the first is cut


@pytest.mark.parametrize(("n", "kind"), [(1, "once"), (2, "once"), (6, "bounded")])
def test_long_gaps_cost_once_unless_they_come_again_and_again(n: int, kind: str) -> None:
    builder, now = TraceBuilder().api_call("cudaFree", 0, 1), 0
    for _ in range(n + 1):
        builder.kernel("gemm", now, now + 100 * MS)
        now += 1_000 * MS
    (gaps,) = [own for own in findings_of(builder.build()) if own.rule == "gpu_gaps"]
    assert gaps.kind == kind
    cost_ns = gaps.one_time_ns if kind == "once" else gaps.saving_ns
    assert cost_ns == pytest.approx(n * 900 * MS, rel=0.01)


@pytest.mark.parametrize(("slow", "n_slow"), [("first", 4), ("later", 0), ("every", 0)])
def test_kernels_are_loaded_with_their_first_launch(slow: str, n_slow: int) -> None:
    """Four kernels are launched ten times each; some of the launches take 2 ms, the others 5 µs."""
    builder, now = TraceBuilder(), 0
    for turn in range(10):
        for i in range(4):
            is_slow = {"first": turn == 0, "later": turn == 5, "every": True}[slow]
            took = 2 * MS if is_slow else 5 * US
            builder.kernel(
                f"k{i * turn % 3}x{i}" if slow == "every" else f"k{i}",
                now + took,
                now + took + 50 * US,
                launched_ns=(now, now + took),
            )
            now += took + 60 * US
    found = [
        own
        for own in findings_of(builder.build())
        if "Kernel loading at first launches" in own.title
    ]
    assert len(found) == bool(n_slow)
    for own in found:
        assert (own.kind, own.evidence) == ("once", (f"{n_slow} calls to cudaLaunchKernel",))
        assert own.one_time_ns == pytest.approx(4 * 2 * MS, rel=0.05)
