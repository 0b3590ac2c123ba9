"""Executions of extreme shape, of any size: what takes long where something is quadratic."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Final

from tests.builders import TraceBuilder
from tests.formats.kineto_file import complete, on_device, write
from tests.formats.test_contract import NCCL, write_as_kineto, write_as_nvprof
from traceprof.formats.nsys.writer import write_nsys
from traceprof.model.trace import Trace

Shape = Callable[[Path, int], Path]
"""Writes an execution of about ``n`` events into a folder; returns the file, or the folder."""

_GAP_NS: Final = 1_000


def nested_ranges(folder: Path, n: int) -> Path:
    """Nested ranges."""
    return _nsys(folder, _nested(n))


def nested_ranges_of_kineto(folder: Path, n: int) -> Path:
    """Nested ranges in a torch.profiler file."""
    path = folder / "trace.json"
    write_as_kineto(_nested(n), path)
    return path


def nested_ranges_of_nvprof(folder: Path, n: int) -> Path:
    """Nested ranges in an nvprof file."""
    path = folder / "trace.nvprof"
    write_as_nvprof(_nested(n), path)
    return path


def crossing_ranges(folder: Path, n: int) -> Path:
    """Overlapping ranges, none inside another."""
    builder = _some_work(n)
    for number in range(n):
        builder.range(f"r{number % 7}", number, n + number + 1, kind="start_end")
    return _nsys(folder, builder.build())


def devices(folder: Path, n: int) -> Path:
    """One device per kernel."""
    return _nsys(folder, _kernels(n, lambda number: {"device": number}))


def streams(folder: Path, n: int) -> Path:
    """One stream per kernel."""
    return _nsys(folder, _kernels(n, lambda number: {"stream": number}))


def streams_of_kineto(folder: Path, n: int) -> Path:
    """One stream per kernel in a torch.profiler file."""
    path = folder / "trace.json"
    write_as_kineto(_kernels(n, lambda number: {"stream": number}), path)
    return path


def processes(folder: Path, n: int) -> Path:
    """One process per kernel."""
    return _nsys(folder, _kernels(n, lambda number: {"process": number + 1}))


def threads(folder: Path, n: int) -> Path:
    """One thread per launch and per range."""
    builder = TraceBuilder()
    for number in range(n):
        at = number * _GAP_NS
        builder.range("forward", at, at + 900, thread=number)
        builder.kernel("gemm", at + 100, at + 800, launched_ns=(at + 10, at + 20), thread=number)
    return _nsys(folder, builder.build())


def names_of_kernels(folder: Path, n: int) -> Path:
    """One name per kernel."""
    builder = TraceBuilder()
    for number in range(n):
        at = number * _GAP_NS
        launched_ns = (max(0, at - 30), max(1, at - 20))
        builder.kernel(f"void kernel_{number}<float, {number}>(int)", at, at + 900,
                       launched_ns=launched_ns)  # fmt: skip
    return _nsys(folder, builder.build())


def names_of_ranges(folder: Path, n: int) -> Path:
    """One name per range, with a kernel in each range."""
    builder = TraceBuilder()
    for number in range(n):
        at = number * _GAP_NS
        builder.range(f"layer.{number}", at, at + 900)
        builder.kernel("gemm", at + 100, at + 800, launched_ns=(at + 10, at + 20))
    return _nsys(folder, builder.build())


def long_name(folder: Path, n: int) -> Path:
    """Names of N kilobytes for kernels, ranges, and threads."""
    name, builder = "k" * (n * 1000), TraceBuilder()
    for number in range(50):
        at = number * _GAP_NS
        builder.range(name if number % 2 else "forward", at, at + 900)
        builder.kernel(name if number % 3 else "gemm", at + 100, at + 800,
                       launched_ns=(at + 10, at + 20))  # fmt: skip
    return _nsys(folder, builder.thread_name(1, name).build())


def steps(folder: Path, n: int) -> Path:
    """Steps with one kernel each."""
    builder = TraceBuilder()
    for number in range(n):
        at = number * _GAP_NS
        builder.step(at, at + 990, number).phase("forward", at + 5, at + 500)
        builder.kernel("gemm", at + 100, at + 800, launched_ns=(at + 10, at + 20))
    return _nsys(folder, builder.build())


def one_correlation(folder: Path, n: int) -> Path:
    """Launches and kernels with the same correlation id."""
    builder = TraceBuilder()
    for number in range(n):
        at = number * _GAP_NS
        builder.kernel("gemm", at + 100, at + 800, launched_ns=(at + 10, at + 20), correlation=7)
    return _nsys(folder, builder.build())


def overlapping_kernels(folder: Path, n: int) -> Path:
    """Kernels and copies at the same time."""
    builder = TraceBuilder()
    for number in range(n):
        end = 3 * n - number
        if number % 3:
            builder.kernel(f"gemm{number % 5}", number, end, stream=number % 50,
                           launched_ns=(number // 2, number // 2 + 1))  # fmt: skip
        else:
            builder.copy("h2d", number, end, n_bytes=number, stream=number % 50)
    return _nsys(folder, builder.build())


def one_instant(folder: Path, n: int) -> Path:
    """Kernels, ranges, and calls of zero duration at the same time."""
    builder = TraceBuilder().kernel("gemm", 0, 1_000_000, launched_ns=(0, 1))
    for _ in range(n):
        builder.kernel("zero", 500, 500, launched_ns=(400, 400)).range("r", 400, 400)
    return _nsys(folder, builder.build())


def collectives(folder: Path, n: int) -> Path:
    """Collectives with one communicator each."""
    events = []
    for number in range(n):
        at = number * _GAP_NS
        own = {"Process Group Name": str(number), "Group size": 2, "dtype": "Float"}
        own |= {"Collective name": "allreduce", "In msg nelems": 8, "Out msg nelems": 8}
        own |= {"Process Group Description": f"g{number}", "Process Group Ranks": "[0, 1]"}
        events.append(complete("cuda_runtime", "cudaLaunchKernel", at, at + 9,
                               args={"correlation": number + 1}))  # fmt: skip
        events.append(on_device("kernel", NCCL, at + 50, at + 900, correlation=number + 1, **own))
    return write(folder / "trace.json", events, distributedInfo=_distributed(n))


def collectives_of_one(folder: Path, n: int) -> Path:
    """Collectives of one communicator."""
    events = []
    for number in range(n):
        at = number * _GAP_NS
        own = {"Process Group Name": "0", "Process Group Description": "default_pg"}
        own |= {"Collective name": "allreduce", "Process Group Ranks": "[0, 1]"}
        more = {"Group size": 2, "dtype": "Float", "In msg nelems": 8 + number % 7}
        events.append(complete("cuda_runtime", "cudaLaunchKernel", at, at + 9,
                               args={"correlation": number + 1}))  # fmt: skip
        events.append(on_device("kernel", NCCL, at + 50, at + 900, correlation=number + 1,
                                **own, **more))  # fmt: skip
    return write(folder / "trace.json", events, distributedInfo=_distributed(1))


def copies(folder: Path, n: int) -> Path:
    """Copies of N sizes between N pairs of devices."""
    builder = TraceBuilder()
    for number in range(n):
        at = number * _GAP_NS
        builder.copy("p2p", at, at + 900, n_bytes=number, src_device=number % 300,
                     dst_device=number // 300, launched_ns=(at, at + 5))  # fmt: skip
    return _nsys(folder, builder.build())


def waits(folder: Path, n: int) -> Path:
    """Nested host synchronizations, and samples of N counters."""
    builder = _some_work(n)
    for number in range(n):
        builder.sync("stream", number, 2 * n - number, stream=number)
        builder.api_call("cudaStreamSynchronize", number, 2 * n - number, thread=number % 9)
        builder.sample(f"metric {number}", number, 0.5)
        builder.host_op(f"aten::op{number}", number, 2 * n - number)
        builder.mark(f"mark {number}", number).setting(f"NAME{number}", "x")
        builder.overhead(f"o{number}", number, n)
    return _nsys(folder, builder.build())


def operators(folder: Path, n: int) -> Path:
    """Nested PyTorch operators that launch one kernel each."""
    events = []
    for number in range(n):
        events.append(complete("cpu_op", f"aten::op{number % 9}", number, 4 * n - number,
                               args={"Sequence number": number, "Fwd thread id": 0}))  # fmt: skip
        events.append(complete("cuda_runtime", "cudaLaunchKernel", n + number, n + number + 1,
                               args={"correlation": number + 1}))  # fmt: skip
        at = 5 * n + 10 * number
        events.append(on_device("kernel", "gemm", at, at + 9, correlation=number + 1))
        events.append({"ph": "i", "cat": "cpu_instant_event", "name": "[memory]", "s": "t",
                       "pid": 4242, "tid": 4243, "ts": number,
                       "args": {"Addr": number, "Bytes": 64, "Device Type": 1, "Device Id": 0,
                                "Total Allocated": 64 * number}})  # fmt: skip
    return write(folder / "trace.json", events)


def wide_event(folder: Path, n: int) -> Path:
    """One event with N arguments, and long texts."""
    event = on_device("kernel", "gemm", 0, 1000, **{f"a{number}": number for number in range(n)})
    event["args"]["Input Dims"] = [[number] for number in range(n)]
    return write(folder / "trace.json", [event, on_device("kernel", "g" * n, 2000, 3000)],
                 **{f"key{number}": [number] for number in range(n)})  # fmt: skip


def ranks_of_a_manifest(folder: Path, n: int) -> Path:
    """A manifest with N ranks, of which two exist."""
    for rank in (0, 1):
        write_nsys(_work(4), folder / f"rank{rank}.sqlite")
    entries = [{"file": f"rank{rank}.sqlite", "rank": rank, "host": f"h{rank}"}
               for rank in range(n)]  # fmt: skip
    path = folder / "manifest.json"
    path.write_text(json.dumps({"traceprof_run": 1, "world_size": n, "ranks": entries}))
    return path


def files_of_a_folder(folder: Path, n: int) -> Path:
    """A folder with N other files."""
    write_nsys(_work(4), folder / "rank0.sqlite")
    for number in range(n):
        (folder / f"other{number}.txt").touch()
    return folder


def repeated_words(folder: Path, n: int) -> Path:
    """Names with N incomplete matches of regular expressions."""
    builder = TraceBuilder()
    for number, words in enumerate(_WORDS):
        at, name = 1_000 * number, words * (n // len(_WORDS))
        builder.kernel(name, at + 50, at + 900, launched_ns=(at, at + 20))
        builder.range(name, at, at + 990)
        builder.api_call(name, at + 30, at + 40)
    return _nsys(folder, builder.build())


def document_behind_another(folder: Path, n: int) -> Path:
    """A torch.profiler file with N events after a small file."""
    path, behind = folder / "trace.json", folder / "behind.json"
    write_as_kineto(_work(40), path)
    write_as_kineto(_work(10 * n), behind)
    path.write_bytes(path.read_bytes() + behind.read_bytes())
    behind.unlink()
    return path


_WORDS: Final = (
    *("cudaLaunch", "multi_tensor_apply", "void at::", "step 1 of ", ", sizes = [", "[clone "),
    *("copy cache ", "xmma_f32_", "_GLOBAL__N_", "topk sampl", "ncclRing", "Epoch 1: |1/1"),
)

SHAPES: Final[tuple[Shape, ...]] = (
    *(nested_ranges, nested_ranges_of_kineto, nested_ranges_of_nvprof, crossing_ranges),
    *(devices, streams, streams_of_kineto, processes, threads, names_of_kernels),
    *(names_of_ranges, long_name, steps, one_correlation, overlapping_kernels, one_instant),
    *(
        collectives,
        collectives_of_one,
        copies,
        waits,
        operators,
        wide_event,
        ranks_of_a_manifest,
        files_of_a_folder,
    ),
    *(repeated_words, document_behind_another),
)


def _nested(n: int) -> Trace:
    builder = _some_work(n)
    for number in range(n):
        builder.range(f"r{number % 7}", number, 2 * n - number)
    return builder.build()


def _work(n: int) -> Trace:
    return _some_work(n).build()


def _some_work(n: int) -> TraceBuilder:
    builder = TraceBuilder()
    for number in range(max(4, n // 10)):
        at = 10 * number
        builder.kernel("gemm", at + 5, at + 9, launched_ns=(at, at + 2))
    return builder


def _kernels(n: int, place: Callable[[int], dict[str, int]]) -> Trace:
    builder = TraceBuilder()
    for number in range(n):
        at = number * _GAP_NS
        builder.kernel("gemm", at + 50, at + 900, launched_ns=(at, at + 20), **place(number))
    return builder.build()


def _distributed(n: int) -> dict[str, object]:
    groups = [{"pg_name": str(one), "pg_desc": f"g{one}", "ranks": [0, 1], "pg_size": 2}
              for one in range(n)]  # fmt: skip
    return {"backend": "nccl", "rank": 0, "world_size": 2, "pg_config": groups}


def _nsys(folder: Path, trace: Trace) -> Path:
    path = folder / "trace.sqlite"
    write_nsys(trace, path)
    return path
