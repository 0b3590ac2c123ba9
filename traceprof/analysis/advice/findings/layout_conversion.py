"""Kernels that only convert between NCHW and NHWC."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from traceprof.analysis.advice.findings.base import Finding, Rule
from traceprof.analysis.advice.findings.context import Context
from traceprof.units import format_ratio

__all__ = ["RULE"]

_LEAST: Final = 0.01
_CONVERTS: Final = re.compile(r"nchw_?to_?nhwc|nhwc_?to_?nchw|tensorTransform", re.IGNORECASE)


def _check(context: Context) -> Iterator[Finding]:
    kernels = context.kernels
    names = [i for i, n in enumerate(kernels["name"].cat.categories) if _CONVERTS.search(str(n))]
    own = kernels[kernels["name"].cat.codes.isin(names)]
    ratio = int(own["duration_ns"].sum()) / context.typical_ns / max(1, len(context.devices))
    if ratio < _LEAST:
        return
    top = own.groupby("name", observed=True)["duration_ns"].sum().nlargest(2)
    yield Finding(
        rule=RULE.name,
        title=f"layout conversion: {format_ratio(ratio)} of the time between NCHW and NHWC",
        saving_ratio=ratio,
        saving_ns=context.saving_ns(ratio),
        evidence=(
            f"{context.per_step(len(own))} conversions",
            *(f"{context.time_per_step(int(ns))} in {name}" for name, ns in top.items()),
        ),
        action="keep model and input in channels_last: .to(memory_format=torch.channels_last)",
        caveat="layers without a channels_last kernel convert back and forth",
    )


RULE = Rule(
    name="layout_conversion",
    summary="conversions between NCHW and NHWC",
    needs=("kernels",),
    check=_check,
)
