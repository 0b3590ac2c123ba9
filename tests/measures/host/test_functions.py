"""CPU and GPU time by Python function, on a trace of which every number is known."""

from tests.builders import TraceBuilder, plain
from tests.running import run
from traceprof.model.trace import Trace


def stacks() -> Trace:
    """A loop that calls ``evaluate`` twice, which recurses, and launches two kernels."""
    return (
        TraceBuilder()
        .function("train.py(1): main", 0, 1000)
        .function("train.py(9): evaluate", 100, 400)
        .function("train.py(9): evaluate", 200, 300)
        .function("<built-in function sleep>", 210, 240)
        .function("train.py(9): evaluate", 500, 600)
        .function("torch/nn/functional.py(2): linear", 700, 800)
        .function("<built-in method acquire of _thread.lock>", 0, 900, thread=2)
        .kernel("k", 760, 800, launched_ns=(750, 755))
        .kernel("k", 950, 970, launched_ns=(940, 945))
        .build()
    )


def test_time_of_functions() -> None:
    found = run("functions", stacks()).table
    columns = ("function", "part", "count", "host_self_ns", "host_ns", "device_ns", "work_count")
    assert plain(found.to_frame(), *columns) == [
        ("<built-in method acquire of _thread.lock>", "waiting", 1, 900, 900, 0, 0),
        ("train.py(1): main", "program", 1, 500, 1000, 60, 2),
        ("train.py(9): evaluate", "program", 3, 370, 400, 0, 0),
        ("torch/nn/functional.py(2): linear", "library", 1, 100, 100, 40, 1),
        ("<built-in function sleep>", "waiting", 1, 30, 30, 0, 0),
    ]
