"""Devices wait for data: the loader does not keep up."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from traceprof.analysis.advice.findings.base import Finding, Rule
from traceprof.analysis.advice.findings.context import Context
from traceprof.errors import NotRecordedError
from traceprof.facts.host.phases import find_host_phases
from traceprof.model.intervals import Intervals
from traceprof.model.results import Note

__all__ = ["RULE"]

_LEAST: Final = 0.02
_LEAST_ON_HOST: Final = 0.1
"""Without devices the host computes, and fetching is never free: only much of it is a finding."""


def _check(context: Context) -> Iterator[Finding]:
    phases = [host for part in context.ranks for host in find_host_phases(part)]
    if not any("data" in host.times for host in phases):
        raise NotRecordedError("no range says when data is fetched: use `traceprof record`")
    fetching = [host.times.get("data", Intervals.empty()) for host in phases]
    host_ratio = sum(map(context.ratio, fetching)) / len(fetching)
    has_devices = bool(context.devices)
    ratio = context.gap_ratio("input_bound") if has_devices else host_ratio
    if ratio < (_LEAST if has_devices else _LEAST_ON_HOST):
        return
    who = "devices are idle" if has_devices else "training waits"
    yield Finding(
        title=Note.of(
            f"input-bound: {who} {{share:ratio}} of the time while data is fetched", share=ratio
        ),
        saving_ratio=ratio,
        saving_ns=context.saving_ns(ratio),
        evidence=(
            Note.of(
                "the main thread is in data loading {share:ratio} of the time ({data:ns} of "
                "{step:ns})",
                share=host_ratio,
                data=host_ratio * context.step_ns,
                step=context.step_ns,
            ),
        ),
        action=(
            "give the DataLoader more workers (num_workers), prefetch (prefetch_factor, "
            "persistent_workers=True), move decoding and augmentation off the main process or to "
            "the device, or store the data ready to use"
        ),
        caveat="the first fetch of an epoch starts workers and is slower than the others",
        window=context.longest_gap("input_bound") if has_devices else "",
        ranges=("data",),
    )


RULE = Rule(
    name="input_bound",
    summary="devices wait while the host fetches data",
    needs=("ranges",),
    show="steps",
    check=_check,
)
