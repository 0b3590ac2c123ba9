"""A page that analyzes a small part of a file says so in its first line."""

from __future__ import annotations

import pytest

from tests.builders import TraceBuilder
from traceprof.model.ranks import Ranks
from traceprof.model.trace import Trace, TraceInfo
from traceprof.render.briefing import Briefing, briefing_of
from traceprof.session.answer import page
from traceprof.session.run import run_of

US, MS = 1_000, 1_000_000


def engine(n_unmarked: int) -> Trace:
    """Return 10 marked steps of 1 ms, and then ``n_unmarked`` kernels of 1 ms of other requests."""
    builder = TraceBuilder()
    for i in range(10 + n_unmarked):
        at = i * MS
        if i < 10:
            builder.step(at, at + MS, i)
        builder.kernel(f"gemm_{i}", at + US, at + MS, launched_ns=(at, at + US))
    return builder.build()


def page_of(trace: Trace, window: str | None = None) -> Briefing:
    return briefing_of(page(run_of(Ranks.of(trace)).within(window)))


def test_a_page_on_a_small_part_of_the_kernel_time_says_so_first() -> None:
    first = page_of(engine(90)).notes[0]
    assert first.startswith(
        "traceprof analyzes only 10.0% of the recorded kernel time (9.99 ms of 99.9 ms); "
        "`--window active` covers all of it. Steps 0–9"
    )


@pytest.mark.parametrize(("n_unmarked", "window"), [(3, None), (0, None), (90, "0ms..5ms")])
def test_a_page_on_most_of_it_or_on_a_typed_window_does_not(
    n_unmarked: int, window: str | None
) -> None:
    assert not any("analyzes only" in text for text in page_of(engine(n_unmarked), window).notes)


def test_slow_steps_between_the_others_are_not_left_out() -> None:
    builder, at = TraceBuilder(), 0
    for i in range(12):
        length = (200 if i in (3, 7) else 10) * MS
        builder.step(at, at + length, i)
        builder.kernel("gemm", at + US, at + length, launched_ns=(at, at + US))
        at += length
    assert not any("analyzes only" in text for text in page_of(builder.build()).notes)


@pytest.mark.parametrize(
    ("warning", "is_blamed"),
    [
        ("nsys: Not all CUDA events might have been collected.", True),
        ("12 records were dropped by the profiler", True),
        ("nsys: Not all NVTX events might have been collected.", False),
    ],
)
def test_a_recording_that_lost_gpu_events_excludes_no_problem(
    warning: str, is_blamed: bool
) -> None:
    builder = TraceBuilder()
    for i in range(120):
        builder.kernel(f"gemm_{i}", (i + 1) * MS, (i + 2) * MS, launched_ns=(i * US, i * US + 500))
    briefing = page_of(builder.build(info=TraceInfo(path="t", warnings=(warning,))))
    assert ("memory allocation" not in briefing.fine) is is_blamed
    assert any("may be missing" in text for text in briefing.unknown) is is_blamed
