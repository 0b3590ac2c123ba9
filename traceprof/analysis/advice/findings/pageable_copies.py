"""Asynchronous copies of pageable memory: they are staged, and block the host."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import pandas as pd

from traceprof.analysis.advice.findings.base import Finding, Rule
from traceprof.analysis.advice.findings.claims import Kind
from traceprof.analysis.advice.findings.context import Context
from traceprof.model.results import Note

__all__ = ["RULE", "asynchronous", "of_pageable_memory", "pageable_finding"]

_LEAST: Final = 0.01


def of_pageable_memory(copies: pd.DataFrame) -> pd.DataFrame:
    """Return the copies to or from pageable memory of the host."""
    pageable = (copies["src_kind"] == "pageable") | (copies["dst_kind"] == "pageable")
    return copies[pageable & copies["direction"].isin(["h2d", "d2h"])]


def asynchronous(copies: pd.DataFrame) -> pd.DataFrame:
    """Return the copies by calls that are asynchronous, or were if the memory were pinned."""
    return copies[copies["api"].astype(str).str.contains("Async")]


def pageable_finding(context: Context, copies: pd.DataFrame, kind: str) -> Finding | None:
    """Return the finding on ``copies`` of pageable memory, None where they cost little."""
    claim = context.left(context.exposed(copies))
    share = context.share(claim)
    if copies.empty or share < _LEAST:
        return None
    lengths = copies["end_ns"] - copies["start_ns"]
    n_bytes = int(copies["n_bytes"].clip(lower=0).sum())
    rate = n_bytes / (int(lengths.sum()) / 1e9) if int(lengths.sum()) else None
    return Finding(
        title=Note.of(
            f"{kind}: {{share:ratio}} of the time in copies that nothing hides", share=share
        ),
        claims=(claim,),
        kind=Kind.BOUNDED,
        evidence=(
            context.counted(
                len(copies),
                "cop(y|ies) of pageable memory",
                " ({moved:bytes} in all, at {rate:bytes/s})",
                moved=n_bytes,
                rate=rate,
            ),
            context.timed(int(copies["call_ns"].sum()), "the calls take ", " of host time"),
        ),
        action=context.advice(
            pytorch="pin the memory (DataLoader(pin_memory=True), tensor.pin_memory()) and copy "
            "with non_blocking=True on a stream of its own",
            other="pin the memory (cudaMallocHost, cudaHostRegister) and copy with "
            "cudaMemcpyAsync on a stream of its own",
        ),
        caveat="pinned memory is taken from the host's and costs time to allocate: reuse it",
        window=context.longest_row(copies),
    )


def _check(context: Context) -> Iterator[Finding]:
    copies = context.copies(of_pageable_memory)
    found = pageable_finding(
        context,
        asynchronous(copies),
        "asynchronous copies of pageable memory",
    )
    if found:
        yield found


RULE = Rule(
    name="pageable_copies",
    subject="pinned memory",
    summary="asynchronous copies of pageable memory",
    needs=("copies", "api_calls"),
    show="copies",
    check=_check,
)
