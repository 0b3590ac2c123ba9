"""Kernels are too short for the host to keep the queue filled."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import pandas as pd

from traceprof.analysis.advice.findings.base import Finding, Rule
from traceprof.analysis.advice.findings.claims import Claim, Kind
from traceprof.analysis.advice.findings.context import Context
from traceprof.measures.host.launches import launch_table
from traceprof.model.combining import median_of_counted
from traceprof.model.results import Note
from traceprof.model.trace import Trace

__all__ = ["RULE"]

_LEAST: Final = 0.05


def _check(context: Context) -> Iterator[Finding]:
    claim = context.idle_for("launch")
    share = context.share(claim)
    if share < _LEAST:
        return
    calls = pd.concat(context.ranks.each(_calls_of_one), ignore_index=True)
    call_ns = median_of_counted(calls["call_ns"].to_numpy(), calls["count"].to_numpy())
    n_calls = int(calls["count"].sum())
    if not len(context.kernels.lengths.rows):
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
            Note.of("a launching call takes {call:ns} (median)", call=call_ns),
            Note.of(
                "{share:ratio} of the launches found the device without work",
                share=int(calls["empty"].sum()) / n_calls if n_calls else float("nan"),
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


def _calls_of_one(part: Trace) -> pd.DataFrame:
    """Return how many launches took how long, and how many found the device empty."""
    table = launch_table(part)
    call_ns = table["launched_ns"].to_numpy() - table["launch_ns"].to_numpy()
    rows = pd.DataFrame({"call_ns": call_ns, "count": 1, "empty": table["is_empty"].to_numpy()})
    return rows.groupby("call_ns", as_index=False).sum()


def _of_copies(context: Context, claim: Claim, call_ns: float) -> Finding:
    """Return the finding where only copies are launched: no graph or fusing helps them."""
    return Finding(
        title=Note.of(
            "launch-bound: devices are idle {share:ratio} of the time between copies",
            share=context.share(claim),
        ),
        claims=(claim,),
        kind=Kind.BOUNDED,
        evidence=(
            context.counted(context.n_copies, "cop(y|ies) or memset(s)"),
            Note.of("a launching call takes {call:ns} (median)", call=call_ns),
        ),
        action="copy larger pieces at once",
        caveat="profilers slow launches down (some µs per call): measure the gain without one",
        window=context.longest_gap("launch"),
    )


def _kernels(context: Context) -> Iterator[Note]:
    lengths, counts = context.kernels.lengths, context.kernels.counts
    if len(counts):
        median = median_of_counted(lengths.values, counts)
        count = int(counts.sum())
        yield context.counted(count, "kernel(s)", " (median {median:ns})", median=median)


RULE = Rule(
    name="launch_bound",
    subject="launches",
    summary="devices wait for kernels to be launched",
    needs=("kernels", "api_calls"),
    show="launches",
    check=_check,
)
