"""What was computed of a Trace is kept as long as that very Trace."""

from __future__ import annotations

import gc
import weakref

from tests.builders import TraceBuilder
from traceprof.facts.cache import remembered
from traceprof.model.trace import Trace
from traceprof.model.window import TimeWindow


def test_a_function_runs_once_for_each_trace_and_argument() -> None:
    asked: list[tuple[int, str]] = []

    @remembered
    def count(trace: Trace, name: str, factor: int = 1) -> int:
        asked.append((len(trace.kernels), name))
        return len(trace.kernels) * factor

    trace = TraceBuilder().kernel("a", 0, 10).kernel("b", 20, 30).build()
    part = trace.within(TimeWindow(0, 15))
    assert [count(trace, "x"), count(trace, "x"), count(part, "x"), count(trace, "y")] == [
        2,
        2,
        1,
        2,
    ]
    assert count(trace, "x", factor=3) == 6
    assert asked == [(2, "x"), (1, "x"), (2, "y"), (2, "x")]


def test_two_functions_do_not_share_what_they_remember() -> None:
    trace = TraceBuilder().kernel("a", 0, 10).build()
    first = remembered(lambda t: len(t.kernels))
    second = remembered(lambda t: len(t.copies))
    assert (first(trace), second(trace)) == (1, 0)


def test_what_is_remembered_goes_with_the_trace() -> None:
    class Answer:
        """Something that can be watched."""

    answer = remembered(lambda _: Answer())
    trace = TraceBuilder().kernel("a", 0, 10).build()
    watched = weakref.ref(answer(trace))
    gc.collect()
    assert watched() is answer(trace)
    del trace
    gc.collect()
    assert watched() is None
