"""Signs that calls or the work of graphs are missing: with them nothing is said of idle time."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.builders import TraceBuilder
from traceprof.measures.lost_work import lost_work, missing_work
from traceprof.model.ranks import Ranks
from traceprof.model.trace import Trace
from traceprof.render.formatting import sentences
from traceprof.session.answer import page
from traceprof.session.run import run_of

US, MS = 1_000, 1_000_000
_OF_IDLE = {"idle time", "kernel launches", "CPU work between launches"}


def replays(
    gap_ns: Callable[[int], int],
    *,
    is_launched: Callable[[int], bool] = lambda _: True,
    is_copied: bool = False,
) -> TraceBuilder:
    """Return 12 steps of 10 ms, each one launch of a graph of 20 kernels of 0.3 ms.

    Launch ``number`` has a gap of ``gap_ns(number)`` after its tenth kernel. With ``is_copied``, a
    copy of the graph fills the gap.
    """
    builder = TraceBuilder()
    for number in range(12):
        at, key = number * 10 * MS, 5_000 + number
        builder.step(at, at + 10 * MS, number)
        if is_launched(number):
            builder.api_call("cudaGraphLaunch", at, at + 20 * US, correlation=key)
        now = at + 50 * US
        for node in range(20):
            if node == 10 and gap_ns(number):
                if is_copied:
                    ends = now + gap_ns(number)
                    builder.copy("d2d", now, ends, n_bytes=8, correlation=key)
                    builder._rows["copies"][-1]["graph_node"] = 99
                now += gap_ns(number)
            builder.kernel(f"gemm_{node}", now, now + 300 * US, correlation=key, graph_node=node)
            now += 301 * US
    return builder


def missing(builder: TraceBuilder) -> list[str]:
    return sentences(missing_work(Ranks.of(builder.build())))


def has_verdict_on_idle(trace: Trace) -> bool:
    """Return whether the page has a bottleneck, an idle share, or checks of idle time."""
    verdict = page(run_of(Ranks.of(trace))).verdict
    assert verdict is not None
    found = lost_work(Ranks.of(trace))
    is_known = found is None or found.is_idle_known
    assert is_known or not (_OF_IDLE & {*verdict.fine} or verdict.bound_by or verdict.idle)
    return is_known


def test_a_gap_at_the_same_place_in_each_launch_of_a_graph_is_not_idle_time() -> None:
    builder = replays(lambda _: 2 * MS)
    (text,) = missing(builder)
    assert text.startswith("24.0 ms inside running CUDA graphs have no recorded work")
    assert not has_verdict_on_idle(builder.build())


@pytest.mark.parametrize("gap_ns", [2 * MS, 0])
def test_graphs_without_node_numbers_have_places(gap_ns: int) -> None:
    """A profiler that loses most kernels of a graph records few kernels, far from each other."""
    builder = TraceBuilder()
    for number in range(12):
        at, key = number * 20 * MS, 1000 + number
        builder.step(at, at + 10 * MS, number)
        builder.api_call("cudaGraphLaunch", at, at + 20 * US, correlation=key)
        now = at + 50 * US
        for name in ("memset", "gemm", "memset", "copy"):
            builder.kernel(name, now, now + 3 * US, correlation=key)
            now += 3 * US + gap_ns
    found = missing(builder)
    assert len(found) == (gap_ns > 0)
    assert all(text.startswith("72.0") and "inside running CUDA graphs" in text for text in found)
    assert has_verdict_on_idle(builder.build()) == (not gap_ns)


@pytest.mark.parametrize(
    "builder",
    [
        replays(lambda _: 0),
        replays(lambda number: 2 * MS if number % 3 == 0 else 0),  # not in every launch
        replays(lambda _: 10 * US),  # as short as gaps between kernels are
        replays(lambda _: 2 * MS, is_copied=True),
    ],
)
def test_other_gaps_of_graphs_are(builder: TraceBuilder) -> None:
    assert not missing(builder)
    assert has_verdict_on_idle(builder.build())


def test_graphs_without_launches_between_launched_graphs_lack_calls() -> None:
    builder = replays(lambda _: 0, is_launched=lambda number: number % 3 == 0)
    (text,) = missing(builder)
    assert text.startswith("160 of 240 kernels have no recorded launch call")
    assert not has_verdict_on_idle(builder.build())


def test_what_was_launched_before_the_recording_began_lacks_no_call() -> None:
    builder = replays(lambda _: 0, is_launched=lambda number: number >= 4)
    assert not missing(builder)


def with_versions(builder: TraceBuilder, profiler: int, driver: int = 13_000) -> TraceBuilder:
    return builder.setting("cuda_runtime", str(profiler)).setting("driver.cuda", str(driver))


@pytest.mark.parametrize(("profiler", "is_incomplete"), [(12_010, True), (13_000, False)])
def test_calls_that_end_while_ranges_go_on_if_the_profiler_is_old(
    profiler: int, is_incomplete: bool
) -> None:
    builder = with_versions(replays(lambda _: 0), profiler)
    for number in range(24):  # those of the second half have no call
        builder.range("decode", number * 10 * MS, number * 10 * MS + 5 * MS)
    texts = missing(builder)
    assert bool(texts) is is_incomplete
    assert has_verdict_on_idle(builder.build()) is not is_incomplete
    if is_incomplete:
        assert "12 later ranges have names of ranges that launch work" in texts[0]


def test_ranges_after_the_last_call_that_need_no_gpu_are_no_sign() -> None:
    builder = with_versions(replays(lambda _: 0), 12_010)
    for number in range(24):
        builder.range("write results", number * 10 * MS + 5 * MS, number * 10 * MS + 6 * MS)
    assert not missing(builder)


@pytest.mark.parametrize(("has_copies", "is_incomplete"), [(False, True), (True, False)])
def test_ranges_that_copied_nothing_if_the_profiler_is_old(
    has_copies: bool, is_incomplete: bool
) -> None:
    builder = with_versions(replays(lambda _: 0), 12_010)
    for number in range(12):
        at = number * 10 * MS
        builder.range("copy to gpu", at, at + MS)
        if has_copies:
            builder.copy("h2d", at, at + US, n_bytes=8, launched_ns=(at, at + US), stream=9)
    texts = missing(builder)
    assert [text for text in texts if "named after copies" in text] == texts
    assert bool(texts) is is_incomplete
