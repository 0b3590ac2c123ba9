import pytest

from tests.builders import TraceBuilder, plain
from tests.running import run


def test_peaks_by_phase() -> None:
    trace = (
        TraceBuilder()
        .phase("forward", 0, 100)
        .phase("backward", 100, 200)
        .sample("memory_allocated_bytes", 10, 1000)
        .sample("memory_allocated_bytes", 90, 3000)
        .sample("memory_allocated_bytes", 100, 7000)
        .sample("memory_allocated_bytes", 250, 500)
        .sample("SM active [%]", 100, 99)
        .build()
    )
    columns = ("source", "metric", "phase", "count", "peak_bytes", "mean_bytes", "last_bytes")
    assert plain(run("memory", trace).table.to_frame(), *columns) == [
        ("gpu 0", "memory_allocated_bytes", "backward", 1, 7000, 7000, 7000),
        ("gpu 0", "memory_allocated_bytes", "forward", 2, 3000, 2000, 3000),
        ("gpu 0", "memory_allocated_bytes", "outside any phase", 1, 500, 500, 500),
    ]


@pytest.mark.parametrize(
    ("metric", "expected"),
    [
        ("memory.used [MiB]", 2 * 1024**2),
        ("Memory used (GB)", 2 * 10**9),
        ("reserved_bytes", 2),
        ("Total Allocated bytes", 2),
    ],
)
def test_units_are_in_the_name(metric: str, expected: int) -> None:
    trace = TraceBuilder().sample(metric, 0, 2).build()
    assert run("memory", trace).table["peak_bytes"].tolist() == [expected]


@pytest.mark.parametrize("metric", ["memory bandwidth [%]", "memory used", "loss"])
def test_other_metrics_are_not_memory(metric: str) -> None:
    memory = run("memory", TraceBuilder().sample(metric, 0, 1).build())
    assert memory.table.empty
    assert memory.notes[0].text.startswith("the trace contains no memory samples")
