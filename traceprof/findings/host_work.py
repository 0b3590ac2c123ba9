"""Kinds of work on the CPU while the GPU is idle, and the advice on each."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final

import numpy as np

from traceprof.findings.claims import (
    Times,
)
from traceprof.findings.context import Context
from traceprof.findings.gaps import names_of_gaps
from traceprof.measures.device.times import devices_of_processes
from traceprof.measures.idle.charges import NOTHING
from traceprof.measures.rows import are_named, ints, lengths_of, unions_by
from traceprof.model.grouping import rows_by_values
from traceprof.model.intervals import Intervals
from traceprof.model.trace import RecordedBy, Trace
from traceprof.names.functions import is_function

_MAIN_RATIO: Final = 0.5
_LAUNCHING, DRIVER, FILES = "launching", "driver", "files"
OPERATORS, COMPUTING, _RUNTIME = "operators", "computing", "runtime"
_COMPUTES: Final = re.compile(
    r"^(aten|torchvision|torchaudio|fbgemm)::(?!(as_strided|narrow|slice|select|view(_as)?|detach"
    r"|expand(_as)?|permute|transpose|t|(unsafe_)?split(_with_sizes)?|tensor_split|chunk|unbind"
    r"|(un)?squeeze|alias|diagonal|unfold|movedim)$)"
)
"""Operators that compute; a view launches nothing, on a GPU either."""
_MIN_COMPUTING_NS: Final = 500_000
"""Minimum duration of an operator that computes on the CPU. An operator that launches work takes
less, and its calls of the driver are known."""
_KINDS: Final = (
    (_LAUNCHING, re.compile(r"^(cuda|cu|hip)\w*(Launch|Memcpy|Memset)")),
    (DRIVER, re.compile(r"^(cuda|cu|hip|nv|nccl|rccl|cublas|cudnn|miopen|rocblas)[A-Z_]\w*$")),
    (
        FILES,
        re.compile(
            r"^(p?(read|write)v?(64)?|f(read|write|open|close|sync|getc|puts?)|open(64)?"
            r"|send\w*|recv\w*|mmap(64)?|munmap|MPI_\w+)$"
        ),
    ),
    (OPERATORS, re.compile(r"^[a-z_]\w*(::\w+)+(: [\w:]+)?$|^Optimizer\.(step|zero_grad)#")),
)
"""Kinds of names and their patterns; the first pattern that matches counts."""
_XLA_NAMES: Final = re.compile(
    r"^(\[[^]]*\] )?((?!Iterator)[A-Z]\w*(::\w+)+|(PJRT_|PjRt|Pjit|Tfrt|Xla|Thunk)\w*|DevicePut\w*"
    r"|ThenExecuteCallback|\w+:XLA .*|cpp_pjit\w*|shard_args|command_buffer\w*(::\w+)?"
    r"|ParseArguments|(Make|Allocate)OutputBuffers\w*|Build buffer allocations"
    r"|Memory(All|Deall)ocation|ComputeSemaphoreAcquire|BUFFER_FLUSH"
    r"|(Handle input|Wait for (donation|usage) hold)s?\b.*)"
)
"""Names of the XLA runtime's own work; other names are from Python or the program."""
_XLA_RECORDERS: Final = (RecordedBy.JAX, RecordedBy.XLA)
WORDS: Final = {
    _LAUNCHING: "slow launch calls",
    DRIVER: "driver and library calls",
    FILES: "reading, writing, and sending data",
    OPERATORS: "operators",
    COMPUTING: "operators that compute on the CPU",
    _RUNTIME: "the XLA runtime",
    NOTHING: "not recorded",
}
_ADVICE_BY_KIND: Final = {
    _LAUNCHING: "Run every kernel once before you measure, or set `CUDA_MODULE_LOADING=EAGER`: the "
    "first launch of a kernel loads its code. If later launches are slow as well, check locks, "
    "WSL, and other jobs.",
    DRIVER: "Create contexts, streams, communicators, and handles once, before the loop.",
    FILES: "Read, write, and send data in another thread during GPU work.",
    OPERATORS: "Reduce the CPU work per kernel: use `torch.compile`, use fewer and larger "
    "operators, and avoid loops over views and slices.",
    COMPUTING: "These operators work on CPU tensors. Create the tensors on the GPU (the argument "
    "`device`), or compute in the workers of the DataLoader.",
}
ON_FUNCTION: Final = (
    "Call this function less often, make it faster, or run it in another thread or process while "
    "the GPU works."
)
_RUN_ONCE_BEFORE: Final = (
    "Run one step before you measure, or analyze later steps: the runtime does this work once."
)


def main_work(context: Context, times: Times) -> str:
    """Return the kind of host work with most of the idle ``times``, or "" if none has most."""
    charged, _ = names_of_gaps(context, times)
    sums = Counter[str]()
    has_xla = context.software.recorder in _XLA_RECORDERS
    is_called = np.fromiter(map(is_function, charged["name"]), np.bool_, len(charged))
    names = np.where(is_called, charged["operator"], charged["name"])
    for name, ns in zip(names, charged["ns"].tolist(), strict=True):
        sums[_RUNTIME if has_xla and _XLA_NAMES.search(name) else _kind_of(name)] += ns
    kind = next((kind for kind, ns in sums.items() if ns > _MAIN_RATIO * sums.total()), "")
    if not kind:  # operators, and their calls of the driver
        inside = np.array([_kind_of(name) == OPERATORS for name in charged["operator"]], np.bool_)
        is_inside = charged["ns"][inside].sum() > _MAIN_RATIO * sums.total()
        kind = OPERATORS if is_inside else ""
    if kind == OPERATORS and _computing_ns(context, times) > _MAIN_RATIO * sums.total():
        return COMPUTING
    return kind


def _computing_ns(context: Context, times: Times) -> int:
    """Return the part of the ``times`` of devices in which operators compute on the CPU."""
    return sum(
        (times[device] & time).total_ns
        for of_process, devices in context.ranks.each(_cpu_operators)
        for process, time in of_process.items()
        for device in devices.get(process, ())
        if device in times
    )


def _cpu_operators(part: Trace) -> tuple[dict[int, Intervals], Mapping[int, Iterable[int]]]:
    """Return the times of operators that compute on the CPU, and the devices, both by process.

    These operators last `_MIN_COMPUTING_NS` or more without a call of CUDA or HIP.
    """
    operators = part.host_ops.take(lengths_of(part.host_ops) >= _MIN_COMPUTING_NS)
    operators = operators.take(are_named(operators["name"], _COMPUTES))
    calls = part.api_calls
    calls_by_thread = rows_by_values(calls["process"], calls["thread"])
    on_cpu = np.zeros(len(operators), np.bool_)
    for thread, rows in rows_by_values(operators["process"], operators["thread"]).items():
        if thread in calls_by_thread:
            starts = np.sort(ints(calls, "start_ns", rows=calls_by_thread[thread])[0])
            first, last = (
                np.searchsorted(starts, column)
                for column in ints(operators, "start_ns", "end_ns", rows=rows)
            )
            on_cpu[rows] = first == last
    return unions_by(operators.take(on_cpu)), devices_of_processes(part)


def _kind_of(name: str) -> str:
    """Return the kind of a name, or "" if no pattern matches."""
    if name == NOTHING:
        return NOTHING
    return next((kind for kind, pattern in _KINDS if pattern.search(name)), "")


def is_call(name: str) -> bool:
    """Return whether a name is a call of the driver or of a library."""
    return _kind_of(name) in (_LAUNCHING, DRIVER)


def is_operator(name: str) -> bool:
    """Return whether a name is an operator or a call."""
    return _kind_of(name) in (_LAUNCHING, DRIVER, OPERATORS)


def advice_on_call(name: str) -> str:
    """Return the advice on calls that launch kernels, of the driver, and on files; else ""."""
    kind = _kind_of(name)
    is_known = kind in (DRIVER, FILES) or (kind == _LAUNCHING and "Launch" in name)
    return _ADVICE_BY_KIND[kind] if is_known else ""


def advice_for(context: Context, kind: str, alone: str) -> str:
    """Return the advice for host work of a ``kind``; ``alone`` is not empty for a single gap."""
    python = "Python code" if context.software.has_python else "CPU code"
    where = "before the GPU work or to" if alone else "out of the loop or to"
    where, gaps = f"{where} another thread", "this gap" if alone else "these gaps"
    if kind in _ADVICE_BY_KIND and (kind != OPERATORS or context.software.has_pytorch):
        return _ADVICE_BY_KIND[kind]
    if kind == _RUNTIME:
        return _RUN_ONCE_BEFORE if alone else context.software.recorder.how_to("runtime")
    if kind == NOTHING:
        how = context.software.recorder.how_to("host")
        return f"Record what the CPU does there ({how}). Then move this {python} {where}."
    examples = (
        "logging, checkpoints, metrics, batch building, allocation, file I/O"
        if context.is_training
        else "logging, file I/O, allocation, input preparation"
    )
    software, recorded = context.software, context.ranks.recorded
    by_stack = software.recorder is RecordedBy.TORCH and "functions" not in recorded
    how = "; profile(with_stack=True) names it" if by_stack else ""
    return f"Find the {python} in {gaps} ({examples}{how}), and move it {where}."
