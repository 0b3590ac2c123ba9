"""What gaps are charged to, held against a look at every nanosecond."""

from __future__ import annotations

from collections import Counter

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.builders import TraceBuilder, plain
from traceprof.measures.idle.charges import Charges, find_charges, time_by_name
from traceprof.measures.idle.gaps import CAUSES, find_gaps
from traceprof.measures.idle.idle import cause_times_of_gaps
from traceprof.measures.rows import rows_by
from traceprof.model.timing import TimeWindow
from traceprof.model.trace import Trace

_NAMES = ("forward", "step 3", "cudaStreamSynchronize", "pthread_cond_wait", "usleep", "forward #2")
_COMMON = dict(zip(_NAMES, (*("forward", "step"), *_NAMES[2:5], "forward"), strict=True))
_WAITS = _NAMES[2:4]
_TABLES = ("ranges", "host_ops", "api_calls")
Span = tuple[int, int, int, int, int]  # start, length, thread, name, table


Named = tuple[int, int, int, int, str, int]


def _all_spans(trace: Trace) -> list[Named]:
    """Return start, -end, order of the table, row, name and thread of all that has a name."""
    return [
        (start, -end, order, row, name, thread)
        for order, table in enumerate(_TABLES)
        for row, (start, end, name, thread) in enumerate(
            plain(trace.whole.table(table), "start_ns", "end_ns", "name", "thread")
        )
    ]


def _open_at(spans: list[Named], instant: int, thread: int) -> str:
    """Return the innermost name that a thread has open at an instant, "" for none."""
    found = [own for own in spans if own[5] == thread and own[0] <= instant < -own[1]]
    return max(found)[4] if found else ""


def _common(name: str) -> str:
    return _COMMON.get(name, name)


def _runs(name: str) -> bool:
    return bool(name) and name not in (*_WAITS, "usleep")


def _expected(trace: Trace) -> tuple[list[Counter[str]], list[Counter[str]]]:
    """Return, gap by gap and ns by ns, what it is charged to and what covers it."""
    charged, covered = [], []
    threads = range(1, 5)
    parts, spans = find_charges(trace).times, _all_spans(trace)
    for row, launching in enumerate(find_gaps(trace)["thread"].tolist()):
        mine = [
            (instant, cause)
            for start, end, cause in plain(
                parts.take(parts["gap"] == row), "start_ns", "end_ns", "cause"
            )
            for instant in range(start, end)
        ]
        asked = [at for at, cause in mine if cause not in ("queued", "peer", "profiler")]
        names = {at: [_open_at(spans, at, thread) for thread in threads] for at in asked}
        busy = [sum(_runs(names[at][thread - 1]) for at in asked) for thread in threads]
        own = launching if launching > 0 else 1
        others = sorted((t for t in threads if t != own), key=lambda t: (-busy[t - 1], t))
        charges: Counter[str] = Counter()
        covers: Counter[str] = Counter()
        for at, _ in mine:
            if at not in names:
                charges[""] += 1
                continue
            here = names[at]
            mine_now = here[own - 1]
            other = next((here[t - 1] for t in others if _runs(here[t - 1])), "")
            waits = mine_now in _WAITS or not mine_now
            charges[_common((other or mine_now) if waits else mine_now)] += 1
            covers.update({_common(name) for name in here if _runs(name)})
        charged.append(charges)
        covered.append(covers)
    return charged, covered


def _found(charges: Charges, n_gaps: int) -> tuple[list[Counter[str]], list[Counter[str]]]:
    charged: list[Counter[str]] = [Counter() for _ in range(n_gaps)]
    covered: list[Counter[str]] = [Counter() for _ in range(n_gaps)]
    for gap, name, start, end in plain(charges.times, "gap", "name", "start_ns", "end_ns"):
        charged[gap][name] += end - start
    for gap, rows in rows_by(charges.running, "gap").items():
        covered[gap].update(time_by_name(charges.running.take(rows)))
    return charged, covered


@settings(deadline=None, max_examples=60)
@given(
    st.lists(
        st.tuples(
            st.integers(0, 200),
            st.integers(1, 9),
            st.integers(0, 80),
            st.integers(0, 1),
            st.integers(1, 2),
        ),
        min_size=1,
        max_size=5,
    ),
    st.lists(
        st.tuples(
            st.integers(-20, 220),
            st.integers(1, 90),
            st.integers(1, 4),
            st.integers(0, 5),
            st.integers(0, 2),
        ),
        max_size=9,
    ),
    st.integers(0, 60),
)
def test_charges_are_those_of_every_nanosecond(
    work: list[Span], spans: list[Span], cut: int
) -> None:
    builder = TraceBuilder()
    for start, length, ahead, device, thread in work:
        launched = (start - ahead, start - ahead + 3)
        builder.kernel(
            "gemm", start, start + length, launched_ns=launched, device=device, thread=thread
        )
    for start, length, thread, name, table in spans:
        add = (builder.range, builder.host_op, builder.api_call)[table]
        add(_NAMES[name], start, start + length, thread=thread)
    trace = builder.build(span=(-100, 400)).within(TimeWindow(cut, 260))
    charges, gaps = find_charges(trace), find_gaps(trace)
    charged, covered = _found(charges, len(gaps))
    expected, open_there = _expected(trace)
    lengths = (gaps["end_ns"] - gaps["start_ns"]).tolist()
    assert [sum(own.values()) for own in charged] == lengths
    assert [+own for own in covered] == [+own for own in open_there]
    if gaps["thread"].min() > 0:  # else whose thread it is follows from the whole recording
        assert [+own for own in charged] == [+own for own in expected]
    for own, there in zip(charged, covered, strict=True):
        assert all(ns <= there[name] for name, ns in own.items() if _runs(name))
    by_cause = np.zeros((len(gaps), len(CAUSES)), np.int64)
    for gap, cause, start, end in plain(charges.times, "gap", "cause", "start_ns", "end_ns"):
        by_cause[gap, CAUSES.index(cause)] += end - start
    assert (by_cause == cause_times_of_gaps(trace, np.arange(len(gaps)))).all()


def _named(trace: Trace) -> list[tuple[str, str, int]]:
    sums: Counter[tuple[str, str]] = Counter()
    for name, by, start, end in plain(
        find_charges(trace).times, "name", "by", "start_ns", "end_ns"
    ):
        sums[name, by] += end - start
    return [(*key, ns) for key, ns in sorted(sums.items(), key=lambda own: (-own[1], own[0]))]


def _gap_of_a_millisecond() -> TraceBuilder:
    return (
        TraceBuilder()
        .kernel("first", 0, 100, launched_ns=(10, 20))
        .kernel("second", 1_000_100, 1_000_200, launched_ns=(1_000_090, 1_000_100))
    )


def test_what_was_open_when_a_gap_began_is_charged_with_its_overlap_alone() -> None:
    trace = _gap_of_a_millisecond().range("short", 50, 4_100).range("long", 4_100, 10_100).build()
    assert _named(trace) == [
        ("", "", 989_990),
        ("long", "launching", 6_000),
        ("short", "launching", 4_000),
        ("cudaLaunchKernel", "launching", 10),
    ]


def test_a_thread_that_compiles_is_charged_while_the_launching_one_waits() -> None:
    trace = (
        _gap_of_a_millisecond()
        .range("compile in parallel", 0, 900_000)
        .host_op("pthread_cond_wait", 100_000, 800_000, source="osrt")
        .range("nvrtc", 50_000, 700_000, thread=2)
        .range("nvrtc", 60_000, 650_000, thread=3)
        .host_op("poll", 0, 1_000_100, source="osrt", thread=4)
        .build()
    )
    assert _named(trace) == [
        ("nvrtc", "other", 600_000),
        ("compile in parallel", "launching", 199_900),
        ("", "", 100_090),
        ("pthread_cond_wait", "launching", 100_000),
        ("cudaLaunchKernel", "launching", 10),
    ]
    running = find_charges(trace).running
    assert time_by_name(running.take(running["by"] == "other")) == {"nvrtc": 650_000}


def test_numbers_of_operators_do_not_share_their_time() -> None:
    trace = (
        _gap_of_a_millisecond()
        .range("aten::mm, seq = 1, op_id = 3", 100, 10_100)
        .range("aten::mm, seq = 2, op_id = 4", 20_100, 40_100)
        .build()
    )
    assert _named(trace)[1] == ("aten::mm", "launching", 30_000)


def test_work_that_waits_in_a_queue_is_nobody_s_fault() -> None:
    trace = (
        TraceBuilder()
        .range("forward", 0, 3_000_100)
        .kernel("first", 0, 100, launched_ns=(0, 5))
        .kernel("second", 3_000_000, 3_000_100, launched_ns=(6, 9))
        .build()
    )
    # Until 20 µs after its launch returned, the second could not be there.
    assert _named(trace)[:2] == [("", "", 3_000_000 - 20_009), ("forward", "launching", 19_909)]


def test_the_outermost_operator_is_told_beside_the_innermost_name() -> None:
    trace = (
        TraceBuilder()
        .kernel("a", 0, 10, launched_ns=(0, 5))
        .range("forward", 10, 100)
        .host_op("aten::conv2d", 20, 60)
        .host_op("aten::convolution", 20, 60)
        .host_op("aten::as_strided", 30, 60)
        .range("aten::mm, seq = 3", 60, 90)
        .api_call("cudaMalloc", 70, 80)
        .kernel("b", 100, 110, launched_ns=(98, 100))
        .build()
    )
    times = find_charges(trace).times
    own = plain(times.take(times["start_ns"] >= 10), "name", "operator", "start_ns", "end_ns")
    assert own[:6] == [
        ("forward", "forward", 10, 20),
        ("aten::convolution", "aten::conv2d", 20, 30),
        ("aten::as_strided", "aten::conv2d", 30, 60),
        ("aten::mm", "aten::mm", 60, 70),
        ("cudaMalloc", "aten::mm", 70, 80),
        ("aten::mm", "aten::mm", 80, 90),
    ]
