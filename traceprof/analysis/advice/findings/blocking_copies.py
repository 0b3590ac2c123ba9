"""Copies that return only when they are done."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import pandas as pd

from traceprof.analysis.advice.findings.base import Finding, Rule
from traceprof.analysis.advice.findings.claims import Kind
from traceprof.analysis.advice.findings.context import Context
from traceprof.model.results import Note

__all__ = ["RULE", "blocking_copies_of"]

_LEAST: Final = 0.02
_STAGED_BYTES: Final = 64_000
"""The runtime stages smaller copies to the device and returns at once."""


def blocking_copies_of(copies: pd.DataFrame) -> pd.DataFrame:
    """Return the copies by ``cudaMemcpy`` and its kin; ``api`` is the name of the call.

    Without those that do not block: small ones to the device, and those inside a device.
    """
    api = copies["api"].astype(str)
    blocking = api.str.match(r"(cuda|hip|cu)Mem") & ~api.str.contains("Async")
    moved = copies["direction"].isin(["h2d", "d2h", "p2p", "h2h"])
    staged = (copies["direction"] == "h2d") & (copies["n_bytes"] <= _STAGED_BYTES)
    return copies[blocking & moved & ~staged]


def _check(context: Context) -> Iterator[Finding]:
    copies = context.copies(blocking_copies_of)
    # Those of pageable memory are the findings of another rule.
    pinned = copies[(copies["src_kind"] != "pageable") & (copies["dst_kind"] != "pageable")]
    claim = context.left(context.exposed(pinned))
    share = context.share(claim)
    if pinned.empty or share < _LEAST:
        return
    calls = set(pinned["api"])
    yield Finding(
        title=Note.of("blocking copies: {share:ratio} of the time nothing else runs", share=share),
        claims=(claim,),
        kind=Kind.BOUNDED,
        evidence=(
            context.counted(len(pinned), "cop(y|ies) by {calls}", calls=", ".join(sorted(calls))),
            context.timed(int(pinned["call_ns"].sum()), "the calls take ", " of host time"),
        ),
        action=context.advice(
            pytorch="use cudaMemcpyAsync (non_blocking=True) on a stream of its own",
            other="use cudaMemcpyAsync on a stream of its own",
        ),
        caveat="what the host needs at once has to be waited for",
        window=context.longest_row(pinned),
    )


RULE = Rule(
    name="blocking_copies",
    subject="blocking calls",
    summary="copies that block the host",
    needs=("copies", "api_calls"),
    show="copies",
    check=_check,
)
