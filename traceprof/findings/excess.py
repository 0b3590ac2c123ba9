"""Finds the work that explains most of the excess of a slow step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from traceprof.findings.contention import BESIDE_COPIES, SPREAD_COPIES, host_copies
from traceprof.findings.context import Context
from traceprof.findings.host_work import advice_on_call
from traceprof.findings.rules import SUBJECTS
from traceprof.findings.stalls import subject_and_advice
from traceprof.measures.composition import COLLECTIVE, KERNEL, REST, composition_of_devices
from traceprof.measures.device.times import device_times, devices_of_processes
from traceprof.measures.idle.charges import NOTHING
from traceprof.model.activity import BUSY_PARTS, IDLE
from traceprof.model.grouping import grouped_by
from traceprof.model.table import Table, objects
from traceprof.model.timing import TimeWindow
from traceprof.model.trace import Trace
from traceprof.names.kernels import short_name
from traceprof.names.ranges import common_categories

_MIN_EXPLAINED_RATIO: Final = 0.5
_MIN_NAMED_RATIO: Final = 0.1
_MAX_NAMES_SHOWN: Final = 3
_COMPUTE: Final = BUSY_PARTS[0]
_ADVICE: Final[Mapping[str, str]] = {
    SUBJECTS[
        "data"
    ]: "These steps wait for data: use more workers, prefetching, or faster storage.",
    SUBJECTS["synchronizing"]: "Remove the synchronizing calls in these steps (`.item()`, "
    "`.cpu()`, `torch.cuda.synchronize()`), or make them in another thread.",
    SUBJECTS["exposed_transfer"]: "Copy less data in these steps, from and to pinned memory "
    "(`pin_memory=True`), with `non_blocking=True` on a separate stream.",
    SUBJECTS["exposed_communication"]: "Find out in these steps which rank is late, or whether the "
    "network is slow (`traceprof explain TRACE slowest`).",
    BESIDE_COPIES: f"Copies between CPU and GPU slow the kernels of these steps. {SPREAD_COPIES}",
}
"""Advice on work in slow steps, by subject."""
_COMPARE_KERNELS: Final = (
    "Compare the kernels of these steps with a usual step (`traceprof explain TRACE slowest`). "
    "More kernels: evaluation or other extra work. Longer kernels: larger inputs or lower clocks."
)


@dataclass(frozen=True, slots=True)
class ExcessCause:
    """The work that explains most of the excess of a slow step on one process.

    ``part`` is the part of GPU time that grew. ``names`` are the names with the most growth (none
    if all kernels take longer), ``kind`` is the kind of the first (of `composition_of_devices`),
    and ``ns`` is their growth, the mean over the GPUs of the process. ``subject`` is the subject of
    the rules on this work ("" if there is none).
    """

    part: str
    kind: str
    subject: str
    names: tuple[str, ...]
    ns: float

    @property
    def noun(self) -> str:
        """The subject of the cause, for a title."""
        return self.subject or self.part.replace("_", " ")

    @property
    def words(self) -> str:
        """The evidence, with the placeholders cause (the names) and cause_ns."""
        if self.part == IDLE:
            return "the CPU is in {cause} while the GPU is idle (+{cause_ns:ns})"
        if self.subject == BESIDE_COPIES:
            return "{cause} during copies between CPU and GPU (+{cause_ns:ns})"
        if self.kind in (KERNEL, COLLECTIVE):
            return "{cause} (+{cause_ns:ns})"
        return "copies: {cause} (+{cause_ns:ns})"

    def advice(self, context: Context) -> str:
        """Return the advice on the cause."""
        if self.part != IDLE:
            return _ADVICE.get(self.subject, _COMPARE_KERNELS)
        name, see = self.names[0], "(`traceprof explain TRACE slowest`)"
        _, advice = subject_and_advice(context, name)
        return (
            advice
            or _ADVICE.get(self.subject, "")
            or advice_on_call(name)
            or f"Find out what takes longer in {name} in these steps {see}."
        )


def find_cause(
    context: Context, process: int, window: TimeWindow, excess_ns: float
) -> ExcessCause | None:
    """Return the work that explains at least half of the excess of a step of a process.

    ``window`` is the time of the step on the devices. The step is compared with the usual step of
    the process that has the median duration. Returns None if no recorded work explains the excess.
    """
    usual = context.steps.table.take(context.is_usual)
    usual = usual.take(usual["process"] == process)
    if usual.empty or not context.is_idle_known:
        return None
    lengths = usual["device_end_ns"] - usual["device_start_ns"]
    row = usual.row(int(np.argsort(lengths, kind="stable")[(len(lengths) - 1) // 2]))
    reference = TimeWindow(row["device_start_ns"], row["device_end_ns"])
    cause = _find_largest(context, process, (row, reference), window, excess_ns)
    if cause is None or cause.part != _COMPUTE:
        return cause
    before, after = (sum(context.ranks.each(_copying_ns, process, w)) for w in (reference, window))
    is_beside = after - before >= _MIN_EXPLAINED_RATIO * excess_ns
    return replace(cause, subject=BESIDE_COPIES) if is_beside else cause


def _copying_ns(trace: Trace, process: int, window: TimeWindow) -> int:
    """Return the compute time of the devices of a process in which copies to or from the CPU run.

    The time is a mean over the devices.
    """
    times, copies = device_times(trace.whole), host_copies(trace.whole)
    devices = devices_of_processes(trace.whole).get(process, ())
    both = [
        (times[device].compute & copies[device]).clip(window.start_ns, window.end_ns).total_ns
        for device in devices
        if device in copies and device in times
    ]
    return sum(both) // max(1, len(both))


def _find_largest(
    context: Context,
    process: int,
    usual: tuple[dict[str, Any], TimeWindow],
    window: TimeWindow,
    excess_ns: float,
) -> ExcessCause | None:
    """Return the work with most of the excess; ``usual`` is a usual step and its device time."""
    row, reference = usual
    on_host = TimeWindow(row["start_ns"], row["end_ns"])
    wide = set[str]().union(*context.ranks.each(_wide_names, process, on_host))
    rows = _with_subjects(context, _growth(context, process, reference, window))
    rows = rows.take(~np.isin(rows["name"], (NOTHING, "", *wide)) & (rows["kind"] != REST))
    _, groups = grouped_by(rows, "part", "subject")
    sums = groups.sums(rows["ns"])
    if not len(sums):
        return None
    found = rows.take(groups.number == sums.argmax()).in_order("-ns")
    shown = found.take(found["ns"] >= _MIN_NAMED_RATIO * excess_ns).head(_MAX_NAMES_SHOWN)
    least_ns, first = _MIN_EXPLAINED_RATIO * excess_ns, found.row(0)
    # All kernels of a step can take longer: then no name explains the excess.
    if sums.max() >= least_ns > shown["ns"].sum() and first["part"] == _COMPUTE:
        return ExcessCause(_COMPUTE, KERNEL, "", (), float(sums.max()))
    if min(sums.max(), shown["ns"].sum()) < least_ns:
        return None
    names = map(short_name, shown["name"]) if first["kind"] == KERNEL else shown["name"]
    return ExcessCause(
        first["part"],
        first["kind"],
        first["subject"],
        tuple(dict.fromkeys(names)),
        float(shown["ns"].sum()),
    )


def _with_subjects(context: Context, rows: Table) -> Table:
    """Return ``rows`` of `_growth` with their subject, without idle time that has no subject."""
    is_idle = rows["part"] == IDLE
    subjects = objects(
        (idle and subject_and_advice(context, name)[0]) or SUBJECTS.get(kind if idle else part, "")
        for idle, part, kind, name in zip(
            is_idle.tolist(), rows["part"], rows["kind"], rows["name"], strict=True
        )
    )
    return rows.assign(subject=subjects).take(~is_idle | (subjects != ""))


def _growth(context: Context, process: int, reference: TimeWindow, window: TimeWindow) -> Table:
    """Return part, kind, name, and the ns that ``window`` has more than ``reference``.

    The ns are means over the GPUs of the process.
    """
    ranks = context.ranks.whole
    devices = [
        (place, device)
        for place, part in enumerate(ranks.parts)
        for device in devices_of_processes(part).get(process, ())
    ]
    before, after = (
        composition_of_devices(ranks, dict.fromkeys(devices, span), knows_waits=False)
        for span in (reference, window)
    )
    both = Table.stacked([after, before.assign(ns=-before["ns"])])
    keys, groups = grouped_by(both, "part", "kind", "name")
    return keys.assign(ns=groups.sums(both["ns"]) / max(1, len(devices)))


def _wide_names(trace: Trace, process: int, step: TimeWindow) -> set[str]:
    """Return the names of host spans that contain a usual ``step`` of a process on the host.

    Such a span is around the step or around the whole loop, so it does not explain a slow step.
    """
    found: list[str] = []
    for table in (trace.whole.ranges, trace.whole.host_ops, trace.whole.functions):
        is_wide = (table["start_ns"] <= step.start_ns) & (table["end_ns"] >= step.end_ns)
        is_wide &= table["process"] == process
        found += table.select("name").take(is_wide)["name"].distinct()
    return set(common_categories(objects(found))[0].tolist())
