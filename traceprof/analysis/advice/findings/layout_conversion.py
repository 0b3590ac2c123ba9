"""Kernels that only convert between NCHW and NHWC."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from traceprof.analysis.advice.findings.base import Finding, Rule
from traceprof.analysis.advice.findings.claims import Kind
from traceprof.analysis.advice.findings.context import Context
from traceprof.model.results import Note
from traceprof.names.kernels import short_name

__all__ = ["RULE"]

_LEAST: Final = 0.01
_CONVERTS: Final = re.compile(r"nchw_?to_?nhwc|nhwc_?to_?nchw|tensorTransform", re.IGNORECASE)


def _check(context: Context) -> Iterator[Finding]:
    own = context.kernels.named(_CONVERTS)
    claim = context.kernel_claim(own)
    share = context.share(claim)
    if share < _LEAST:
        return
    top = own.nlargest(2, "total_ns")
    yield Finding(
        title=Note.of(
            "layout conversion: {share:ratio} of the time between NCHW and NHWC", share=share
        ),
        claims=(claim,),
        kind=Kind.BOUNDED,
        evidence=(
            context.counted(int(own["count"].sum()), "conversion(s)"),
            *(
                context.timed(ns, after=" in {name}", name=short_name(str(name)))
                for name, ns in zip(top["name"], top["total_ns"].tolist(), strict=True)
            ),
        ),
        action=context.advice(
            pytorch="keep model and input in channels_last: .to(memory_format=torch.channels_last)",
            other="keep data in the layout that the kernels want (NHWC on tensor cores)",
        ),
        caveat="layers without a channels_last kernel convert back and forth",
        ncu=context.ncu(own.set_index("name")["total_ns"]),
    )


RULE = Rule(
    name="layout_conversion",
    subject="layouts",
    summary="conversions between NCHW and NHWC",
    needs=("kernels",),
    show="kernels",
    check=_check,
)
