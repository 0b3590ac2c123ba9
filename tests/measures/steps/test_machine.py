from pathlib import Path

import numpy as np
import pytest

from tests.builders import PROCESS, TraceBuilder
from traceprof.formats.nsys.writer import write_nsys
from traceprof.measures.steps.measured import measured_steps
from traceprof.measures.steps.steps import measure_steps
from traceprof.model.ranks import Ranks
from traceprof.session.run import open_run

MS = 1_000_000
LENGTH = 100 * MS


def steps(n: int, slow: int = -1) -> TraceBuilder:
    """Steps of a host and its device; the slow one takes five times as long."""
    builder, at = TraceBuilder(), 0
    for number in range(n):
        length = 5 * LENGTH if number == slow else LENGTH
        builder.step(at, at + length - MS, number)
        launch = (at + MS, at + 2 * MS)
        builder.kernel("gemm", at + 3 * MS, at + length - 2 * MS, launched_ns=launch)
        at += length
    return builder


def table_of(builder: TraceBuilder):
    return measured_steps(Ranks.of(builder.build())).table


def test_without_samples_there_are_no_columns() -> None:
    assert not {"sm_clock_mhz", "alloc_retries_count"} & set(table_of(steps(5)))


def test_clocks_are_the_mean_from_a_second_before_a_step_until_its_end() -> None:
    builder = steps(30)
    for second, (clock, heat) in enumerate([(1980, 0), (1500, 1), (990, 1)]):
        at = second * 1000 * MS + 50 * MS
        builder.sample("sm_clock_mhz", at, clock, source="gpu:0")
        builder.sample("sm_clock_mhz", at, 300, source="gpu:7")  # of somebody else
        builder.sample("throttled_by_power", at, 0, source="gpu:0")
        builder.sample("throttled_by_heat", at, heat, source="gpu:0")
    table = table_of(builder)
    assert table["sm_clock_mhz"].tolist()[:12] == [1980] * 10 + [(1980 + 1500) / 2, 1500]
    assert table["sm_clock_mhz"][25] == 990
    assert table["throttled_ratio"].tolist()[:12] == [0] * 10 + [0.5, 1]


def test_a_step_that_no_sample_is_near_has_no_clock() -> None:
    builder = steps(30).sample("sm_clock_mhz", 50 * MS, 1980, source="gpu:0")
    clocks = table_of(builder)["sm_clock_mhz"]
    assert clocks[5] == 1980
    assert np.isnan(clocks[20])


def test_what_the_allocator_counted_is_of_the_step_before_the_mark() -> None:
    source = f"process:{PROCESS}"
    builder = steps(6)
    # Before the first step: what was counted since the program began.
    builder.sample("torch_device_alloc", 0, 40, source=source)
    builder.sample("torch_device_alloc", 3 * LENGTH - MS // 2, 43, source=source)
    builder.sample("torch_alloc_retries", 5 * LENGTH - MS // 2, 2, source=source)
    table = table_of(builder)
    assert table["alloc_retries_count"].tolist() == [0, 0, 0, 0, 2, 0]
    assert table["device_alloc_count"].tolist()[1:] == [0, 3, 0, 0, 0]


def test_cpu_times_are_of_the_step_before_the_mark_and_unknown_without_one() -> None:
    """No mark follows the last step. Before step 4, another thread trains: its times are lower."""
    source = f"process:{PROCESS}"
    builder = steps(6)
    for number, (ran, waited) in enumerate(
        [(5, 1), (15, 81), (25, 161), (45, 181), (2, 3), (8, 4)]
    ):
        at = number * LENGTH - MS // 2
        builder.sample("thread_cpu_ns", at, ran * MS, source=source)
        builder.sample("thread_cpu_wait_ns", at, waited * MS, source=source)
    table = table_of(builder)
    unknown = np.nan
    ran_ms, waited_ms = (table[name] / MS for name in ("cpu_ns", "cpu_wait_ns"))
    np.testing.assert_array_equal(ran_ms, [10, 10, 20, unknown, 6, unknown])
    np.testing.assert_array_equal(waited_ms, [80, 80, 20, unknown, 1, unknown])


def test_cpu_times_that_exceed_the_step_are_those_of_two_threads() -> None:
    source = f"process:{PROCESS}"
    builder = steps(4)
    for number, ran in enumerate([0, 50, 500, 550]):
        builder.sample("thread_cpu_ns", number * LENGTH - MS // 2, ran * MS, source=source)
        builder.sample("thread_cpu_wait_ns", number * LENGTH - MS // 2, 0, source=source)
    np.testing.assert_array_equal(table_of(builder)["cpu_ns"] / MS, [50, np.nan, 50, np.nan])


def test_the_columns_are_declared() -> None:
    builder = steps(5).sample("sm_clock_mhz", 50 * MS, 1980, source="gpu:0")
    result = measure_steps(Ranks.of(builder.build()))
    assert result.table.to_frame()["sm_clock_mhz"].tolist() == [1980] * 5


@pytest.mark.parametrize("name", ["steps", "findings"])
def test_who_tells_it_reads_the_samples(name: str, tmp_path: Path) -> None:
    path = tmp_path / "x.sqlite"
    builder = steps(30, slow=12)
    for at in range(0, 3000 * MS, 50 * MS):
        is_slow = 1200 * MS <= at < 1700 * MS
        builder.sample("sm_clock_mhz", at, 345 if is_slow else 1980, source="gpu:0")
    write_nsys(builder.build(), path)
    result = open_run([path]).result(name)
    said = (
        result.table.to_frame().to_string()
        if name == "steps"
        else repr(result.table.to_frame().to_dict("records"))
    )
    assert "sm_clock_mhz" in said or "the GPU clock was" in said


def test_a_wait_for_a_cpu_core_comes_before_the_phases_that_it_makes_longer() -> None:
    """Step 4 takes 100 ms more, of which the thread waits 90 ms for a core."""
    source, builder, at = f"process:{PROCESS}", TraceBuilder(), MS
    builder.sample("thread_cpu_ns", 0, 0, source=source)
    builder.sample("thread_cpu_wait_ns", 0, 0, source=source)
    for number in range(10):
        end = at + (120 if number == 4 else 20) * MS
        builder.step(at, end, number).phase("forward", at, end)
        builder.sample("thread_cpu_ns", end - MS // 2, 0, source=source)
        builder.sample("thread_cpu_wait_ns", end - MS // 2, (number >= 4) * 90 * MS, source=source)
        at = end
    slow = table_of(builder).row(4)
    assert (slow["excess_ns"], slow["grown_phase"]) == (100 * MS, "cpu_wait")
    assert slow["grown_phase_ns"] == 90 * MS
