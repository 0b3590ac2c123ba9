"""Kernels are too short for the host to keep the queue filled."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
import numpy.typing as npt

from traceprof.analysis.advice.findings.base import Finding, Rule
from traceprof.analysis.advice.findings.claims import Claim, Kind
from traceprof.analysis.advice.findings.context import Context
from traceprof.facts.device.launch_queue import launch_table
from traceprof.model.results import Note

__all__ = ["RULE"]

_LEAST: Final = 0.05


def _check(context: Context) -> Iterator[Finding]:
    claim = context.idle_for("launch")
    share = context.share(claim)
    if share < _LEAST:
        return
    launches = [launch_table(part) for part in context.ranks]
    call_ns = np.concatenate([own["launched_ns"] - own["launch_ns"] for own in launches])
    is_empty = np.concatenate([own["is_empty"] for own in launches])
    if not len(context.kernels.durations_ns):
        yield _of_copies(context, claim, call_ns)
        return
    yield Finding(
        title=Note.of(
            "launch-bound: devices are idle {share:ratio} of the time between launches", share=share
        ),
        claims=(claim,),
        kind=Kind.BOUNDED,
        evidence=(
            *_kernels(context),
            Note.of("a launching call takes {call:ns} (median)", call=_median(call_ns)),
            Note.of(
                "{share:ratio} of the launches found the device without work",
                share=float(is_empty.mean()) if len(is_empty) else float("nan"),
            ),
        ),
        action=context.advice(
            pytorch="launch less: CUDA graphs or torch.compile(mode='reduce-overhead'), fused "
            "optimizers (fused=True, foreach=True), fused layers, larger batches",
            other="launch less: put what repeats into a CUDA graph, fuse small kernels, give each "
            "launch more work",
        ),
        caveat=(
            "profilers slow launches down (some µs per call): measure the gain without one; shapes "
            "that change in every step rule CUDA graphs out"
        ),
        window=context.longest_gap("launch"),
    )


def _of_copies(context: Context, claim: Claim, call_ns: npt.NDArray[np.int64]) -> Finding:
    """Return the finding where only copies are launched: no graph or fusing helps them."""
    return Finding(
        title=Note.of(
            "launch-bound: devices are idle {share:ratio} of the time between copies",
            share=context.share(claim),
        ),
        claims=(claim,),
        kind=Kind.BOUNDED,
        evidence=(
            context.counted(len(context.copies), "cop(y|ies) or memset(s)"),
            Note.of("a launching call takes {call:ns} (median)", call=_median(call_ns)),
        ),
        action="copy larger pieces at once",
        caveat="profilers slow launches down (some µs per call): measure the gain without one",
        window=context.longest_gap("launch"),
    )


def _kernels(context: Context) -> Iterator[Note]:
    durations = context.kernels.durations_ns
    if len(durations):
        median = _median(durations)
        yield context.counted(len(durations), "kernel(s)", " (median {median:ns})", median=median)


def _median(values: npt.NDArray[np.int64]) -> float:
    return float(np.median(values)) if len(values) else float("nan")


RULE = Rule(
    name="launch_bound",
    subject="launches",
    summary="devices wait for kernels to be launched",
    needs=("kernels", "api_calls"),
    show="launches",
    check=_check,
)
