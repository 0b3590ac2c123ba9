"""Time in ranges: which range takes it, how often, and whether its duration changes for good."""

from __future__ import annotations

import numpy as np
import pytest

from tests.builders import TraceBuilder
from tests.reading import rows
from tests.running import run
from traceprof.model.ranks import Ranks
from traceprof.model.trace import Trace
from traceprof.render.briefing import Briefing, briefing_of
from traceprof.session.answer import page
from traceprof.session.run import run_of


def loop(lengths: list[int]) -> Trace:
    """Return frames of 1,000 ns: decode (varies), filter (200 ns in decode), and a pause."""
    builder = TraceBuilder()
    for number, length in enumerate(lengths):
        start = number * 1_000
        builder.range(f"frame #{number}", start, start + 950)
        builder.range("decode", start, start + length).range("filter", start, start + 200)
        builder.range("load", start, start + 400, thread=2)
    return builder.build(recorded={"ranges"}, span=(0, 1_000 * len(lengths)))


def page_of(trace: Trace) -> Briefing:
    return briefing_of(page(run_of(Ranks.of(trace))))


def test_self_times_of_a_thread_add_up_to_the_time_in_ranges() -> None:
    table = run("range-times", loop([600] * 12)).table
    found = {(row["thread"], row["name"]): row for row in table.rows()}
    decode, outer = found[1, "decode"], found[1, "frame"]
    assert (decode["count"], decode["self_ns"], decode["total_ns"]) == (12, 4_800, 7_200)
    assert (outer["self_ns"], outer["total_ns"]) == (4_200, 11_400)
    assert (decode["share_ratio"], decode["total_ratio"]) == (0.4, 0.6)
    assert found[2, "load"]["share_ratio"] == 0.4
    assert sum(row["self_ns"] for (thread, _), row in found.items() if thread == 1) == 11_400
    assert np.isnan(decode["change_at_ns"])


def test_recursion_counts_once() -> None:
    trace = TraceBuilder().range("walk", 0, 100).range("walk", 10, 60).build()
    (walk,) = rows(run("range-times", trace))
    assert (walk.count, walk.self_ns, walk.total_ns, walk.max_ns) == (2, 100, 100, 100)
    assert page_of(trace).made_of == (
        "Range walk: 2 times (nested), 100 ns in total, mean 75 ns (50–100 ns)",
    )


@pytest.mark.parametrize(("before", "after", "sign"), [(400, 600, "+50.0%"), (600, 450, "−25.0%")])
def test_a_lasting_change_has_a_time_and_two_medians(before: int, after: int, sign: str) -> None:
    trace = loop([before] * 12 + [after] * 12)
    found = {row.name: row for row in rows(run("range-times", trace))}
    decode = found["decode"]
    assert (decode.change_at_ns, decode.before_ns, decode.after_ns) == (12_000, before, after)
    assert found["filter"].change_at_ns is None
    assert any(
        text.startswith("Range decode: 24 times") and f"after it ({sign})" in text
        for text in page_of(trace).made_of
    )


def test_a_change_that_does_not_last_is_none() -> None:
    for lengths in ([400, 600] * 12, [400] * 9 + [600] * 6 + [400] * 9, [400] * 7 + [600] * 2):
        found = {row.name: row for row in rows(run("range-times", loop(lengths)))}
        assert found["decode"].change_at_ns is None


def test_the_page_of_a_trace_with_only_ranges_says_where_the_time_goes() -> None:
    briefing = page_of(loop([600] * 12))
    assert briefing.answer == (
        "CPU time in the window by range: decode 40.0%, frame 35.0%, filter 20.0%, outside of "
        "ranges 5.0%."
    )
    assert briefing.made_of[0] == (
        "Range decode: 12 times, 7.20 µs in total, mean 600 ns; no lasting change of the duration"
    )
    assert "show ranges --by time" in briefing.next_command


def test_the_shares_of_several_processes_are_means() -> None:
    builder = TraceBuilder().range("decode", 0, 800, process=1).range("decode", 0, 400, process=2)
    assert page_of(builder.build(recorded={"ranges"}, span=(0, 1_000))).answer == (
        "CPU time in the window by range (mean of 2 processes): decode 60.0%, outside of ranges "
        "40.0%."
    )


def test_ranges_beside_gpu_activity_are_not_on_the_page() -> None:
    builder = TraceBuilder().range("decode", 0, 900)
    for start in range(0, 1_000, 100):
        builder.kernel("gemm", start, start + 90, launched_ns=(start, start + 1))
    document = page(run_of(Ranks.of(builder.build())))
    assert "range-times" not in document.results
    assert not any("decode" in text for text in briefing_of(document).made_of)


def test_phases_of_traceprof_are_no_ranges_of_the_program() -> None:
    builder = TraceBuilder()
    for start in range(0, 12_000, 1_000):
        builder.phase("forward", start, start + 400).phase("backward", start + 400, start + 900)
    answer = page_of(builder.build(recorded={"ranges"})).answer
    assert "backward" in answer
    assert "by range" not in answer


def test_the_page_of_a_trace_with_only_calls_of_the_os_runtime() -> None:
    builder = TraceBuilder()
    for start in (0, 100):
        builder.host_op("read", start, start + 60, source="osrt")
    builder.host_op("poll", 300, 330, source="osrt").host_op("cudnnAdd", 0, 9, source="cudnn")
    assert page_of(builder.build(recorded={"host_ops"})).answer == (
        "OS runtime calls, summed over threads, with waiting: read 120 ns in 2 calls, poll 30 ns "
        "in 1 call."
    )


def test_a_page_on_steps_without_other_ranges_does_not_list_them() -> None:
    builder = TraceBuilder()
    for number in range(12):
        builder.range(f"ProfilerStep#{number}", number * 1_000, number * 1_000 + 990)
    briefing = page_of(builder.build(recorded={"ranges"}))
    assert "by range" not in briefing.answer
    assert not any(text.startswith("Range ") for text in briefing.made_of)
