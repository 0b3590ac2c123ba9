from hypothesis import given, settings
from hypothesis import strategies as st

from tests.builders import TraceBuilder
from tests.training import MS, US
from traceprof.measures.path.graph import dependencies, walk_back
from traceprof.measures.path.path import find_path
from traceprof.model.timing import TimeWindow
from traceprof.model.trace import Trace


def parts_of(trace: Trace) -> dict[str, int]:
    """The parts of the path of process 1 through the whole trace that are not 0."""
    parts, _ = find_path(trace, 1)
    return {name: time.total_ns for name, time in parts.items() if len(time)}


def test_a_full_queue_is_bound_by_the_device() -> None:
    trace = (
        TraceBuilder()
        .kernel("gemm", 100, 500, launched_ns=(0, 10))
        .kernel("ncclAllReduce", 510, 800, launched_ns=(20, 30))
        .build()
    )
    # Back from the end: the collective, 10 ns between the two, the kernel, and its launch.
    assert parts_of(trace) == {"communication": 290, "compute": 400, "latency": 110}


def test_an_empty_queue_is_bound_by_the_host() -> None:
    trace = (
        TraceBuilder()
        .phase("data", 0, 1000)
        .kernel("gemm", 1020, 1100, launched_ns=(1010, 1015))
        .build()
    )
    assert parts_of(trace) == {"data": 1000, "host": 10, "latency": 10, "compute": 80}


def test_a_wait_of_the_host_leads_back_to_the_device() -> None:
    trace = (
        TraceBuilder()
        .kernel("gemm", 20, 500, launched_ns=(0, 10))
        .api_call("cudaDeviceSynchronize", 30, 510)
        .kernel("gemm", 700, 800, launched_ns=(600, 610))
        .build()
    )
    # The host runs for 90 ns after its wait, between two calls 200 µs apart at most: launching.
    assert parts_of(trace) == {
        "compute": 580,
        "latency": 120,
        "launch": 90,
        "synchronizing": 10,
    }


def test_long_pauses_between_calls_are_other_code() -> None:
    trace = (
        TraceBuilder()
        .kernel("a", 20, 500, launched_ns=(0, 10))
        .api_call("cudaDeviceSynchronize", 30, 510)
        .kernel("b", 2 * MS + 20, 2 * MS + 30, launched_ns=(2 * MS, 2 * MS + 10))
        .build()
    )
    assert parts_of(trace)["host"] == 2 * MS - 510


def test_work_right_after_work_of_another_stream_depends_on_it() -> None:
    trace = (
        TraceBuilder()
        .kernel("gemm", 100, 200, launched_ns=(0, 10))
        .copy("d2h", 201, 300, launched_ns=(20, 30), stream=9)
        .build()
    )
    assert parts_of(trace) == {"transfer": 99, "latency": 101, "compute": 100}


def test_a_blocking_copy_waits_for_the_work_ahead_not_for_its_own_call() -> None:
    trace = (
        TraceBuilder()
        .kernel("gemm", 20, 900 * US, launched_ns=(0, 10), stream=13)
        .copy("d2h", 901 * US, 902 * US, launched_ns=(20, 910 * US), api="cudaMemcpy")
        .build()
    )
    parts = parts_of(trace)
    assert (parts["compute"], parts["transfer"]) == (900 * US - 20, US)


@settings(deadline=None, max_examples=60)
@given(
    st.lists(
        st.tuples(
            st.integers(0, 200),
            st.integers(0, 30),
            st.integers(0, 40),
            st.integers(0, 3),
            st.booleans(),
        ),
        max_size=15,
    ),
    st.lists(st.tuples(st.integers(0, 200), st.integers(0, 40)), max_size=5),
    st.integers(0, 150),
)
def test_the_path_fills_the_window(
    work: list[tuple[int, int, int, int, bool]], waits: list[tuple[int, int]], cut: int
) -> None:
    builder = TraceBuilder().kernel("gemm", 40, 60)
    for start, length, ahead, stream, linked in work:
        launched = (start - ahead, start - ahead + 2) if linked else None
        name = ["gemm", "nccl"][stream % 2]
        builder.kernel(name, start, start + length, launched_ns=launched, stream=stream)
    for start, length in waits:
        builder.api_call("cudaStreamSynchronize", start, start + length)
    trace = builder.build(span=(-50, 300)).within(TimeWindow(cut, 260))
    parts, _ = find_path(trace, 1)
    segments = walk_back(dependencies(trace)[1], trace.span)
    assert sum(time.total_ns for time in parts.values()) == 260 - cut
    assert (segments.end_ns > segments.start_ns).all()
    assert segments.end_ns[0] == 260
    assert segments.start_ns[-1] == cut
    assert (segments.start_ns[:-1] == segments.end_ns[1:]).all()
