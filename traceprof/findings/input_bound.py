"""A rule on devices that wait while the host loads data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Final

import numpy as np

from traceprof.errors import NotRecordedError
from traceprof.findings.binding import WORKERS, loaders_of
from traceprof.findings.claims import Claim, Kind, union_by_device
from traceprof.findings.context import Context
from traceprof.findings.gaps import note_on_samples, recorded_span, sums_by_operator
from traceprof.findings.kernel_times import summed
from traceprof.findings.rules import Finding, rule
from traceprof.measures.host.states import find_host_phases, times_before_forward
from traceprof.measures.idle.charges import work_of_main_threads
from traceprof.measures.idle.lanes import functions_without_launches
from traceprof.measures.rows import bounds, union_of
from traceprof.model.intervals import Intervals
from traceprof.model.results import Note
from traceprof.model.table import Table
from traceprof.model.timing import TRACEPROF_DOMAIN
from traceprof.model.trace import RecordedBy, Trace
from traceprof.names.functions import is_function

_MIN_WAITING_RATIO: Final = 0.02
_MAX_FUNCTIONS: Final = 3
_MAX_OPEN_FACTOR: Final = 1.5
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
    is_behind_workers = loaders_of(context) == {WORKERS}
    loading = "waiting for the DataLoader workers" if is_behind_workers else "data loading"
    yield Finding(
        title=Note.of(
            f"Input-bound: {who} during data loading for {{share:ratio}} of step time", share=share
        ),
        claims=(claim,),
        kind=Kind.MEASURED,
        evidence=(
            Note.of(
                f"{loading} in the main thread: {{share:ratio}} of step time ({{data:ns}} of "
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
    """Yield findings on functions of the program, and on other work before forward passes.

    Only for runs without devices and without ranges for data loading: other rules explain the waits
    of devices.
    """
    nothing, found = Claim({}), list(() if context.devices else _in_functions(context))
    yield from found
    taken = union_by_device(claim.times for finding in found for claim in finding.claims)
    claim = nothing if context.devices else _claim_without_devices(context, times_before_forward)
    claim = replace(
        claim,
        times={
            place: time - taken.get(place, Intervals.empty()) for place, time in claim.times.items()
        },
    )
    share = context.share(claim)
    if share < _MIN_HOST_RATIO:
        if not found:
            raise NotRecordedError(f"no range marks data loading: {_how_to_mark(context)}")
        return
    name = _main_name(context, claim)
    unmarked = "the program uses no DataLoader, and no range names this work"
    yield Finding(
        title=Note.of(
            "{name}, before the forward pass, takes {share:ratio} of step time"
            if name
            else "Unnamed work before the forward pass (possibly batch fetching) takes "
            "{share:ratio} of step time",
            share=share,
            **({"name": name} if name else {}),
        ),
        claims=(claim,),
        kind=Kind.BOUNDED,
        evidence=(
            context.timed(claim.total_ns),
            Note.of(
                unmarked if _has_hooks(context) and not name else "no range marks data loading"
            ),
        ),
        action=("" if name else f"Name this work, {_how_to_name(context)} if it loads data. ")
        + ("If this work makes the batch, make" if name else "Then make")
        + " the next batch in another thread or process, or use a DataLoader with workers.",
        caveat="It can be any work that the program does between two steps.",
    )


def _main_name(context: Context, claim: Claim) -> str:
    """Return the function or range of the program with most of ``claim``; "" if there is none."""
    parts = list(context.ranks)
    sums = Counter[str]()
    for place, times in claim.times.items():
        part = parts[-1 - place]
        processes = np.unique(part.ranges["process"]).tolist()
        work = work_of_main_threads(part, dict.fromkeys(processes, times))
        is_named = work["operator"].isin(tuple(part.ranges["name"].distinct()))
        is_named |= np.fromiter(map(is_function, work["operator"]), np.bool_, len(work))
        named = work.take(is_named)
        for row in summed(named, named["ns"], "operator").rows():
            sums[row["operator"]] += row["ns"]
    name, ns = next(iter(sums.most_common(1)), ("", 0))
    opened_ns = sum(context.ranks.each(_open_ns, name, context.typical))
    # A range or function around the whole step does not name this work.
    return name if 2 * ns > claim.total_ns and opened_ns < _MAX_OPEN_FACTOR * ns else ""


def _open_ns(part: Trace, name: str, typical: Intervals) -> int:
    """Return the typical time in which a range or function of this name is open."""
    rows = [bounds(table.take(table["name"] == name)) for table in (part.ranges, part.functions)]
    times = [Intervals.union_of(*of_table) for of_table in rows]
    return ((times[0] | times[1]) & typical).total_ns


def _in_functions(context: Context) -> Iterator[Finding]:
    """Yield findings on the functions of the program with the most time of the main thread."""
    parts = list(context.ranks)
    works = {
        place: _work_of_program(parts[-1 - place], context.typical) for place in context.places
    }
    work = Table.stacked(list(works.values()))
    sums = sums_by_operator(summed(work, work["ns"], "name", "operator"))
    for row in sums.head(_MAX_FUNCTIONS).rows():
        claim = context.unclaimed(
            {
                place: union_of(work.take(np.asarray(work["operator"] == row["operator"])))
                for place, work in works.items()
            }
        )
        share = context.share(claim)
        if share < _MIN_HOST_RATIO:
            return
        yield Finding(
            title=Note.of(
                "Python function {function} takes {share:ratio} of step time",
                function=row["operator"],
                share=share,
            ),
            claims=(claim,),
            kind=Kind.BOUNDED,
            evidence=(
                context.timed(
                    row["ns"],
                    after=" in {name}{mostly}",
                    name=row["operator"],
                    mostly=row["mostly"],
                ),
                *note_on_samples(context),
            ),
            action="Call this function less often, make it faster, or run it in another thread or "
            "process during the training step. If it makes batches, use DataLoader workers.",
            caveat="The profiler slows down functions that make many short calls.",
        )


def _work_of_program(part: Trace, typical: Intervals) -> Table:
    """Return the typical time of the main threads in functions that run no operator."""
    processes = np.unique(part.functions["process"]).tolist()
    work = work_of_main_threads(part, dict.fromkeys(processes, typical))
    return work.take(work["operator"].isin(tuple(functions_without_launches(part))))


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
