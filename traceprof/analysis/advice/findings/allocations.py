"""Memory that is allocated and freed in the loop."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from traceprof.analysis.advice.findings.base import Finding, Rule
from traceprof.analysis.advice.findings.claims import Kind
from traceprof.analysis.advice.findings.context import Context
from traceprof.analysis.advice.findings.stalling_calls import calls_named, idle_in_calls
from traceprof.model.results import Note

__all__ = ["RULE"]

_LEAST: Final = 0.01
_ALLOCATES: Final = re.compile(
    r"^(cuda|cu|hip)(Malloc(?!Async|FromPool)|Free(?!Async)|Mem(Host)?Alloc(?!Async)|MemFree(?!Async)"
    r"|Host(Alloc|Register|Unregister|Malloc|Free)|Mem(Create|Map|Unmap|Release|SetAccess|Address))"
)


def _check(context: Context) -> Iterator[Finding]:
    calls = calls_named(context, _ALLOCATES)
    claim = idle_in_calls(context, calls)
    share = context.share(claim)
    if share < _LEAST:
        return
    is_loop = bool(len(context.steps))
    counts = calls["name"].value_counts().head(3)
    yield Finding(
        title=Note.of(
            "memory is allocated"
            + (" in the loop" if is_loop else "")
            + ": devices are idle {share:ratio} of the time in these calls",
            share=share,
        ),
        claims=(claim,),
        kind=Kind.MEASURED if is_loop else Kind.ONCE,
        once_ns=None if is_loop else round(claim.total_ns / max(1, len(context.places))),
        evidence=tuple(
            context.counted(int(n), "call(s) of {name}", is_of_host=True, name=str(name))
            for name, n in counts.items()
        ),
        action=context.advice(
            pytorch="keep the sizes of tensors the same from step to step, leave memory free for "
            "the caching allocator (PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True), do not call "
            "torch.cuda.empty_cache()",
            other="allocate once before the loop, or from a pool (cudaMallocAsync)",
        ),
        caveat="the first steps allocate in any case: look at later ones",
        window=context.longest_row(calls),
    )


RULE = Rule(
    name="allocations",
    subject="allocation",
    summary="memory that is allocated in the loop",
    needs=("kernels", "api_calls"),
    show="idle",
    check=_check,
)
