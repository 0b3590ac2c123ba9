"""Many small collectives: latency instead of bandwidth."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
import pandas as pd

from traceprof.analysis.advice.findings.base import Finding, Rule
from traceprof.analysis.advice.findings.claims import Kind, Times
from traceprof.analysis.advice.findings.context import Context
from traceprof.model.activity import Activity
from traceprof.model.intervals import Int64Array, Intervals
from traceprof.model.results import Note
from traceprof.model.trace import Trace

__all__ = ["RULE"]

_LEAST: Final = 0.02
_FEWEST_PER_STEP: Final = 20
_SMALL_BYTES: Final = 1_000_000
_SHORT_NS: Final = 60_000
_USEFUL_BYTES: Final = 25_000_000
"""The default size of DDP's buckets."""
_QUICKEST: Final = 0.1
"""The quantile of the durations that is taken for the latency: what waits for nobody."""


def _sizes(part: Trace) -> Int64Array:
    sizes = part.collectives["n_bytes"].to_numpy(np.int64)
    return sizes[sizes > 0]


def _check(context: Context) -> Iterator[Finding]:
    kernels = context.kernels
    communicates = kernels.lengths.rows == 1
    own_ns = np.repeat(kernels.lengths.values[communicates], kernels.counts[communicates])
    per_step = len(own_ns) / context.n_steps / max(1, len(context.devices))
    sizes = pd.Series(np.concatenate(context.ranks.each(_sizes)))
    median_ns = float(np.median(own_ns)) if len(own_ns) else 0.0
    small = float(sizes.median()) < _SMALL_BYTES if len(sizes) else median_ns < _SHORT_NS
    if per_step < _FEWEST_PER_STEP or not small:
        return
    needed = max(1.0, float(sizes.sum()) / context.n_steps / _USEFUL_BYTES) if len(sizes) else 1.0
    latency_ns = round(float(np.quantile(own_ns, _QUICKEST)))
    claim = context.left(
        _first_of_each(context, latency_ns), saved_ratio=max(0.0, 1 - needed / per_step)
    )
    share = context.share(claim)
    if share * claim.saved_ratio < _LEAST:
        return
    size = "median size {size:bytes}" if len(sizes) else "sizes were not recorded"
    yield Finding(
        title=Note.of("small collectives: {share:ratio} of the time is their latency", share=share),
        claims=(claim,),
        kind=Kind.ESTIMATED,
        model=Note("each costs as long as the quickest tenth takes, whatever its size"),
        evidence=(
            context.counted(len(own_ns), "collective(s)"),
            Note.of(
                f"the quickest tenth takes {{latency:ns}}, the median {{median:ns}}, {size}",
                latency=latency_ns,
                median=median_ns,
                size=float(sizes.median()) if len(sizes) else None,
            ),
        ),
        action=context.advice(
            pytorch="send fewer, larger messages: raise bucket_cap_mb, coalesce, flatten gradients"
            if context.is_training
            else "use collectives of low latency for small messages (one-shot or in CUDA graphs), "
            "coalesce them, or spread the model over fewer GPUs",
            other="send fewer, larger messages",
        ),
        caveat="larger messages start later and may overlap less",
    )


def _first_of_each(context: Context, latency_ns: int) -> Times:
    """Return the first ``latency_ns`` of each communication kernel that compute does not hide."""
    found = {}
    for part in context.ranks:
        own = part.kernels[part.kernels["activity"] == Activity.COMMUNICATION.value]
        for device, rows in own.groupby("device").indices.items():
            starts = own["start_ns"].to_numpy()[rows]
            ends = np.minimum(own["end_ns"].to_numpy()[rows], starts + latency_ns)
            found[int(str(device))] = Intervals.union_of(starts, ends)
    return found


RULE = Rule(
    name="small_buckets",
    subject="buckets",
    summary="many collectives that are too small for the link",
    needs=("kernels",),
    show="collectives",
    check=_check,
)
