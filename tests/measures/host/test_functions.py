"""CPU and GPU time by Python function, on a trace of which every number is known."""

from tests.builders import TraceBuilder, plain
from tests.running import run
from traceprof.measures.host.tree import BETWEEN
from traceprof.model.timing import PYTHON_SAMPLES_DOMAIN
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


def test_stacks_of_the_program() -> None:
    found = run("function-stacks", stacks()).table
    main, evaluate = "train.py(1): main", "train.py(9): evaluate"
    assert plain(found.to_frame(), "path", "depth", "count", "host_ns", "device_ns") == [
        (main, 0, 1, 1000, 60),
        (BETWEEN.join((main, evaluate)), 1, 2, 400, 0),
        (BETWEEN.join((main, evaluate, evaluate)), 2, 1, 100, 0),
    ]


def test_without_functions_of_the_program_there_are_no_stacks() -> None:
    trace = TraceBuilder().function("torch/nn/functional.py(2): linear", 0, 100).build()
    assert run("function-stacks", trace).table.empty


def test_sampled_stacks_are_estimates_without_gpu_time() -> None:
    builder = TraceBuilder().function("train.py(1): main", 0, 1000)
    builder.kernel("k", 760, 800, launched_ns=(750, 755))
    for time in range(0, 1000, 100):
        builder.mark("", time, domain=PYTHON_SAMPLES_DOMAIN, thread=9)
    trace = builder.build()
    for name in ("functions", "function-stacks"):
        found = run(name, trace)
        assert "device_ns" not in found.table
        assert found.notes[0].text.startswith("nsys sampled the Python stacks")
        assert found.notes[0].values == {"n": 10}
        assert not any("50 µs" in note.text for note in found.notes)
