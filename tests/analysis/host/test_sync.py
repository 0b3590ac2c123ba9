from tests.builders import TraceBuilder, plain
from traceprof.analysis.waiting.sync import measure_sync


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
    sync = measure_sync(trace)
    columns = ("call", "pattern", "host_range", "count", "per_step", "total_ns")
    assert plain(sync.table, *columns) == [
        ("cudaDeviceSynchronize", "synchronise", "user_step", 1, 0.5, 400),
        ("cudaStreamSynchronize", ".item()", "log", 1, 0.5, 49),
        ("cudaStreamSynchronize", "synchronise", "log", 1, 0.5, 44),
        ("cudaMemcpy", "blocking copy", "user_step", 1, 0.5, 40),
        ("cudaMemcpy", ".item()", "user_step", 1, 0.5, 22),
    ]
    assert sync.notes == (
        "2 waits for a few bytes from the device (71 ns) look like .item(), .cpu() of a scalar, "
        "or `if tensor:`",
    )


def test_no_waits() -> None:
    trace = TraceBuilder().kernel("a", 0, 10, launched_ns=(0, 1)).build()
    sync = measure_sync(trace)
    assert (sync.table.empty, sync.notes) == (True, ())
