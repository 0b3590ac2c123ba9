"""The ranks of a run put on one clock, their processes and devices told apart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from traceprof.model.elsewhere import change_each, measure_each
from traceprof.model.merge_samples import merge_environments, places_of_samples
from traceprof.model.placing import Placement, place, processes_in
from traceprof.model.ranks import Ranks
from traceprof.model.run import RunFiles
from traceprof.model.trace import Trace, TraceInfo
from traceprof.model.window import TimeWindow

__all__ = [
    "UNTIED_CLOCKS",
    "clock_offsets_ns",
    "device_ids",
    "merge_run",
    "place_run",
    "process_ids",
]

UNTIED_CLOCKS: Final = "the clocks of the ranks are not tied: times are each rank's own"
"""The warning about ranks of which no wall clock is known; aligned by collectives they are tied."""

_APART: Final = 100_000_000
"""Added to process ids of different hosts that happen to be equal; above any real one."""


def clock_offsets_ns(run: RunFiles) -> tuple[int, ...] | None:
    """Return what to add to each member's times to put all on one clock, by their wall clocks.

    None where a member does not know its wall clock. Wall clocks of hosts differ by up to
    milliseconds.
    """
    epochs = [member.trace.info.utc_epoch_ns for member in run]
    known = [epoch for epoch in epochs if epoch is not None]
    if len(known) < len(epochs) or not known:
        return None
    return tuple(epoch - min(known) for epoch in known)


def place_run(run: RunFiles, offsets_ns: Sequence[int] | None = None) -> Ranks:
    """Return the ranks of ``run`` on one clock.

    Args:
        run: at least one member.
        offsets_ns: what to add to the times of each member; left out, `clock_offsets_ns`, and
            where that knows nothing every member starts at its own time.

    Equal process ids of different members are told apart by adding multiples of 100 000 000;
    devices are renumbered in the order of the ranks where two members use the same number. A
    table counts as recorded where any member recorded it; warnings name those that did not.
    """
    if len(run) == 1 and offsets_ns is None:
        ranks = Ranks.of(run.members[0].trace)
        return ranks.with_warnings(*run.warnings) if run.warnings else ranks
    warnings = list(run.warnings)
    if offsets_ns is None:
        offsets_ns = clock_offsets_ns(run)
        if offsets_ns is None:
            warnings.append(UNTIED_CLOCKS)
            offsets_ns = [0] * len(run)
    processes, devices = process_ids(run), device_ids(run)
    environment = merge_environments(run)
    samples = places_of_samples(run, offsets_ns, processes, devices)
    recorded = frozenset[str]().union(*(member.trace.recorded for member in run))
    for name in sorted(recorded):
        without = [str(m.rank) for m in run if name not in m.trace.recorded]
        if without and name in ("kernels", "ranges", "collectives"):
            warnings.append(f"{name} of rank {', '.join(without)} were not recorded")
    span = _span(run, offsets_ns)
    placements = [
        (Placement(m.rank, m.local_rank, m.host, m.rack, *own, recorded, span, environment),)
        for m, own in zip(
            run, zip(offsets_ns, processes, devices, samples, strict=True), strict=True
        )
    ]
    placed = change_each([member.trace for member in run], place, placements)
    return Ranks(tuple(placed), _info(run, warnings, offsets_ns))


def merge_run(run: RunFiles, offsets_ns: Sequence[int] | None = None) -> Trace:
    """Return all ranks of ``run`` as one Trace (see `place_run`)."""
    return place_run(run, offsets_ns).merged()


def _span(run: RunFiles, offsets_ns: Sequence[int]) -> TimeWindow:
    spans = [
        (m.trace.span.start_ns + offset, m.trace.span.end_ns + offset)
        for m, offset in zip(run, offsets_ns, strict=True)
    ]
    return TimeWindow(min(start for start, _ in spans), max(end for _, end in spans))


def _info(run: RunFiles, warnings: Sequence[str], offsets_ns: Sequence[int]) -> TraceInfo:
    first = run.members[0].trace.info
    epochs = [
        m.trace.info.utc_epoch_ns - offset
        for m, offset in zip(run, offsets_ns, strict=True)
        if m.trace.info.utc_epoch_ns is not None
    ]
    hosts = dict.fromkeys(m.host or m.trace.info.host for m in run)
    own = [f"rank {m.rank}: {warning}" for m in run for warning in m.trace.info.warnings]
    return replace(
        first,
        path=run.label,
        host=", ".join(filter(None, hosts)),
        profiler=", ".join(dict.fromkeys(m.trace.info.profiler for m in run)),
        utc_epoch_ns=min(epochs, default=None),
        warnings=(*warnings, *own),
    )


def process_ids(run: RunFiles) -> list[dict[int, int]]:
    """Return the id that `place_run` gives each process of each member."""
    taken: set[int] = set()
    renamed = []
    for own in measure_each([member.trace for member in run], processes_in):
        new = {}
        for process in own:
            candidate = process
            while candidate in taken:
                candidate += _APART
            new[process] = candidate
        taken.update(new.values())
        renamed.append(new)
    return renamed


def device_ids(run: RunFiles) -> list[dict[int, int]]:
    """Return the number that `place_run` gives each device of each member.

    It is its own where no two are equal.
    """
    own = [
        [int(device) for device in m.trace.devices.loc[m.trace.devices["used"] == 1, "device"]]
        for m in run
    ]
    flat = [device for devices in own for device in devices]
    if len(set(flat)) == len(flat):
        return [{device: device for device in devices} for devices in own]
    numbers = iter(range(len(flat)))
    return [{device: next(numbers) for device in devices} for devices in own]
