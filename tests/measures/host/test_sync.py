from hypothesis import given, settings
from hypothesis import strategies as st

from tests.builders import TraceBuilder, plain
from tests.running import run
from traceprof.measures.idle.gaps import CAUSES, find_gap_parts
from traceprof.model.results import Note
from traceprof.model.timing import TimeWindow
from traceprof.model.trace import Trace


def test_waits_by_call_pattern_and_range() -> None:
    trace = (
        TraceBuilder()
        .step(0, 1000, number=0)
        .step(1000, 2000, number=1)
        .range("log, op_id = 3", 100, 300)
        .copy("d2h", 150, 160, n_bytes=4, launched_ns=(110, 120))
        .api_call("cudaStreamSynchronize", 121, 170)
        .copy("d2h", 250, 260, n_bytes=4000, launched_ns=(210, 220))
        .api_call("cudaStreamSynchronize", 221, 265)
        .copy("d2h", 400, 410, n_bytes=8, launched_ns=(390, 412), api="cudaMemcpy")
        .copy("h2d", 500, 510, n_bytes=8, launched_ns=(490, 530), api="cudaMemcpy")
        .api_call("cudaDeviceSynchronize", 1500, 1900)
        .api_call("cudaEventQuery", 1900, 1901)
        .build()
    )
    sync = run("sync", trace)
    columns = ("call", "pattern", "host_range", "count", "per_step", "total_ns")
    assert plain(sync.table, *columns) == [
        ("cudaDeviceSynchronize", "synchronize", "user_step", 1, 0.5, 400),
        ("cudaStreamSynchronize", ".item()", "log", 1, 0.5, 49),
        ("cudaStreamSynchronize", "synchronize", "log", 1, 0.5, 44),
        ("cudaMemcpy", "blocking copy", "user_step", 1, 0.5, 40),
        ("cudaMemcpy", ".item()", "user_step", 1, 0.5, 22),
    ]
    text = (
        "{n:count} wait(s) for a few bytes from the GPU ({lost:ns}), probably `.item()`, `.cpu()` "
        "of a scalar, or `if tensor:`."
    )
    assert sync.notes == (Note.of(text, n=2, lost=71),)


def test_no_waits() -> None:
    trace = TraceBuilder().kernel("a", 0, 10, launched_ns=(0, 1)).build()
    sync = run("sync", trace)
    assert (sync.table.empty, sync.notes) == (True, ())


def test_a_wait_that_the_window_cuts_is_judged_by_where_it_began() -> None:
    trace = (
        TraceBuilder()
        .range("log", 100, 140)
        .range("other", 140, 300)
        .copy("d2h", 150, 160, n_bytes=4, launched_ns=(110, 120))
        .api_call("cudaStreamSynchronize", 121, 170)
        .build()
    )
    table = run("sync", trace.within(TimeWindow(150, 300))).table
    assert plain(table, "pattern", "host_range", "total_ns") == [(".item()", "log", 20)]


def test_calls_that_begin_together_are_one_instant() -> None:
    trace = (
        TraceBuilder()
        .copy("d2h", 150, 160, n_bytes=4, launched_ns=(110, 120))
        .api_call("cuMemcpyDtoHAsync_v2", 110, 118)
        .api_call("cudaStreamSynchronize", 121, 170)
        .copy("d2h", 150, 160, n_bytes=4, launched_ns=(10, 12), thread=2)
        .api_call("cudaStreamSynchronize", 130, 135, thread=3)
        .build()
    )
    assert plain(run("sync", trace).table.to_frame(), "pattern", "count") == [
        (".item()", 1),
        ("synchronize", 1),
    ]


def test_the_idle_time_of_waits_is_that_of_the_idle_table() -> None:
    trace = (
        TraceBuilder()
        .kernel("a", 0, 1000, launched_ns=(0, 10))
        .api_call("cudaStreamSynchronize", 20, 1300)  # returns 300 ns after the device is done
        .api_call("cudaDeviceSynchronize", 2000, 2100)
        .api_call("cudaEventSynchronize", 1000, 9000, thread=77)  # holds no device up
        .kernel("b", 9000, 9100, launched_ns=(8900, 8950))
        .build()
    )
    table = run("sync", trace).table.to_frame()
    assert plain(table, "call", "total_ns", "idle_ns") == [
        ("cudaEventSynchronize", 8000, 0),
        ("cudaStreamSynchronize", 1280, 300),
        ("cudaDeviceSynchronize", 100, 100),
    ]
    causes = dict(plain(run("idle", trace).table.to_frame(), "cause", "total_ns"))
    # Until work is launched again after a wait, up to its length, it is idle because of the wait.
    assert causes["synchronizing"] == 1380
    assert waited_in_gaps(trace) == table["idle_ns"].sum() == 400


def test_without_recorded_work_it_is_not_known_how_long_devices_were_idle() -> None:
    trace = TraceBuilder().api_call("cudaDeviceSynchronize", 0, 10).build(recorded=["api_calls"])
    assert run("sync", trace).table.to_frame()["idle_ns"].isna().all()


@settings(deadline=None, max_examples=40)
@given(
    st.lists(st.tuples(st.integers(0, 150), st.integers(1, 9), st.integers(0, 40)), max_size=5),
    st.lists(st.tuples(st.integers(0, 150), st.integers(1, 60), st.integers(1, 3)), max_size=6),
)
def test_idle_in_waits_adds_up_to_the_cause(
    work: list[tuple[int, int, int]], waits: list[tuple[int, int, int]]
) -> None:
    builder = TraceBuilder().kernel("k", 190, 200, launched_ns=(180, 185))
    for i, (start, length, ahead) in enumerate(work):
        launched = (start - ahead, start - ahead + 2)
        thread = 1 + i % 2
        builder.kernel(
            "k", start, start + length, launched_ns=launched, thread=thread, device=i % 2
        )
    for start, length, thread in waits:
        builder.api_call("cudaStreamSynchronize", start, start + length, thread=thread)
    trace = builder.build(span=(-50, 260)).within(TimeWindow(10, 230))
    table, idle = run("sync", trace).table.to_frame(), run("idle", trace).table.to_frame()
    cause = idle.loc[idle["cause"] == "synchronizing", "total_ns"].sum()
    assert table["idle_ns"].sum() == waited_in_gaps(trace) <= cause


def waited_in_gaps(trace: Trace) -> int:
    """Return how long devices were idle in waits, without what follows these."""
    parts = find_gap_parts(trace)
    parts = parts.take(parts["cause"] == CAUSES.index("synchronizing"))
    return int((parts["end_ns"] - parts["start_ns"]).sum())
