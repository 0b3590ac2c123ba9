"""Many small collectives: latency instead of bandwidth."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
import pandas as pd

from traceprof.analysis.advice.findings.base import Finding, Rule
from traceprof.analysis.advice.findings.context import Context
from traceprof.model.results import Note

__all__ = ["RULE"]

_LEAST: Final = 0.02
_FEWEST_PER_STEP: Final = 20
_SMALL_BYTES: Final = 1_000_000
_SHORT_NS: Final = 60_000
_USEFUL_BYTES: Final = 25_000_000
"""The default size of DDP's buckets."""


def _check(context: Context) -> Iterator[Finding]:
    kernels = context.kernels
    own_ns = kernels.durations_ns[kernels.is_communication]
    exposed = context.mean_ratio(
        {device: time.communication - time.compute for device, time in context.times.items()}
    )
    per_step = len(own_ns) / context.n_steps / max(1, len(context.devices))
    sizes = pd.concat([part.collectives["n_bytes"] for part in context.ranks])
    sizes = sizes[sizes > 0]
    median_ns = float(np.median(own_ns)) if len(own_ns) else 0.0
    small = float(sizes.median()) < _SMALL_BYTES if len(sizes) else median_ns < _SHORT_NS
    if per_step < _FEWEST_PER_STEP or not small:
        return
    needed = max(1.0, float(sizes.sum()) / context.n_steps / _USEFUL_BYTES) if len(sizes) else 1.0
    ratio = exposed * max(0.0, 1 - needed / per_step)
    if ratio < _LEAST:
        return
    size = "median size {size:bytes}" if len(sizes) else "sizes were not recorded"
    yield Finding(
        title=Note.of(
            "small collectives: {each:number} per step cost {share:ratio} in latency",
            each=round(per_step),
            share=ratio,
        ),
        # The same time is exposed communication; what larger buckets save of it is uncertain.
        saving_ratio=ratio / 2,
        saving_ns=context.saving_ns(ratio / 2),
        evidence=(
            Note.of(
                f"median duration {{median:ns}}, {size}",
                median=median_ns,
                size=float(sizes.median()) if len(sizes) else None,
            ),
        ),
        action="send fewer, larger messages: raise bucket_cap_mb, coalesce, flatten gradients",
        caveat="larger buckets start later and may overlap less",
    )


RULE = Rule(
    name="small_buckets",
    summary="many collectives that are too small for the link",
    needs=("kernels",),
    show="collectives",
    check=_check,
)
