"""Python stacks of torch.profiler: which calls become rows, and what they leave unchanged."""

from pathlib import Path
from typing import Any

import pytest

from tests.builders import plain
from tests.formats.kineto_file import HOST, THREAD, complete, kernel, write
from traceprof.errors import TraceError
from traceprof.formats.contract import ReadOptions
from traceprof.formats.kineto.reader import read
from traceprof.model.trace import Trace

US = 1000
COLUMNS = ("start_ns", "end_ns", "process", "thread", "name")


def function(name: str, start_us: int, end_us: int, **more: Any) -> dict[str, Any]:
    """Return a call of a Python function."""
    return complete("python_function", name, start_us * US, end_us * US, **more)


def trace_of(path: Path, *functions: dict[str, Any], **header: Any) -> Trace:
    """Return the trace of an operator at 1000–3000 µs, a kernel until 4000 µs, and functions."""
    work = [
        complete("cpu_op", "aten::mm", 1000 * US, 3000 * US),
        kernel("gemm", 3500 * US, 4000 * US),
    ]
    return read(write(path / "t.json", [*functions, *work], **header), ReadOptions())


def test_long_calls_become_rows_within_the_time_of_the_other_rows(tmp_path: Path) -> None:
    trace = trace_of(
        tmp_path,
        function("train.py(1): <module>", 10, 9000),
        function("train.py(5): load", 1100, 1150),
        function("train.py(7): short", 1200, 1249),
        function("<built-in method item of Tensor object at 0x7f1>", 2000, 2500),
        function("nn.Module: Linear_0", 2600, 2601),
    )
    assert plain(trace.functions.to_frame(), *COLUMNS) == [
        (0, 3000 * US, HOST, THREAD, "train.py(1): <module>"),
        (100 * US, 150 * US, HOST, THREAD, "train.py(5): load"),
        (1000 * US, 1500 * US, HOST, THREAD, "<built-in method item of Tensor>"),
    ]
    assert plain(trace.ranges.to_frame(), "name", "domain") == [("Linear_0", "nn.Module")]
    assert "functions" in trace.recorded
    assert not trace.info.warnings


def test_functions_change_neither_time_zero_nor_the_span(tmp_path: Path) -> None:
    alone = trace_of(tmp_path)
    with_stack = trace_of(tmp_path, function("train.py(1): <module>", 10, 9000))
    assert with_stack.span == alone.span
    assert with_stack.kernels["start_ns"].tolist() == alone.kernels["start_ns"].tolist()
    assert with_stack.info.utc_epoch_ns == alone.info.utc_epoch_ns
    assert "functions" not in alone.recorded


def test_calls_of_other_programs_are_ignored(tmp_path: Path) -> None:
    trace = trace_of(tmp_path, function("tqdm/_monitor.py(60): run", 10, 9000, pid=0, tid=0))
    assert trace.functions.empty
    assert trace.processes["process"].tolist() == [HOST]


def test_a_trace_with_stacks_but_without_long_calls_recorded_them(tmp_path: Path) -> None:
    trace = trace_of(tmp_path, function("train.py(7): short", 1200, 1201), with_stack=1)
    assert trace.functions.empty
    assert "functions" in trace.recorded


def test_functions_alone_are_no_trace(tmp_path: Path) -> None:
    path = write(tmp_path / "t.json", [function("train.py(1): <module>", 10, 9000)])
    with pytest.raises(TraceError, match="is empty; profiling stopped"):
        read(path, ReadOptions())
