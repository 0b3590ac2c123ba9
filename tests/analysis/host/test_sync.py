from tests.builders import TraceBuilder, plain
from tests.running import run
from traceprof.model.results import Note
from traceprof.model.window import TimeWindow


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
        ("cudaDeviceSynchronize", "synchronise", "user_step", 1, 0.5, 400),
        ("cudaStreamSynchronize", ".item()", "log", 1, 0.5, 49),
        ("cudaStreamSynchronize", "synchronise", "log", 1, 0.5, 44),
        ("cudaMemcpy", "blocking copy", "user_step", 1, 0.5, 40),
        ("cudaMemcpy", ".item()", "user_step", 1, 0.5, 22),
    ]
    text = (
        "{n:count} waits for a few bytes from the device ({lost:ns}) look like .item(), .cpu() of "
        "a scalar, or `if tensor:`"
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
    assert plain(run("sync", trace).table, "pattern", "count") == [
        (".item()", 1),
        ("synchronise", 1),
    ]
