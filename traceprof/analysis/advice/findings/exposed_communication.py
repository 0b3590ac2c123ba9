"""Communication that no compute hides."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from traceprof.analysis.advice.findings.base import Finding, Rule
from traceprof.analysis.advice.findings.claims import Kind
from traceprof.analysis.advice.findings.context import Context
from traceprof.analysis.advice.findings.hiding import hideable
from traceprof.measures.workload import COMMUNICATION
from traceprof.model.results import Note
from traceprof.names.kernels import short_name

__all__ = ["RULE"]

_LEAST: Final = 0.05
_NEXT_TO_NOTHING: Final = 0.001

_BY_OPERATION: Final = (
    (
        re.compile(r"(?i)all_?reduce"),
        "all-reduce: DDP's bucket_cap_mb, no_sync() while gradients accumulate, 16 bits",
    ),
    (
        re.compile(r"(?i)all_?gather|reduce_?scatter"),
        "all-gather, reduce-scatter: FSDP's prefetching, fewer ranks per shard",
    ),
    (
        re.compile(r"(?i)all_?to_?all|send_?recv"),
        "all-to-all, send: exchange the next (micro-)batch meanwhile, fewer bits",
    ),
)
"""What helps in PyTorch against each operation."""


def _check(context: Context) -> Iterator[Finding]:
    if context.kind == COMMUNICATION:
        return  # nothing is computed that could hide it
    exposed = {device: time.communication - time.compute for device, time in context.times.items()}
    claim = context.left(exposed)
    share = context.share(claim)
    if share < _LEAST:
        return
    claims = hideable(context, claim)
    saved = sum(context.share(own) * own.saved_ratio for own in claims)
    is_bound = saved < share * (1 - _NEXT_TO_NOTHING)
    total = sum((time & context.typical).total_ns for time in exposed.values())
    others = total / context.judged_ns - share
    busy = sum((t.communication & context.typical).total_ns for t in context.times.values())
    whole = busy / context.judged_ns
    own = context.kernels.communication
    top = own.nlargest(2, "total_ns")
    longest = context.kernels.longest_communication
    yield Finding(
        title=Note.of(
            "exposed communication: {share:ratio} of the time no compute hides it", share=share
        ),
        claims=claims,
        kind=Kind.BOUNDED if saved > _NEXT_TO_NOTHING else Kind.NONE,
        evidence=(
            Note.of(
                "communication takes {whole:ratio} of the time, compute hides {hidden:ratio} of it"
                + (", {others:ratio} of the time belongs to other findings" if others else ""),
                whole=whole,
                hidden=1 - (share + others) / whole,
                others=others,
            ),
            *((_on_compute(saved),) if is_bound else ()),
            context.counted(int(own["count"].sum()), "communication kernel(s)"),
            *(
                context.timed(ns, after=" in {name}", name=short_name(str(name)))
                for name, ns in zip(top["name"], top["total_ns"].tolist(), strict=True)
            ),
        ),
        action=context.advice(
            pytorch=_for_pytorch(context, [str(name) for name in top["name"]]),
            other="overlap it with compute, on a stream of its own; send less, in fewer bits, or "
            "less often",
        ),
        caveat=(
            "the time includes waiting for the other ranks: with the traces of all of them a slow "
            "rank can be told from a slow network"
            if len(context.ranks) == 1 and len(context.devices) == 1
            else "in the first collective that is shared waiting cannot be told from sending"
        ),
        window="" if longest is None else context.window_text(*longest),
    )


def _on_compute(saved: float) -> Note:
    return Note.of(
        "the compute of the same steps that hides none yet takes {saved:ratio} of the time: no "
        "more can hide behind it; the rest is saved by sending less",
        saved=saved,
    )


def _for_pytorch(context: Context, names: list[str]) -> str:
    """Return what helps against the operations whose kernels take the most time."""
    if not context.is_training:
        return (
            "send less (fewer ranks per layer, fewer bits), fuse it with the matrix work before or "
            "after it, or run two micro-batches whose compute hides it"
        )
    fits = [advice for pattern, advice in _BY_OPERATION if any(map(pattern.search, names))]
    return "overlap it with compute, on its own stream; " + "; ".join(
        fits or [advice for _, advice in _BY_OPERATION[:2]]
    )


RULE = Rule(
    name="exposed_communication",
    subject="communication",
    summary="communication that compute does not hide",
    needs=("kernels",),
    show="collectives",
    check=_check,
)
