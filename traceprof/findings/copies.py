"""Copies and memsets that block the host, are staged, are slow, or that nothing hides."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import pandas as pd

from traceprof.findings.claims import Claim, Kind
from traceprof.findings.context import Context
from traceprof.findings.rules import Finding, Rule
from traceprof.hardware.catalogue import Link
from traceprof.measures.device.peaks import peak_of
from traceprof.measures.device.times import part_of_device
from traceprof.model.results import Note

_LEAST_BLOCKING_COPIES: Final = 0.02
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


def _check_blocking_copies(context: Context) -> Iterator[Finding]:
    copies = context.copies(blocking_copies_of)
    # Those of pageable memory are the findings of another rule.
    pinned = copies[(copies["src_kind"] != "pageable") & (copies["dst_kind"] != "pageable")]
    claim = context.left(context.exposed(pinned))
    share = context.share(claim)
    if pinned.empty or share < _LEAST_BLOCKING_COPIES:
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


BLOCKING_COPIES = Rule(
    name="blocking_copies",
    subject="blocking calls",
    summary="copies that block the host",
    needs=("copies", "api_calls"),
    show="copies",
    check=_check_blocking_copies,
)


_LEAST_BLOCKING_MEMSETS: Final = 0.02


def blocking_memsets_of(copies: pd.DataFrame) -> pd.DataFrame:
    """Return the memsets of pinned or managed memory by a call that is not asynchronous."""
    api = copies["api"].astype(str)
    blocking = api.str.match(r"(cuda|hip|cu)Memset") & ~api.str.contains("Async")
    waited_for = copies["dst_kind"].isin(["pinned", "managed"])
    return copies[blocking & waited_for & (copies["direction"] == "memset")]


def _check_blocking_memsets(context: Context) -> Iterator[Finding]:
    memsets = context.copies(blocking_memsets_of)
    claim = context.left(context.exposed(memsets))
    share = context.share(claim)
    if memsets.empty or share < _LEAST_BLOCKING_MEMSETS:
        return
    yield Finding(
        title=Note.of("blocking memsets: {share:ratio} of the time nothing else runs", share=share),
        claims=(claim,),
        kind=Kind.BOUNDED,
        evidence=(context.counted(len(memsets), "memset(s) of pinned or managed memory"),),
        action=context.worded("use cudaMemsetAsync, or do not clear what is overwritten anyway"),
        caveat="the first touch of managed memory costs time in any case",
    )


BLOCKING_MEMSETS = Rule(
    name="blocking_memsets",
    subject="blocking calls",
    summary="memsets that block the host",
    needs=("copies", "api_calls"),
    show="copies",
    check=_check_blocking_memsets,
)


_LEAST_PAGEABLE_COPIES: Final = 0.01


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
    if copies.empty or share < _LEAST_PAGEABLE_COPIES:
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


def _check_pageable_copies(context: Context) -> Iterator[Finding]:
    copies = context.copies(of_pageable_memory)
    found = pageable_finding(
        context,
        asynchronous(copies),
        "asynchronous copies of pageable memory",
    )
    if found:
        yield found


PAGEABLE_COPIES = Rule(
    name="pageable_copies",
    subject="pinned memory",
    summary="asynchronous copies of pageable memory",
    needs=("copies", "api_calls"),
    show="copies",
    check=_check_pageable_copies,
)


def _check_unpinned_memory(context: Context) -> Iterator[Finding]:
    copies = context.copies(of_pageable_memory)
    found = pageable_finding(
        context,
        copies[~copies["api"].astype(str).str.contains("Async")],
        "unpinned memory",
    )
    if found:
        yield found


UNPINNED_MEMORY = Rule(
    name="unpinned_memory",
    subject="pinned memory",
    summary="blocking copies of memory that is not pinned",
    needs=("copies",),
    show="copies",
    check=_check_unpinned_memory,
)


_LEAST_EXPOSED_COPIES: Final = 0.02
_WORTH_A_WORD: Final = 0.001
_MOVES: Final = ("h2d", "d2h", "p2p")


def _check_exposed_copies(context: Context) -> Iterator[Finding]:
    own = context.copies(_of_pinned_memory)
    claim = _bounded(context, context.left(context.exposed(own)))
    share = context.share(claim)
    if share < _LEAST_EXPOSED_COPIES:
        return
    # Where hardly any kernel could hide them only moving less helps, and nobody knows how much.
    is_hideable = share * claim.saved_ratio >= _LEAST_EXPOSED_COPIES
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


EXPOSED_COPIES = Rule(
    name="exposed_copies",
    subject="transfers",
    summary="asynchronous copies that no compute hides",
    needs=("copies",),
    show="copies",
    check=_check_exposed_copies,
)


_LEAST_SLOW_LINK: Final = 0.01
_LARGE_BYTES: Final = 1_000_000
_USUAL_BYTES_PER_S: Final = 12e9
"""What pinned copies reach on PCIe 3.0 x16, where nobody knows the link."""
_USUAL_SHARE: Final = 0.8
"""The share of a link's peak that large pinned copies reach."""
_SLOW: Final = 0.6
_DIRECTIONS: Final = ("h2d", "d2h")


def _usual_rate(context: Context) -> tuple[float, str]:
    """Return the rate that large copies should reach, in bytes per s, and why."""
    peaks = [
        peak_of(part_of_device(context.ranks, device), device, Link.PCIE)
        for device in context.devices
    ]
    known = [peak for peak in peaks if peak is not None]
    if not known:
        return _USUAL_BYTES_PER_S, "what PCIe 3.0 x16 reaches, for want of knowing the link"
    slowest = min(known, key=lambda peak: peak.bytes_per_s)
    return _USUAL_SHARE * slowest.bytes_per_s, f"80 % of {slowest}"


def _check_slow_link(context: Context) -> Iterator[Finding]:
    pinned = context.copies(_large_of_pinned_memory)
    usual, why = _usual_rate(context)
    for direction in _DIRECTIONS:
        own = pinned[pinned["direction"] == direction]
        total_ns = int((own["end_ns"] - own["start_ns"]).sum())
        if not total_ns:
            continue
        rate = int(own["n_bytes"].sum()) / (total_ns / 1e9)
        claim = context.left(context.exposed(own), saved_ratio=max(0.0, 1 - rate / usual))
        share = context.share(claim)
        if rate >= _SLOW * usual or share * claim.saved_ratio < _LEAST_SLOW_LINK:
            continue
        yield Finding(
            title=Note.of(
                f"slow link: {direction} copies of pinned memory run at {{rate:bytes/s}}", rate=rate
            ),
            claims=(claim,),
            kind=Kind.ESTIMATED,
            model=Note.of("{why} would be reached", why=why),
            evidence=(
                context.counted(
                    len(own), "cop(y|ies) of at least {least:bytes}", least=_LARGE_BYTES
                ),
                Note.of("{usual:bytes/s} are usual ({why})", usual=usual, why=why),
                Note.of("{share:ratio} of the time nothing hides them", share=share),
            ),
            action=context.worded(
                "check the link (nvidia-smi -q -d PCIE: generation and width now and at most), "
                "the slot, NUMA placement (numactl), and other traffic on the same switch"
            ),
            caveat="many GPUs behind one switch share its link",
        )


def _large_of_pinned_memory(copies: pd.DataFrame) -> pd.DataFrame:
    is_pinned = (copies["src_kind"] == "pinned") | (copies["dst_kind"] == "pinned")
    is_moved = copies["direction"].isin(_DIRECTIONS)
    return copies[is_pinned & is_moved & (copies["n_bytes"] >= _LARGE_BYTES)]


SLOW_LINK = Rule(
    name="slow_link",
    subject="links",
    summary="copies of pinned memory below the speed of the link",
    needs=("copies",),
    show="copies",
    check=_check_slow_link,
)
