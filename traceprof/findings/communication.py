"""Rules on exposed communication and on collectives that are too small for the interconnect."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

import numpy as np

from traceprof.findings.amounts import COLLECTIVES, AbsentError
from traceprof.findings.claims import Claim, Kind, Times, starts_within, union_by_device
from traceprof.findings.context import Context
from traceprof.findings.kernel_times import largest, times_of
from traceprof.findings.recurrence import size_in_words
from traceprof.findings.rules import Finding, rule
from traceprof.findings.waiting import notes_on_waiting_in
from traceprof.hardware.catalogue import Link
from traceprof.measures.collectives.operations import SINGLE_OPS
from traceprof.measures.collectives.rates import peak_of_group
from traceprof.measures.device.peaks import peak_of
from traceprof.measures.device.times import devices_of_processes, trace_of_device
from traceprof.measures.host.states import HOST_BACKENDS
from traceprof.measures.host.states import host_communication as communication_of_hosts
from traceprof.measures.rows import ints, rows_by, unions_by
from traceprof.measures.workload import COMMUNICATION
from traceprof.model.activity import Activity
from traceprof.model.grouping import groups_of
from traceprof.model.intervals import Int64Array, Intervals
from traceprof.model.ranks import gpus_of
from traceprof.model.results import Note
from traceprof.model.table import Table
from traceprof.model.trace import Trace
from traceprof.names.messages import kernel_kind

_MIN_EXPOSED_RATIO: Final = 0.05
_MIN_SAVED_RATIO: Final = 0.001
_ADVICE_BY_OPERATION: Final = (
    (
        re.compile(r"(?i)all_?reduce"),
        "For all-reduce of gradients: tune `bucket_cap_mb` in DDP, or use 16 bits "
        "(`bf16_compress_hook`). Of activations: sequence parallelism.",
    ),
    (
        re.compile(r"(?i)all_?gather|reduce_?scatter"),
        "For all-gather and reduce-scatter: enable FSDP prefetching (`forward_prefetch=True`), or "
        "shard over fewer ranks (`HYBRID_SHARD`).",
    ),
    (
        re.compile(r"(?i)all_?to_?all|send_?recv"),
        "For all-to-all and send/recv: exchange the next (micro-)batch during compute, or send "
        "data in lower precision.",
    ),
)
"""Patterns of operation names, and the advice for PyTorch on each operation."""

_MIN_LINK_RATIO: Final = 0.02
"""Share of the peak rate of a link that the slowest plausible transfer has."""
_MIN_NETWORK_BYTES_PER_S: Final = 1.25e9
"""The rate of 10 Gb/s Ethernet, the slowest plausible network between GPUs with NVLink."""
_MAX_LATENCY_NS: Final = 20_000
"""Latency of a collective per rank."""
_POINT_TO_POINT: Final = (*SINGLE_OPS, "send_recv")

_MIN_SMALL_RATIO: Final = 0.02
_MIN_COLLECTIVES_PER_STEP: Final = 20
_MAX_SMALL_BYTES: Final = 1_000_000
_SLOWEST_LINK_BYTES_PER_NS: Final = 12
"""The rate of PCIe 3.0 x16, the slowest interconnect in use."""
_MAX_SMALL_NS: Final = 60_000
_BUCKET_BYTES: Final = 25_000_000
"""The default bucket size of DDP."""
_LATENCY_QUANTILE: Final = 0.1
"""The quantile of the durations that counts as the latency: such a collective waits for no rank."""


@rule(
    "communication",
    "communication that is not overlapped with compute",
    "kernels",
    about=COLLECTIVES,
    show="collectives",
)
def exposed_communication(context: Context) -> Iterator[Finding]:
    """Find communication that is not overlapped with compute."""
    if context.kind == COMMUNICATION:
        return  # no compute could overlap with it
    exposed = {device: time.communication - time.compute for device, time in context.times.items()}
    claim = context.unclaimed(exposed)
    share = context.share(claim)
    if share < _MIN_EXPOSED_RATIO:
        return
    claims = _claims_by_device(context, claim)
    saved = sum(context.share(part) * part.saved_ratio for part in claims)
    kernels = context.kernels.with_activity(Activity.COMMUNICATION)
    names = times_of(kernels)
    longest = context.kernels.longest_communication
    yield Finding(
        title=Note.of("Exposed communication takes {share:ratio} of step time", share=share),
        claims=claims,
        kind=Kind.BOUNDED if saved > _MIN_SAVED_RATIO else Kind.NONE,
        evidence=(
            *_overlap_notes(context, exposed, share, saved),
            context.counted(int(kernels["count"].sum()), "communication kernel(s)"),
            *context.timed_by_kernel(names),
        ),
        action=context.advice(
            pytorch=_pytorch_advice(context, [name for name, _ in largest(names, 2)]),
            other="Overlap communication with compute on a separate stream. Send less data, in "
            "lower precision, or less often.",
        ),
        caveat=(
            "The time includes waiting for other ranks. Pass the traces of all ranks to separate a "
            "slow rank from a slow network."
            if len(context.ranks) == 1 and len(context.devices) == 1
            else "In the first shared collective, traceprof cannot separate waiting from sending."
        ),
        window="" if longest is None else context.window_text(*longest),
    )


@rule(
    "communication",
    "waiting for other ranks in collectives, if one rank is recorded",
    "kernels",
    about=COLLECTIVES,
    show="collectives",
)
def collective_waits(context: Context) -> Iterator[Finding]:
    """Find collectives that take far longer than any link needs: the rank waits for other ranks."""
    if context.kind == COMMUNICATION or len(context.matches.members) > 1:
        return  # the traces of several ranks show the waiting
    slow = _implausibly_slow(context)
    times = unions_by(slow, "device")
    claim = context.unclaimed({d: t - context.times[d].compute for d, t in times.items()})
    share = context.share(claim)
    if share < _MIN_EXPOSED_RATIO:
        return
    longest = slow.row(int((slow["end_ns"] - slow["start_ns"]).argmax()))
    length_ns = longest["end_ns"] - longest["start_ns"]
    device = longest["device"]
    peak = peak_of_group(context.ranks, device, longest["group_size"])
    known_peak = peak or peak_of(trace_of_device(context.ranks, device), device, Link.NVLINK)
    assert known_peak is not None  # `_implausibly_slow` leaves out other devices
    yield Finding(
        title=Note.of(
            "Waiting in collectives takes {share:ratio} of step time: the other ranks arrive late, "
            "or the link is slow",
            share=share,
        ),
        claims=(claim,),
        kind=Kind.BOUNDED,
        evidence=(
            context.counted(len(slow), "slow collective(s)"),
            Note.of(
                "{op} of {size:bytes} over {ranks:count} ranks takes {length:ns}: bus bandwidth "
                "{rate:bytes/s}, less than "
                + (
                    "{least:ratio} of {link} ({peak:bytes/s})"
                    if peak
                    else "10 Gb/s Ethernet ({network:bytes/s}); {link} has {peak:bytes/s}"
                ),
                least=_MIN_LINK_RATIO,
                op=str(longest["op"]),
                size=longest["n_bytes"],
                ranks=longest["group_size"],
                length=length_ns,
                rate=longest["bus_bytes"] / length_ns * 1e9,
                link=known_peak.what.partition(",")[0],
                peak=known_peak.bytes_per_s,
                network=_MIN_NETWORK_BYTES_PER_S,
            ),
        ),
        action="Record all ranks and pass all their traces: they show which rank is late and why. "
        "If no rank is late, test the link with `all_reduce_perf` and `NCCL_DEBUG=INFO`. If a rank "
        "is late, overlap with compute saves nothing: the late rank determines the step time.",
        caveat="The trace contains one rank, so the late rank is unknown.",
        window=context.longest_row(slow),
    )


def _implausibly_slow(context: Context) -> Table:
    """Return the collectives in the typical time that take longer than any plausible transfer.

    The slowest plausible transfer has 2% of the peak rate of the link, plus 20 us per rank. If the
    link is unknown, its rate is that of 10 Gb/s Ethernet, and only GPUs with NVLink count: other
    machines may have an even slower network. Sends and receives are not included: stages of a
    pipeline wait by design.
    """
    rows = context.matches.rows
    is_known = rows["is_timed"] & (rows["device"] >= 0) & (rows["bus_bytes"] > 0)
    rows = rows.take(is_known & ~rows["op"].isin(_POINT_TO_POINT))
    rows = rows.take(starts_within(rows, context.typical))
    rates = {}
    for device, size in groups_of(rows["device"], rows["group_size"]).keys:
        peak = peak_of_group(context.ranks, device, size)
        rates[device, size] = _MIN_LINK_RATIO * peak.bytes_per_s if peak else np.nan
        if peak is None and peak_of(trace_of_device(context.ranks, device), device, Link.NVLINK):
            rates[device, size] = _MIN_NETWORK_BYTES_PER_S
    keys = zip(rows["device"].tolist(), rows["group_size"].tolist(), strict=True)
    rate = np.array([rates[key] for key in keys], np.float64)
    transfer_ns = rows["bus_bytes"] / rate * 1e9 + _MAX_LATENCY_NS * rows["group_size"]
    return rows.take(rows["end_ns"] - rows["start_ns"] > transfer_ns)  # NaN: False


@rule("communication", "communication by the CPU (gloo, MPI)", "kernels", show="collectives")
def host_communication(context: Context) -> Iterator[Finding]:
    """Find GPU idle time during communication by the CPU (gloo, MPI).

    The claim includes the exposed copies that move the data to the host and back.
    """
    if context.kind == COMMUNICATION:
        return
    backends, count, n_bytes, under_way = _communication_of_hosts(context)
    if not count:
        raise AbsentError("no CPU communication (gloo, MPI) in the analyzed time")
    copying = {
        device: (time.transfer - time.kernel) & under_way[device]
        for device, time in context.times.items()
        if device in under_way
    }
    waiting = context.idle_for("communication")
    claim = context.unclaimed(union_by_device((waiting.times, copying)))
    share = context.share(claim)
    if share < _MIN_EXPOSED_RATIO:
        return
    size, n_moved = size_in_words(context, n_bytes, count)
    min_ratio = max(0.0, 1 - 2 * n_bytes / _SLOWEST_LINK_BYTES_PER_NS / claim.total_ns)
    launch_wait_ns = context.idle_for("launch").total_ns
    claim = replace(claim, between=(min_ratio, 1 + launch_wait_ns / claim.total_ns))
    shared = len(set(gpus_of(context.ranks).values())) < len(context.devices)
    yield Finding(
        title=Note.of(
            "Exposed CPU communication ({backend}) takes {share:ratio} of step time, including its "
            "copies",
            backend=backends,
            share=share,
        ),
        claims=(claim,),
        kind=Kind.ESTIMATED,
        model=Note(
            "The GPUs communicate during compute. Lower bound: the same bytes are sent and "
            "received at 12 GB/s (PCIe 3.0 x16) without overlap. Upper bound: the waits for "
            "launches disappear as well."
        ),
        evidence=(
            context.counted(count, "collective(s) or message(s)", f", {size}", moved=n_moved),
            Note.of(
                "copies between GPU and host: {copies:ratio} of step time",
                copies=context.share(claim) - context.share(context.unclaimed(waiting.times)),
            ),
        ),
        action=context.advice(
            pytorch='Communicate between GPUs: `init_process_group("nccl")`'
            + (", with one GPU per rank" if shared else "")
            + ". Otherwise, send less data (16-bit gradients).",
            other="Communicate between GPUs (NCCL, GPU-aware MPI)"
            + (", with one GPU per rank" if shared else "")
            + ", or send less data.",
        ),
        caveat="The time includes waiting for other ranks.",
        window=context.longest_gap("communication"),
    )


def _communication_of_hosts(context: Context) -> tuple[str, int, int, Times]:
    """Return the CPU communication in the typical time.

    Returns the names of the backends, the number of calls, the number of bytes, and the times of
    communication by device.
    """
    found = context.ranks.each(_communication_of_rank, context.typical)
    backends, counts, sizes, times = zip(*found, strict=True)
    names = sorted(set().union(*backends))
    under_way = {device: time for of_rank in times for device, time in of_rank.items()}
    return ", ".join(names), sum(counts), sum(sizes), under_way


def _communication_of_rank(
    trace: Trace, analyzed: Intervals
) -> tuple[list[str], int, int, dict[int, Intervals]]:
    """Return the same as `_communication_of_hosts` for one trace, with a list of backend names."""
    calls = trace.collectives
    calls = calls.take(calls["backend"].isin(HOST_BACKENDS))
    calls = calls.take(starts_within(calls, analyzed))
    sizes = calls["n_bytes"]
    times = communication_of_hosts(trace)
    under_way = {
        device: times[process]
        for process, devices in devices_of_processes(trace).items()
        for device in devices
        if process in times
    }
    names = sorted(set(calls["backend"].plain().tolist()))
    return names, len(calls), int(sizes[sizes > 0].sum()), under_way


def _overlap_notes(context: Context, exposed: Times, share: float, saved: float) -> Iterator[Note]:
    """Yield the share of communication and of its overlap, the limit of overlap, and waiting."""
    busy = {device: time.communication for device, time in context.times.items()}
    total, all_exposed = (
        sum((time & context.typical).total_ns for time in times.values()) / context.analyzed_ns
        for times in (busy, exposed)
    )
    others, waiting = all_exposed - share, (*notes_on_waiting_in(context, exposed),)
    except_waiting = ", apart from the waiting" if waiting else ""
    yield Note.of(
        "communication takes {whole:ratio} of step time, {hidden:ratio} of it overlapped with "
        "compute" + (" ({others:ratio} of step time is part of other findings)" if others else ""),
        whole=total,
        hidden=1 - (share + others) / total,
        others=others,
    )
    if saved < share * (1 - _MIN_SAVED_RATIO):
        yield Note.of(
            "overlap can hide at most {saved:ratio} of step time, because the same steps have no "
            f"more compute; only sending less data saves the rest{except_waiting}",
            saved=saved,
        )
    yield from waiting


def _pytorch_advice(context: Context, names: list[str]) -> str:
    """Return the advice for the operations of the kernels in ``names``."""
    if not context.is_training:
        return (
            "Send less data (fewer ranks per layer, lower precision), fuse the collective with the "
            "GEMM before or after it, or overlap two micro-batches."
        )
    names_and_operations = [f"{name} {kernel_kind(name).op}" for name in names]
    fits = [
        advice
        for pattern, advice in _ADVICE_BY_OPERATION
        if any(map(pattern.search, names_and_operations))
    ]
    return "Overlap communication with compute on a separate stream. " + " ".join(
        fits or [advice for _, advice in _ADVICE_BY_OPERATION[:2]]
    )


def _claims_by_device(context: Context, claim: Claim) -> tuple[Claim, ...]:
    """Return one claim per device on its exposed communication, with the ratio that can be saved.

    A device must run its communication serially, so a step takes at least that long. The exposed
    communication of a step can overlap only with the compute of that step that does not overlap
    with communication yet.
    """
    spans = _step_spans(context)
    found = []
    for device, time in claim.times.items():
        busy = context.times[device]
        free_compute = (busy.compute - busy.communication) & context.analyzed_by_place[device]
        exposed_ns, free_ns = (time.covered_ns(*spans[device]) for time in (time, free_compute))
        saved_ns = int(np.minimum(exposed_ns, free_ns).sum())
        ratio = min(1.0, saved_ns / max(1, time.total_ns))
        found.append(replace(claim, times={device: time}, saved_ratio=ratio))
    return tuple(found)


def _step_spans(context: Context) -> dict[int, tuple[Int64Array, Int64Array]]:
    """Return the start and end times of the steps of each device, as arrays.

    A device without known steps has one span: the window.
    """
    table = context.steps.table
    rows_of = rows_by(table, "process")
    starts, ends = ints(table, "device_start_ns", "device_end_ns")
    span = context.ranks.span
    window_span = np.array([span.start_ns]), np.array([span.end_ns])
    found = dict.fromkeys(context.devices, window_span)
    for process, device in context.process_devices:
        if process in rows_of:
            found[device] = starts[rows_of[process]], ends[rows_of[process]]
    return found


@rule(
    "collective sizes",
    "many collectives that are too small to use the interconnect bandwidth",
    "kernels",
    about=COLLECTIVES,
    show="collectives",
)
def small_buckets(context: Context) -> Iterator[Finding]:
    """Find many small collectives, which are bound by latency instead of bandwidth."""
    kernels = context.kernels
    communicates = kernels.lengths.rows == 1
    kernel_ns = np.repeat(kernels.lengths.values[communicates], kernels.counts[communicates])
    per_step = len(kernel_ns) / context.n_steps / max(1, len(context.devices))
    sizes = np.concatenate(context.ranks.each(_collective_sizes))
    median_ns = float(np.median(kernel_ns)) if len(kernel_ns) else 0.0
    size_bytes = float(np.median(sizes)) if len(sizes) else None
    small = median_ns < _MAX_SMALL_NS if size_bytes is None else size_bytes < _MAX_SMALL_BYTES
    if per_step < _MIN_COLLECTIVES_PER_STEP or not small:
        return
    needed = max(1.0, float(sizes.sum()) / context.n_steps / _BUCKET_BYTES) if len(sizes) else 1.0
    latency_ns = round(float(np.quantile(kernel_ns, _LATENCY_QUANTILE)))
    firsts = union_by_device(_latency_times(part, latency_ns) for part in context.ranks)
    saved = max(0.0, 1 - needed / per_step)
    longer = max(1.0, median_ns / max(1, latency_ns))
    claim = context.unclaimed(firsts, saved_ratio=saved, between=(0.0, saved * longer))
    share = context.share(claim)
    if share * claim.saved_ratio < _MIN_SMALL_RATIO:
        return
    size = "median size {size:bytes}" if len(sizes) else "sizes not recorded"
    yield Finding(
        title=Note.of(
            "The latency of small collectives takes {share:ratio} of step time", share=share
        ),
        claims=(claim,),
        kind=Kind.ESTIMATED,
        model=Note(
            "Each collective has the latency of the fastest 10%, whatever its size. Upper bound: "
            "the median duration. Lower bound: no saving, if larger collectives overlap less."
        ),
        evidence=(
            context.counted(len(kernel_ns), "collective(s)"),
            Note.of(
                f"fastest 10%: {{latency:ns}}, median: {{median:ns}}, {size}",
                latency=latency_ns,
                median=median_ns,
                size=size_bytes,
            ),
        ),
        action=context.advice(
            pytorch="Send fewer, larger messages: raise `bucket_cap_mb` in DDP, coalesce "
            "collectives, or flatten gradients."
            if context.is_training
            else "Use low-latency collectives for small messages (one-shot, or inside CUDA "
            "graphs), coalesce them, or spread the model over fewer GPUs.",
            other="Send fewer, larger messages.",
        ),
        caveat="Larger messages start later and may overlap less with compute.",
    )


def _collective_sizes(trace: Trace) -> Int64Array:
    """Return the known sizes in bytes of the collectives of a trace."""
    sizes = trace.collectives["n_bytes"]
    return np.asarray(sizes[sizes > 0], np.int64)


def _latency_times(trace: Trace, latency_ns: int) -> Times:
    """Return the first ``latency_ns`` of each communication kernel, as intervals by device."""
    kernels = trace.kernels.select("start_ns", "end_ns", "device")
    communication = kernels.take(trace.kernels["activity"] == Activity.COMMUNICATION.value)
    ends = np.minimum(communication["end_ns"], communication["start_ns"] + latency_ns)
    return unions_by(communication.assign(end_ns=ends), "device")
