"""The CPU time that torch.profiler took, estimated from the number of events."""

from pathlib import Path
from typing import Any

import pytest

from tests.builders import TraceBuilder
from tests.findings.found import Found, findings_of
from tests.formats.kineto_file import complete, write
from traceprof.formats.contract import ReadOptions
from traceprof.formats.kineto.reader import read
from traceprof.model.trace import RecordingCost, TraceInfo, warnings_by_rank

US = 1000
MS = 1000 * US


def info_of(path: Path, n_operators: int, *more: dict[str, Any], **args: Any) -> TraceInfo:
    """Return the description of a trace of 1 ms with operators of 1 µs and other events."""
    step = (1 * MS) // n_operators
    operators = [
        complete("cpu_op", "aten::mm", i * step, i * step + US, args=args)
        for i in range(n_operators)
    ]
    operators[-1] = complete("cpu_op", "aten::mm", 1 * MS - US, 1 * MS, args=args)
    return read(write(path / "t.json", [*operators, *more]), ReadOptions()).info


def test_operators_alone(tmp_path: Path) -> None:
    info = info_of(tmp_path, 200)
    # 200 operators of 0.3 to 1.5 µs in 1 ms.
    assert info.recording is not None
    assert info.recording.ratios == (0.06, 0.3)
    assert info.warnings == (
        "torch.profiler itself took about 6–30% of the CPU time (200 events per ms); to measure "
        "CPU times, record with activities=[ProfilerActivity.CUDA]",
    )


def test_few_operators_cost_little(tmp_path: Path) -> None:
    info = info_of(tmp_path, 100)
    assert info.recording is None
    assert not info.warnings


def test_times_in_which_no_profiler_could_record_are_wrong(tmp_path: Path) -> None:
    path = write(
        tmp_path / "t.json", [complete("cpu_op", "aten::mm", i, i + 1) for i in range(200)]
    )
    assert read(path, ReadOptions()).info.recording is None


def test_shapes_and_short_python_calls_cost_more(tmp_path: Path) -> None:
    with_shapes = info_of(tmp_path, 100, **{"Input Dims": [[2, 3]]})
    assert with_shapes.recording is not None
    assert with_shapes.recording.ratios == pytest.approx((0.07, 0.31))
    assert with_shapes.warnings[0].endswith("record without record_shapes")
    calls = [
        complete("python_function", "train.py(3): f", i * US, i * US + 500) for i in range(200)
    ]
    with_stack = info_of(tmp_path, 100, *calls)
    assert with_stack.recording is not None
    # 100 operators and 200 calls of 0.1 to 0.4 µs, although no call becomes a row.
    assert with_stack.recording.ratios == pytest.approx((0.05, 0.23))
    assert with_stack.warnings[0].endswith("record without with_stack")


def test_operators_with_cuda_activity_cost_more(tmp_path: Path) -> None:
    info = info_of(tmp_path, 100, complete("cuda_runtime", "cudaLaunchKernel", 10 * US, 12 * US))
    assert info.recording is not None
    assert info.recording.ratios == pytest.approx((0.1003, 0.3015))


def test_a_run_warns_once() -> None:
    costs = [RecordingCost((0.1 * rank, 0.5), f"cost {rank}") for rank in (1, 3, 2)]
    infos = [
        (rank, TraceInfo(warnings=("damaged", cost.warning), recording=cost))
        for rank, cost in enumerate(costs)
    ]
    warnings, mean = warnings_by_rank([*infos, (3, TraceInfo())])
    assert mean is not None
    assert mean.ratios == pytest.approx((0.6 / 4, 1.5 / 4))
    assert warnings == [
        *("rank 0: damaged", "rank 1: damaged"),
        "rank 1 (highest cost; 3 of 4 ranks have this warning): cost 3",
        "rank 2: damaged",
    ]
    assert warnings_by_rank(infos)[0][2] == (
        "rank 1 (highest cost; all 3 ranks have this warning): cost 3"
    )
    assert warnings_by_rank([infos[0], (3, TraceInfo())])[0] == [
        "rank 0: damaged",
        "rank 0: cost 1",
    ]
    assert warnings_by_rank([(0, TraceInfo())]) == ([], None)


def host_code(recording: RecordingCost | None) -> Found:
    """Return the finding on steps of 100 ms in which the CPU does other work for 80 ms."""
    builder = TraceBuilder()
    for step in range(6):
        at = 100 * step * MS
        builder.step(at, at + 100 * MS, number=step)
        builder.kernel("gemm", at + MS, at + 21 * MS, launched_ns=(at, at + 10_000))
    found = findings_of(builder.build(info=TraceInfo(format="kineto", recording=recording)))
    (one,) = [each for each in found if each.rule == "host_code"]
    return one


def test_savings_exclude_the_cost_of_recording() -> None:
    whole = host_code(None)
    assert whole.kind == "measured"
    reduced = host_code(RecordingCost((0.1, 0.3), "the profiler took time"))
    assert reduced.kind == "estimated"
    assert reduced.claimed_ratio == whole.claimed_ratio
    assert reduced.saving_ns == pytest.approx(0.8 * whole.saving_ns, abs=2)
    assert reduced.range_ns is not None
    assert reduced.range_ns == pytest.approx((0.7 * whole.saving_ns, whole.saving_ns), abs=2)
    assert reduced.model == (
        "The estimated cost of recording is subtracted, except from the upper bound."
    )
