"""Asynchronous copies of pinned memory that no compute hides."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import pandas as pd

from traceprof.analysis.advice.findings.base import Finding, Rule
from traceprof.analysis.advice.findings.blocking_copies import blocking_copies_of
from traceprof.analysis.advice.findings.claims import Claim, Kind
from traceprof.analysis.advice.findings.context import Context
from traceprof.analysis.advice.findings.pageable_copies import of_pageable_memory
from traceprof.model.results import Note

__all__ = ["RULE"]

_LEAST: Final = 0.02
_WORTH_A_WORD: Final = 0.001
_MOVES: Final = ("h2d", "d2h", "p2p")


def _check(context: Context) -> Iterator[Finding]:
    own = context.copies(_of_pinned_memory)
    claim = _bounded(context, context.left(context.exposed(own)))
    share = context.share(claim)
    if share < _LEAST:
        return
    # Where hardly any kernel could hide them only moving less helps, and nobody knows how much.
    is_hideable = share * claim.saved_ratio >= _LEAST
    n_bytes = int(own["n_bytes"].clip(lower=0).sum())
    total_ns = int((own["end_ns"] - own["start_ns"]).sum())
    yield Finding(
        title=Note.of(
            "exposed copies: {share:ratio} of the time in asynchronous copies that no kernel hides",
            share=share,
        ),
        claims=(claim,),
        kind=Kind.BOUNDED if is_hideable else Kind.NONE,
        evidence=(
            context.counted(
                len(own),
                "cop(y|ies)",
                " ({moved:bytes} in all, at {rate:bytes/s})",
                moved=n_bytes,
                rate=n_bytes / (total_ns / 1e9) if total_ns else None,
            ),
            *_by_direction(context, own),
            *_hideable(claim.saved_ratio),
        ),
        action=_action(context, is_hideable),
        caveat="what the next kernel needs at once cannot be hidden behind it",
        window=context.longest_row(own),
    )


def _of_pinned_memory(copies: pd.DataFrame) -> pd.DataFrame:
    """Return the asynchronous copies that are no findings of other rules."""
    moves = copies[copies["direction"].isin(_MOVES)]
    others = [*blocking_copies_of(moves).index, *of_pageable_memory(moves).index]
    return moves.drop(index=list(set(others)))


def _hideable(ratio: float) -> Iterator[Note]:
    """Yield how much of the copies kernels could hide, where they could not hide all of them."""
    if ratio < _WORTH_A_WORD:
        yield Note("no kernels run that could hide them")
    elif ratio < 1:
        yield Note.of("there are kernels to hide {hidden:ratio} of that at most", hidden=ratio)


def _action(context: Context, is_hideable: bool) -> str:
    if not is_hideable:
        return "move less: keep on the device what is needed again, prepare data there"
    return context.advice(
        pytorch="copy the next batch while this one is computed: prefetch on a stream of its own "
        "with non_blocking=True (two buffers), or move less (smaller types, data prepared on the "
        "device)",
        other="copy on a stream of its own while the last piece is computed (two buffers), or move "
        "less",
    )


def _bounded(context: Context, claim: Claim) -> Claim:
    """Return the claim with what kernels could hide of it: where they run and no copy does."""
    free = sum(
        ((time.kernel - time.transfer) & context.typical).total_ns
        for time in context.times.values()
    )
    return Claim(claim.times, claim.ground, min(1.0, free / max(1, claim.total_ns)))


def _by_direction(context: Context, copies: pd.DataFrame) -> Iterator[Note]:
    """Yield what of the exposed time is of each direction, the most first."""
    directions = copies["direction"].astype(str)
    exposed = {
        direction: context.left(context.exposed(copies[directions == direction])).total_ns
        for direction in directions.unique()
    }
    for direction, ns in sorted(exposed.items(), key=lambda own: -own[1]):
        if ns:
            yield context.timed(ns, after=" of {direction}", direction=direction)


RULE = Rule(
    name="exposed_copies",
    subject="transfers",
    summary="asynchronous copies that no compute hides",
    needs=("copies",),
    show="copies",
    check=_check,
)
