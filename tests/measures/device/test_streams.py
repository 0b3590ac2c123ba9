from tests.builders import TraceBuilder, plain
from tests.running import run

US = 1000


def test_what_each_stream_waited_for() -> None:
    trace = (
        TraceBuilder()
        .kernel("a", 0, 10 * US, launched_ns=(-10, -5))
        .kernel("b", 12 * US, 20 * US, launched_ns=(1 * US, 2 * US))  # launched ahead: 2 µs
        .kernel("c", 60 * US, 70 * US, launched_ns=(55 * US, 56 * US))  # launched in the gap
        .kernel("d", 170 * US, 180 * US, launched_ns=(57 * US, 58 * US))  # waits for something
        .kernel("e", 190 * US, 200 * US)  # launch unknown, short gap
        .kernel("f", 300 * US, 310 * US)  # launch unknown, long gap
        .copy("h2d", 0, 5 * US, stream=14)
        .build()
    )
    columns = ("stream", "count", "busy_ns", "host_wait_ns", "kernel_wait_ns", "other_ns")
    assert plain(run("streams", trace).table.to_frame(), *columns, "gap_count") == [
        (7, 6, 58 * US, 40 * US, 12 * US, 200 * US, 5),
        (14, 1, 5 * US, 0, 0, 0, 0),
    ]
