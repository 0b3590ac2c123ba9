"""The path of a window is found in the graph of the whole recording."""

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.builders import TraceBuilder
from traceprof.measures.path.path import find_path
from traceprof.model.timing import TimeWindow
from traceprof.model.trace import Trace

LAST = 260

pieces = st.lists(
    st.tuples(
        st.integers(0, 200),
        st.integers(1, 30),
        st.integers(0, 40),
        st.integers(0, 3),
        st.booleans(),
    ),
    max_size=15,
)
waits = st.lists(st.tuples(st.integers(0, 200), st.integers(1, 40)), max_size=5)


def built(
    work: list[tuple[int, int, int, int, bool]], syncs: list[tuple[int, int]], shift: int = 0
) -> Trace:
    builder = TraceBuilder().kernel("gemm", 40 + shift, 60 + shift)
    for start, length, ahead, stream, linked in work:
        at = start + shift
        launched = (at - ahead, at - ahead + 2) if linked else None
        name = ["gemm", "nccl"][stream % 2]
        builder.kernel(name, at, at + length, launched_ns=launched, stream=stream)
    for start, length in syncs:
        builder.api_call("cudaStreamSynchronize", start + shift, start + length + shift)
    return builder.build(span=(-50 + shift, 300 + shift))


@settings(deadline=None, max_examples=60)
@given(pieces, waits, st.integers(-(10**6), 10**6))
def test_a_shift_of_time_changes_nothing(
    work: list[tuple[int, int, int, int, bool]], syncs: list[tuple[int, int]], shift: int
) -> None:
    there, here = (
        find_path(built(work, syncs, by).within(TimeWindow(by, LAST + by)), 1)[0]
        for by in (0, shift)
    )
    for name, time in there.items():
        assert (time.starts + shift).tolist() == here[name].starts.tolist()
        assert (time.ends + shift).tolist() == here[name].ends.tolist()


def test_work_that_takes_no_time_and_begins_together_does_not_wait_for_itself() -> None:
    builder = TraceBuilder()
    for stream in range(4):
        builder.kernel("gemm", 50, 50, stream=stream)
    trace = builder.api_call("cudaStreamSynchronize", 30, 50).build(span=(0, 100))
    parts, _ = find_path(trace, 1)
    assert sum(time.total_ns for time in parts.values()) == 100


def test_a_host_that_still_waits_at_the_end_of_the_window_leads_to_the_last_work() -> None:
    trace = (
        TraceBuilder()
        .kernel("gemm", 20, 50_000, launched_ns=(0, 10))
        .api_call("cudaDeviceSynchronize", 30, 90_000)
        .kernel("gemm", 95_000, 99_000, launched_ns=(92_000, 92_010))
        .build()
    )
    parts, _ = find_path(trace.within(TimeWindow(0, 80_000)), 1)
    found = {name: time.total_ns for name, time in parts.items() if len(time)}
    assert found == {"synchronizing": 30_000, "compute": 49_980, "latency": 20}


def test_work_without_a_launch_waits_for_the_work_ahead_also_where_that_ended_before() -> None:
    trace = TraceBuilder().kernel("gemm", 0, 100).kernel("gemm", 500, 600).build(span=(0, 600))
    for begin, latency in ((0, 400), (200, 300)):
        parts, _ = find_path(trace.within(TimeWindow(begin, 600)), 1)
        found = {name: time.total_ns for name, time in parts.items() if len(time)}
        assert found.pop("latency") == latency
        assert sum(found.values()) == found["compute"]


@settings(deadline=None, max_examples=60)
@given(pieces, waits, st.integers(-50, LAST - 11))
def test_the_path_of_a_window_is_that_of_the_recording_where_both_end_alike(
    work: list[tuple[int, int, int, int, bool]], syncs: list[tuple[int, int]], begin: int
) -> None:
    # Work at the end, so that both paths begin with it.
    at_the_end = (LAST - 10, 10, 0, 9, False)
    trace = built([*work, at_the_end], syncs)
    whole, part = (find_path(trace.within(TimeWindow(first, LAST)), 1)[0] for first in (-50, begin))
    for name in ("compute", "communication", "latency", "synchronizing"):
        assert part[name].total_ns == whole[name].covered_ns([begin], [LAST])[0]
