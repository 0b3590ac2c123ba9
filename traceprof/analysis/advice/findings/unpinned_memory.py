"""Blocking copies of memory that is not pinned."""

from __future__ import annotations

from collections.abc import Iterator

from traceprof.analysis.advice.findings.base import Finding, Rule
from traceprof.analysis.advice.findings.context import Context
from traceprof.analysis.advice.findings.pageable_copies import of_pageable_memory, pageable_finding

__all__ = ["RULE"]


def _check(context: Context) -> Iterator[Finding]:
    copies = context.copies(of_pageable_memory)
    found = pageable_finding(
        context,
        copies[~copies["api"].astype(str).str.contains("Async")],
        "unpinned memory",
    )
    if found:
        yield found


RULE = Rule(
    name="unpinned_memory",
    subject="pinned memory",
    summary="blocking copies of memory that is not pinned",
    needs=("copies",),
    show="copies",
    check=_check,
)
