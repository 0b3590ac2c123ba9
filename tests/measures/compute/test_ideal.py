"""The waterfall from the ideal step to the measured one: exact, and true of what was planted."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.builders import TraceBuilder
from tests.measures.compute.test_utilization import H100, HALF, gpt, stated
from tests.measures.generated_run import MS, Plan, make_ranks_of
from tests.real_traces import ALL
from tests.real_traces import H100 as RECORDED
from tests.requirements import TRACES, require
from tests.running import run
from traceprof.errors import NotRecordedError, UsageError
from traceprof.measures.compute.ideal import (
    AT_BANDWIDTH,
    AT_PEAK,
    BELOW_BANDWIDTH,
    BELOW_PEAK,
    PARTS,
    SHORT,
    UNKNOWN,
    UNKNOWN_MATRIX,
    WAITS,
    WAVES,
)
from traceprof.model.activity import PARTS as OF_DEVICES
from traceprof.model.results import Result
from traceprof.render.formatting import sentences
from traceprof.session.answer import answer
from traceprof.session.options import Opening
from traceprof.session.run import open_run
from traceprof.session.selection import select_default

PRODUCT: tuple[Any, Any, Any] = ([[4096, 4096], [4096, 4096]], [HALF] * 2, [])
SUM: tuple[Any, Any, Any] = ([[4096, 4096]] * 2, [HALF] * 2, [])
IDEAL_NS = round(2 * 4096**3 / 989.4e12 * 1e9)
TRAFFIC_NS = round(3 * 4096**2 * 2 / 3350e9 * 1e9)


def parts(result: Result) -> dict[str, int]:
    """Return the times of the parts, which add up."""
    rows = result.table.rows()
    assert [row["part"] for row in rows] == [p for p in PARTS if p in {r["part"] for r in rows}]
    assert sum(row["step_ns"] for row in rows) == result.scalars["length_ns"]
    return {row["part"]: row["total_ns"] for row in rows}


def work(builder: TraceBuilder, inputs: Any, begin: int, end: int, name: str = "gemm") -> None:
    """Add an operator and its kernel, which is launched in time."""
    operator = "aten::mm" if inputs is PRODUCT else "aten::add"
    builder.host_op(operator, begin - 900, begin - 100, inputs=inputs)
    builder.kernel(name, begin, end, launched_ns=(begin - 800, begin - 700))


def test_a_kernel_is_its_flops_its_traffic_and_what_it_loses() -> None:
    builder = TraceBuilder().device(0, name=H100)
    work(builder, PRODUCT, 1000, 1000 + 3 * IDEAL_NS)
    found = parts(run("ideal", builder.build()))
    assert found[AT_PEAK] == IDEAL_NS
    assert found[BELOW_PEAK] == 2 * IDEAL_NS
    assert AT_BANDWIDTH not in found


def test_what_memory_limits_shows_its_traffic() -> None:
    builder = TraceBuilder().device(0, name=H100)
    work(builder, SUM, 1000, 1000 + 2 * TRAFFIC_NS, "vectorized_elementwise_kernel")
    found = parts(run("ideal", builder.build()))
    assert found[AT_BANDWIDTH] == TRAFFIC_NS
    assert found[BELOW_BANDWIDTH] == TRAFFIC_NS
    assert AT_PEAK not in found


def test_small_products_show_as_short_kernels() -> None:
    builder = TraceBuilder().device(0, name=H100)
    small: tuple[Any, Any, Any] = ([[64, 64], [64, 64]], [HALF] * 2, [])
    for place in range(1, 11):
        builder.host_op("aten::mm", place * 5000 - 900, place * 5000 - 100, inputs=small)
        at = place * 5000
        builder.kernel("gemm", at, at + 4000, launched_ns=(at - 800, at - 700))
    found = parts(run("ideal", builder.build()))
    assert found[SHORT] / sum(found.values()) > 0.75
    assert BELOW_PEAK not in found


def test_waves_that_do_not_fill_the_gpu_are_told_from_the_launch() -> None:
    shape = {"grid_x": 66, "grid_y": 1, "grid_z": 1, "block_x": 1024, "block_y": 1, "block_z": 1}
    shape |= {"registers": 64, "static_shared_bytes": 0, "dynamic_shared_bytes": 0}
    shape |= {"shared_bytes": 0, "context": 1}
    builder = TraceBuilder().device(0, name=H100, compute_capability=90, sm_count=132)
    builder.host_op("aten::mm", 100, 900, inputs=PRODUCT)
    builder.kernel("gemm", 1000, 1_001_000, launched_ns=(200, 300), shape=shape)
    assert parts(run("ideal", builder.build()))[WAVES] == 500_000


def test_kernels_without_a_known_operator_are_not_known() -> None:
    builder = TraceBuilder().device(0, name=H100)
    builder.kernel("gemm", 0, 40, launched_ns=(0, 1))
    builder.kernel("elementwise_kernel", 40, 100, launched_ns=(2, 3))
    result = run("ideal", builder.build())
    assert parts(result) == {UNKNOWN_MATRIX: 40, UNKNOWN: 60}
    assert any("--model-flops" in note.text for note in result.notes)


def test_what_the_user_says_stands_for_matrix_work_that_is_not_known() -> None:
    builder = TraceBuilder().device(0, name=H100)
    builder.kernel("nvjet_tst_gemm", 0, 900_000, launched_ns=(0, 1))
    builder.step(0, 1_000_000, 0)
    found = parts(run("ideal", stated(builder.build(), model_flop=989.4e12 * 1e-4)))
    assert found[AT_PEAK] == 100_000
    assert found[BELOW_PEAK] == 800_000


def counted_elsewhere(name: str, *, with_inputs: bool = False) -> dict[str, int]:
    """Return the waterfall of a step of 1 ms with a kernel of 900 µs and counted bytes.

    The bytes take 300 µs at the 3.35 TB/s of an H100.
    """
    builder = TraceBuilder().device(0, name=H100).step(0, 1_000_000, 0)
    builder.kernel(name, 0, 900_000, launched_ns=(0, 1))
    for operator in ("aten.add", "aten.native_layer_norm"):
        builder.sample(f"moved:{operator}", 10, 3350e9 * 150e-6)
    if with_inputs:
        builder.host_op("aten::relu", 950_000, 960_000, inputs=([[4]], ["float"], []))
    return parts(run("ideal", builder.build()))


def test_counted_bytes_split_kernels_that_memory_limits_to_the_digit() -> None:
    found = counted_elsewhere("vectorized_elementwise_kernel")
    assert found[AT_BANDWIDTH] == 300_000
    assert found[BELOW_BANDWIDTH] == 600_000
    assert UNKNOWN not in found


def test_bytes_of_separate_operators_are_not_those_of_fused_kernels() -> None:
    found = counted_elsewhere("triton_poi_fused_add_0")
    assert found[UNKNOWN] == 900_000
    assert AT_BANDWIDTH not in found


def test_counted_bytes_leave_matrix_kernels_unknown() -> None:
    assert counted_elsewhere("gemm")[UNKNOWN_MATRIX] == 900_000


def test_sizes_of_operators_come_before_counted_bytes() -> None:
    assert counted_elsewhere("elementwise_kernel", with_inputs=True)[UNKNOWN] == 900_000


def test_flops_that_no_such_step_could_do_are_doubted() -> None:
    builder = TraceBuilder().device(0, name=H100)
    builder.kernel("nvjet_tst_gemm", 0, 900_000, launched_ns=(0, 1)).step(0, 1_000_000, 0)
    trace = builder.build()
    result = run("ideal", stated(trace, model_flop=989.4e12 * 1e-3))
    assert any("take 1.00 ms at peak, longer" in one for one in sentences(result.notes))
    fitting = run("ideal", stated(trace, model_flop=989.4e12 * 1e-4))
    assert not any("longer than all matrix work" in one for one in sentences(fitting.notes))


def test_flops_that_are_not_all_known_are_not_called_those_of_the_step() -> None:
    builder = TraceBuilder().device(0, name=H100)
    work(builder, PRODUCT, 1000, 1000 + 3 * IDEAL_NS)
    assert any("At peak, the FLOPs of the " in one for one in told(builder))
    builder.kernel("nvjet_tst_gemm", 10**9, 2 * 10**9, launched_ns=(0, 1))
    assert any("At peak, the known FLOPs of the " in one for one in told(builder))


def told(builder: TraceBuilder) -> list[str]:
    return sentences(run("ideal", builder.build()).notes)


def test_waiting_for_a_slow_rank_is_what_was_planted() -> None:
    plan = Plan(n_ranks=4, n_steps=8, extra_ns={(3, "backward"): 20 * MS})
    ranks = make_ranks_of(plan)
    result = run("ideal", ranks.within(select_default(ranks).window))
    devices, steps = result.scalars["devices_count"], result.scalars["steps_count"]
    assert devices == 4
    # Three of four ranks wait for 20 ms of each step.
    assert parts(result)[WAITS] / steps / 3 == pytest.approx(20 * MS, rel=0.05)


def test_kernels_that_run_at_once_count_once() -> None:
    builder = TraceBuilder().device(0, name=H100)
    for stream in (7, 8):
        builder.kernel("gemm", 0, 100, launched_ns=(0, 1), stream=stream)
    assert parts(run("ideal", builder.build())) == {UNKNOWN_MATRIX: 100}


def test_steps_have_the_mean_of_all_and_add_up() -> None:
    result = run("ideal", gpt(3))
    assert result.scalars["steps_count"] == 3
    assert sum(parts(result).values()) // 3 == result.scalars["length_ns"]


def test_without_a_device_there_is_nothing_to_hold_against_a_peak() -> None:
    with pytest.raises(NotRecordedError):
        run("ideal", TraceBuilder().phase("forward", 0, 10).build())


UNCACHED = Opening(is_cached=False)


def place(name: str, real_trace: Callable[[str], Path]) -> Path:
    """Return where a trace, or the folder of a run, lies."""
    require("traces")
    return TRACES / name if (TRACES / name).is_dir() else real_trace(name)


@pytest.mark.traces
def test_waiting_for_a_slow_rank_shows_where_it_is(real_trace: Callable[[str], Path]) -> None:
    path = place("kineto/torchrec-4ranks-straggler-v100", real_trace)
    result = answer(open_run([path], UNCACHED), ["ideal"]).results["ideal"]
    found = parts(result)
    # Three of four ranks wait for about a second of each step.
    assert found[WAITS] / result.scalars["steps_count"] / 3 == pytest.approx(1e9, rel=0.05)


@pytest.mark.traces
@pytest.mark.parametrize("name", [*ALL, *RECORDED])
def test_it_adds_up_to_what_the_devices_did(name: str, real_trace: Callable[[str], Path]) -> None:
    try:
        found = answer(open_run([place(name, real_trace)], UNCACHED), ["ideal", "breakdown"])
    except UsageError as error:
        assert "no events" in str(error)
        return
    if "ideal" not in found.results:
        assert found.missing["ideal"]
        return
    devices = found.results["breakdown"].tables["devices"]
    whole = sum(int(devices[f"{part}_ns"].sum()) for part in OF_DEVICES)
    assert sum(parts(found.results["ideal"]).values()) == whole
