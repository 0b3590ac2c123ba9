"""A rule on devices that wait while the host loads data."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from traceprof.errors import NotRecordedError
from traceprof.findings.claims import Claim, Kind
from traceprof.findings.context import Context
from traceprof.findings.gaps import recorded_span, sums_by_operator
from traceprof.findings.rules import Finding, rule
from traceprof.measures.host.states import find_host_phases, times_before_forward
from traceprof.measures.idle.charges import work_of_main_threads
from traceprof.model.intervals import Intervals
from traceprof.model.results import Note
from traceprof.model.table import Table
from traceprof.model.timing import TRACEPROF_DOMAIN
from traceprof.model.trace import RecordedBy, Trace
from traceprof.names.functions import is_of_program

_MIN_WAITING_RATIO: Final = 0.02
_MAIN_RATIO: Final = 0.5
_MIN_HOST_RATIO: Final = 0.1
"""Without devices, the host computes and data loading always takes time: report only a large
share."""


@rule("input pipeline", "the GPU waits while the CPU loads data", "ranges", show="steps")
def input_bound(context: Context) -> Iterator[Finding]:
    """Find devices that wait while the host loads data."""
    has_devices = bool(context.devices)
    of_ranks = [find_host_phases(part) for part in context.ranks]
    phases = [host for hosts in of_ranks for host in hosts]
    if not any("data" in host.times for host in phases):
        yield from _before_forward(context)
        return
    fetching = [host.times.get("data", Intervals.empty()) & context.typical for host in phases]
    fetching_ns = sum(time.total_ns for time in fetching)
    # If the recording of a rank is shorter than the window, only the recorded time counts.
    spans = zip(of_ranks, context.ranks.each(recorded_span), strict=True)
    whole_ns = sum((span & context.typical).total_ns * len(hosts) for hosts, span in spans)
    host_ratio = fetching_ns / max(1, whole_ns)
    claim = context.idle_for("data") if has_devices else _claim_without_devices(context, _fetching)
    share = context.share(claim)
    if share < (_MIN_WAITING_RATIO if has_devices else _MIN_HOST_RATIO):
        return
    who = "the GPU is idle" if has_devices else "training waits"
    yield Finding(
        title=Note.of(
            f"Input-bound: {who} during data loading for {{share:ratio}} of step time", share=share
        ),
        claims=(claim,),
        kind=Kind.MEASURED,
        evidence=(
            Note.of(
                "data loading in the main thread: {share:ratio} of step time ({data:ns} of "
                "{step:ns})",
                share=host_ratio,
                data=host_ratio * context.base.unit_ns,
                step=context.base.unit_ns,
            ),
        ),
        action=context.advice(
            pytorch="Give the DataLoader more workers (`num_workers`) and prefetch "
            "(`prefetch_factor`, `persistent_workers=True`). Move decoding and augmentation to the "
            "workers or the GPU, or preprocess the dataset offline.",
            other="Load the next batch in other threads or processes during GPU work, and "
            "preprocess the dataset offline.",
        ),
        caveat="The first fetch of each epoch starts the workers and is slower than the others.",
        window=context.longest_gap("data") if has_devices else "",
        ranges=("data",),
    )


def _before_forward(context: Context) -> Iterator[Finding]:
    """Yield the finding on unnamed work before forward passes, without ranges for data loading.

    Only for runs without devices: other rules explain the waits of devices.
    """
    claim = (
        _claim_without_devices(context, times_before_forward) if not context.devices else Claim({})
    )
    share = context.share(claim)
    if share < _MIN_HOST_RATIO:
        raise NotRecordedError(f"no range marks data loading: {_how_to_mark(context)}")
    work = context.rows(_work_before_forward, context.typical)
    main = [row for row in sums_by_operator(work).head(1).rows() if is_of_program(row["operator"])]
    if main and main[0]["ns"] > _MAIN_RATIO * claim.total_ns:
        yield _in_function(context, claim, main[0])
        return
    yield Finding(
        title=Note.of(
            "Unnamed work before the forward pass (possibly batch fetching) takes {share:ratio} of "
            "step time",
            share=share,
        ),
        claims=(claim,),
        kind=Kind.BOUNDED,
        evidence=(
            context.timed(claim.total_ns),
            Note.of(
                "the program uses no DataLoader, and no range names this work"
                if _has_hooks(context)
                else "no range marks data loading"
            ),
        ),
        action=f"Name this work, {_how_to_name(context)} if it loads data. Then load the next "
        "batch in another thread or process, or use a DataLoader with workers.",
        caveat="It can be any work that the program does between two steps.",
    )


def _work_before_forward(part: Trace, typical: Intervals) -> Table:
    """Return what the main threads did in the typical time before forward passes."""
    times = {process: time & typical for process, time in times_before_forward(part).items()}
    return work_of_main_threads(part, times)


def _in_function(context: Context, claim: Claim, main: Mapping[str, Any]) -> Finding:
    """Return the finding on work before forward passes that is mostly in one function."""
    return Finding(
        title=Note.of(
            "CPU work before the forward pass, mostly {function}, takes {share:ratio} of step time",
            function=main["operator"],
            share=context.share(claim),
        ),
        claims=(claim,),
        kind=Kind.BOUNDED,
        evidence=(
            context.timed(claim.total_ns),
            context.timed(
                main["ns"], after=" in {name}{mostly}", name=main["operator"], mostly=main["mostly"]
            ),
        ),
        action="Call this function less often, make it faster, or run it in another thread or "
        "process during the training step. If it makes batches, use DataLoader workers.",
        caveat="The profiler slows down functions that make many short calls.",
    )


def _how_to_mark(context: Context) -> str:
    """Return how to get ranges for data loading.

    If the recorder's hooks added the ranges, only the program can name more of them.
    """
    if _has_hooks(context):
        return (
            "the program uses no DataLoader, so traceprof cannot detect data loading; name it "
            f"{_how_to_name(context)}"
        )
    software = context.software
    if software.has_python and software.recorder not in (RecordedBy.JAX, RecordedBy.XLA):
        return "use `traceprof record`"
    return f"name it {_how_to_name(context)}"


def _how_to_name(context: Context) -> str:
    """Return how to name a range so that it counts as data loading."""
    recorder = RecordedBy.OWN if _has_hooks(context) else context.software.recorder
    return f"with {recorder.naming('data')}"


def _has_hooks(context: Context) -> bool:
    """Return whether `traceprof record` added the ranges; its hooks see every DataLoader."""
    return any((part.whole.ranges["domain"] == TRACEPROF_DOMAIN).any() for part in context.ranks)


def _fetching(part: Trace) -> dict[int, Intervals]:
    """Return the times of data loading of a trace, by process."""
    nothing = Intervals.empty()
    return {host.process: host.times.get("data", nothing) for host in find_host_phases(part)}


def _claim_without_devices(
    context: Context, times_of: Callable[[Trace], Mapping[int, Intervals]]
) -> Claim:
    """Return a claim on ``times_of`` the process with the longest time of each rank."""
    found, parts = {}, list(context.ranks)
    for place in context.places:
        times = times_of(parts[-1 - place]).values()
        found[place] = max(times, key=lambda time: time.total_ns, default=Intervals.empty())
    return context.unclaimed(found)
