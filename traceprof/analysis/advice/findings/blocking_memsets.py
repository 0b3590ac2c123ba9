"""Memsets that return only when they are done."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import pandas as pd

from traceprof.analysis.advice.findings.base import Finding, Rule
from traceprof.analysis.advice.findings.claims import Kind
from traceprof.analysis.advice.findings.context import Context
from traceprof.model.results import Note

__all__ = ["RULE", "blocking_memsets_of"]

_LEAST: Final = 0.02


def blocking_memsets_of(copies: pd.DataFrame) -> pd.DataFrame:
    """Return the memsets of pinned or managed memory by a call that is not asynchronous."""
    api = copies["api"].astype(str)
    blocking = api.str.match(r"(cuda|hip|cu)Memset") & ~api.str.contains("Async")
    waited_for = copies["dst_kind"].isin(["pinned", "managed"])
    return copies[blocking & waited_for & (copies["direction"] == "memset")]


def _check(context: Context) -> Iterator[Finding]:
    memsets = context.copies(blocking_memsets_of)
    claim = context.left(context.exposed(memsets))
    share = context.share(claim)
    if memsets.empty or share < _LEAST:
        return
    yield Finding(
        title=Note.of("blocking memsets: {share:ratio} of the time nothing else runs", share=share),
        claims=(claim,),
        kind=Kind.BOUNDED,
        evidence=(context.counted(len(memsets), "memset(s) of pinned or managed memory"),),
        action=context.worded("use cudaMemsetAsync, or do not clear what is overwritten anyway"),
        caveat="the first touch of managed memory costs time in any case",
    )


RULE = Rule(
    name="blocking_memsets",
    subject="blocking calls",
    summary="memsets that block the host",
    needs=("copies", "api_calls"),
    show="copies",
    check=_check,
)
