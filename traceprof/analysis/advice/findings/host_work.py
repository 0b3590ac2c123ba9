"""What kind of work keeps the host busy in gaps, by what they are charged to, and what helps."""

from __future__ import annotations

import re
from typing import Final

from traceprof.analysis.advice.findings.claims import Times
from traceprof.analysis.advice.findings.context import Context
from traceprof.analysis.advice.findings.named_gaps import names_of_gaps
from traceprof.measures.idle.charges import NOTHING
from traceprof.values import dataclass

__all__ = ["HostWork", "main_work"]

_MOST: Final = 0.5
_LAUNCHING, _DRIVER, _FILES, _OPERATORS = "launching", "driver", "files", "operators"
_KINDS: Final = (
    (_LAUNCHING, re.compile(r"^(cuda|cu|hip)\w*(Launch|Memcpy|Memset)")),
    (_DRIVER, re.compile(r"^(cuda|cu|hip|nv|nccl|rccl|cublas|cudnn|miopen|rocblas)[A-Z_]\w*$")),
    (
        _FILES,
        re.compile(
            r"^(p?(read|write)v?(64)?|f(read|write|open|close|sync|getc|puts?)|open(64)?"
            r"|send\w*|recv\w*|mmap(64)?|munmap|MPI_\w+)$"
        ),
    ),
    (_OPERATORS, re.compile(r"^[a-z_]\w*::\w+$")),
)
"""What names are, by their look; the first that fits counts."""


@dataclass(frozen=True, slots=True)
class HostWork:
    """What the host mostly does in some gaps ("" where nothing is most of it), and what helps."""

    what: str
    action: str


def main_work(context: Context, times: Times) -> HostWork:
    """Return what the host mostly does in the idle ``times`` of devices."""
    charged, _ = names_of_gaps(context, times)
    kinds = charged["name"].map(_kind_of)
    sums = charged["ns"].groupby(kinds).sum()
    whole = int(charged["ns"].sum())
    most = next((str(kind) for kind, ns in sums.items() if ns > _MOST * whole), "")
    return HostWork(_WORDS.get(most, ""), _action(context, most))


def _kind_of(name: object) -> str:
    if name == NOTHING:
        return NOTHING
    return next((kind for kind, pattern in _KINDS if pattern.search(str(name))), "")


_WORDS: Final = {
    _LAUNCHING: "in launching calls that take long",
    _DRIVER: "in calls of the driver and its libraries",
    _FILES: "reading, writing and sending",
    _OPERATORS: "in operators",
    NOTHING: "not recorded",
}


def _action(context: Context, kind: str) -> str:
    python = "Python code" if context.software.has_python else "code of the host"
    if kind == _LAUNCHING:
        return context.worded(
            "the first launch of a kernel loads its code: run all once before measuring, or set "
            "CUDA_MODULE_LOADING=EAGER; where later ones are slow, too: locks, WSL, other jobs"
        )
    if kind == _DRIVER:
        return "create contexts, streams, communicators and handles once, before the loop"
    if kind == _FILES:
        return "read, write and send in another thread while the device works"
    if kind == _OPERATORS and context.software.has_pytorch:
        return (
            "have the host do less for each kernel: torch.compile, fewer and larger operators, no "
            "loops over views and slices"
        )
    if kind == NOTHING:
        return (
            f"record what the host does there ({_how_to_see(context)}), then move that {python} "
            "out of the loop or to another thread"
        )
    examples = (
        "logging, checkpoints, metrics, building batches, allocation, files"
        if context.is_training
        else "logging, files, allocation, preparing input"
    )
    return (
        f"find the {python} in these gaps ({examples}) and move it out of the loop or to another "
        "thread"
    )


def _how_to_see(context: Context) -> str:
    if context.software.recorder == "nsys":
        return "NVTX ranges, or nsys profile --sample=process-tree --trace=cuda,nvtx,osrt"
    if context.software.recorder == "kineto":
        return "record_function() around its parts, or profile(with_stack=True)"
    return "mark its parts by ranges (traceprof.range)"
