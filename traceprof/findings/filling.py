"""Rules on GPUs that are busy but mostly empty: kernels that use few of the SMs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from traceprof.errors import NotRecordedError
from traceprof.findings.amounts import COMPUTE
from traceprof.findings.claims import Claim, ClaimKind, Kind, Times, starts_within, union_by_device
from traceprof.findings.context import Context
from traceprof.findings.kernel_times import summed, times_of
from traceprof.findings.rules import Finding, rule
from traceprof.measures.device.counters import active_sms
from traceprof.measures.device.occupancy import launch_shapes
from traceprof.measures.rows import bounds, lengths_of, unions_by, unions_of
from traceprof.model.activity import Activity
from traceprof.model.intervals import Intervals
from traceprof.model.results import Note
from traceprof.model.table import Table
from traceprof.model.trace import Trace
from traceprof.names.kernels import SHORT_NS, short_name

_MIN_UNFILLED_RATIO: Final = 0.1


@rule("SM utilization", "kernels that leave SMs idle", "kernels", about=COMPUTE, show="counters")
def unfilled_kernels(context: Context) -> Iterator[Finding]:
    """Find GPUs whose kernels leave SMs idle, as measured by GPU counters."""
    counted = [gpu for part in context.ranks.each(active_sms) for gpu in part]
    if not counted:
        raise NotRecordedError("SM counters were not sampled")
    compute = {device: time.compute for device, time in context.times.items()}
    found = [
        (gpu, _claim_on_idle_sms(context, compute, gpu.device, 1 - gpu.of_kernels))
        for gpu in counted
        if gpu.device in compute and gpu.of_kernels < 1
    ]
    if sum(context.share(claim) * claim.saved_ratio for _, claim in found) < _MIN_UNFILLED_RATIO:
        return
    names = context.kernels.by_name.in_order("-total_ns")
    yield Finding(
        title=Note.of(
            "Low SM utilization: while kernels run, {share:ratio} of the SMs are active",
            share=sum(gpu.of_kernels for gpu, _ in found) / len(found),
        ),
        claims=tuple(claim for _, claim in found),
        kind=Kind.ESTIMATED,
        model=Note("Every kernel fills all SMs. Lower bound: no saving, if memory limits them."),
        evidence=tuple(
            Note.of(
                "GPU {device:number}: SMs active {active:ratio}, kernels running {recorded:ratio} "
                "of the sampled time (measured)",
                device=gpu.device,
                active=gpu.active_ratio,
                recorded=gpu.recorded_ratio,
            )
            for gpu, _ in found[:_MAX_GPUS_SHOWN]
        ),
        action=context.advice(
            pytorch="Give each kernel more work: use a larger batch, or fewer and larger "
            "operations. Or run kernels concurrently on several streams.",
            other="Launch more blocks than the GPU has SMs, or run several kernels concurrently.",
        ),
        caveat="Memory-bound kernels gain less.",
        ncu=context.ncu(times_of(names)),
    )


@rule(
    "SM utilization",
    "kernels with too few blocks or threads",
    "kernels",
    "kernel_shapes",
    about=COMPUTE,
    show="occupancy",
)
def few_blocks(context: Context) -> Iterator[Finding]:
    """Find kernels that keep a GPU busy but leave nearly all of it empty."""
    found = context.ranks.each(_find_nearly_empty, context.typical)
    if not any(n_known for *_, n_known in found):
        raise NotRecordedError(
            "the launch dimensions of kernels, or the number of SMs, are unknown"
        )
    rows = Table.stacked([table for table, *_ in found])
    claim = context.unclaimed(union_by_device(times for _, times, _ in found), ClaimKind.COMPUTE)
    share = context.share(claim)
    if rows.empty or share < _MIN_UNFILLED_RATIO:
        return
    sums = times_of(summed(rows, lengths_of(rows), "name"), "ns")
    longest = rows.row(int(lengths_of(rows).argmax()))
    yield Finding(
        title=Note.of(
            "Nearly empty kernels use at most {used:ratio} of the GPU for {share:ratio} of step "
            "time",
            share=share,
            used=float(rows["used_ratio"].max()),
        ),
        claims=(claim,),
        kind=Kind.BOUNDED,
        evidence=(
            Note.of(
                "{name}: {length:ns} with {blocks:count} block(s) of {threads:count} thread(s) on "
                "{sms:count} SMs",
                name=short_name(str(longest["name"])),
                length=int(longest["end_ns"] - longest["start_ns"]),
                blocks=int(longest["grid_blocks"]),
                threads=int(longest["block_threads"]),
                sms=int(longest["sm_count"]),
            ),
            *(context.timed_by_kernel(sums) if len(rows) > 1 else ()),
        ),
        action="Spread the work over the whole GPU: launch several blocks per SM with at least 128 "
        "threads each, or use larger batches. Run serial work on the CPU, or concurrently on a "
        "separate stream.",
        caveat="Work that depends on the previous result cannot be spread.",
        window=context.longest_row(rows),
        ncu=context.ncu(sums),
    )


_MAX_USED_RATIO: Final = 0.05
_WARP_THREADS: Final = 32


def _find_nearly_empty(trace: Trace, analyzed_time: Intervals) -> tuple[Table, Times, int]:
    """Return the long, nearly empty kernels of a trace, and the times when they run alone.

    The third value is the number of kernels with known launch dimensions. The table has name,
    device, start_ns, end_ns, grid_blocks, block_threads, sm_count, and used_ratio: the share of SMs
    with a block, times the share of lanes of a warp with a thread.
    """
    kernels, shapes = trace.kernels, launch_shapes(trace.whole)
    shape = shapes.of_kernel[trace.rows_in_whole("kernels")]
    names = ("grid_blocks", "block_threads", "sm_count")
    blocks, threads, sms = (shapes.table[name][shape] for name in names)
    used = np.minimum(blocks / np.maximum(sms, 1), 1) * np.minimum(threads / _WARP_THREADS, 1)
    starts, ends = bounds(kernels)
    is_known = np.minimum(np.minimum(blocks, threads), sms) > 0
    is_empty = is_known & (used < _MAX_USED_RATIO)
    is_empty &= (ends - starts >= SHORT_NS) & starts_within(kernels, analyzed_time)
    is_empty &= ~kernels["activity"].isin(_NO_COMPUTE)
    table = kernels.select("start_ns", "end_ns", "device", "name").take(is_empty)
    columns = zip((*names, "used_ratio"), (blocks, threads, sms, used), strict=True)
    table = table.assign(**{name: values[is_empty] for name, values in columns})
    others = unions_of(starts, ends, kernels["device"], where=~is_empty)
    alone = {
        device: time - others.get((device,), Intervals.empty())
        for device, time in unions_by(table, "device").items()
    }
    return table, alone, int(is_known.sum())


_NO_COMPUTE: Final = (Activity.COMMUNICATION.value, Activity.CUDA_GRAPH.value)


def _claim_on_idle_sms(context: Context, compute: Times, device: int, empty: float) -> Claim:
    """Return a claim on the compute of a device, of which at most the ratio ``empty`` is saved."""
    return context.unclaimed({device: compute[device]}, ClaimKind.COMPUTE, empty, (0.0, empty))


_MAX_GPUS_SHOWN: Final = 3
