"""The rule on a training thread that waits for a CPU core: its advice comes before all other."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace
from typing import Final

import numpy as np

from traceprof.errors import NotRecordedError
from traceprof.findings.amounts import STEPS
from traceprof.findings.claims import Kind
from traceprof.findings.context import Context
from traceprof.findings.rules import Finding, rule
from traceprof.measures.rows import rows_by
from traceprof.measures.steps.ledger import SLOW, USUAL
from traceprof.measures.steps.measured import measured_steps
from traceprof.model.results import Note

_MIN_WAIT_RATIO: Final = 0.2
"""Below this share, advice on the rest of the step is still right."""
_TIMES: Final = ("cpu_ns", "cpu_wait_ns", "period_ns")
ACTION: Final = (
    "Free CPU cores: stop other programs (`top`), use fewer threads (`OMP_NUM_THREADS`) and "
    "DataLoader workers than cores, or raise the CPU limit of the container or job. Then record "
    "again."
)


@rule(
    "CPU availability",
    "the training thread waits for a CPU core",
    about=STEPS,
    show="steps",
)
def cpu_shortage(context: Context) -> Iterator[Finding]:
    """Find a training thread that is ready to run and waits for a CPU core."""
    if not len(context.steps):
        return
    table = measured_steps(context.ranks).table
    if not set(_TIMES) <= table.columns.keys():
        raise NotRecordedError("not recorded: use `traceprof record` on Linux")
    counted = np.isin(context.kinds, (USUAL, SLOW)) & np.isfinite(table["cpu_wait_ns"])
    means = {
        process: [float(table[name][rows][counted[rows]].mean()) for name in _TIMES]
        for process, rows in rows_by(table, "process").items()
        if counted[rows].any()
    }
    if not means:
        raise NotRecordedError("no usual step has recorded CPU times")
    # Waiting at a reading can count for the step before it: both times are at most the step.
    waits = {
        process: min(wait, period - ran) / period for process, (ran, wait, period) in means.items()
    }
    worst = max(waits, key=lambda process: waits[process])
    if waits[worst] < _MIN_WAIT_RATIO:
        return
    ran_ns, _, period_ns = means[worst]
    late = [process for process, ratio in waits.items() if ratio >= _MIN_WAIT_RATIO]
    places = _places_of(context, late)
    # All lost time is claimed: the waiting makes every kind of CPU work longer.
    claim = context.unclaimed(
        {place: context.analyzed_by_place[place] & context.typical for place in places}
    )
    lost_ratio = context.share(claim) * len(context.places) / max(1, len(places))
    attributed = min(1.0, waits[worst] / lost_ratio) if lost_ratio else 0.0
    yield Finding(
        title=Note.of(
            "CPU shortage: the training thread of process {process} got {got:ratio} of a CPU core, "
            "and waited for a core for {wait:ratio} of step time",
            process=worst,
            got=ran_ns / period_ns,
            wait=waits[worst],
        ),
        claims=(replace(claim, attributed_ratio=attributed),),
        kind=Kind.BOUNDED,
        evidence=(
            Note.of(
                "the thread ran for {ran:ns} and waited for {wait:ns} of a step of "
                "{period:ns} (means of {n:count} steps)",
                ran=ran_ns,
                wait=waits[worst] * period_ns,
                period=period_ns,
                n=int(counted[table["process"] == worst].sum()),
            ),
            *(
                [Note.of("{n:count} of {of:count} processes wait", n=len(late), of=len(waits))]
                if len(waits) > 1
                else []
            ),
        ),
        action=ACTION,
        caveat="The CPU shortage makes all CPU work longer. Other findings on this trace can be "
        "effects of it.",
        other_subjects=("step time variation", "input pipeline", "CPU work between launches"),
        is_first=True,
    )


def _places_of(context: Context, processes: Collection[int]) -> list[int]:
    """Return the devices of processes; without devices, the places of their ranks."""
    if context.devices:
        devices = {device for process, device in context.process_devices if process in processes}
        return [place for place in context.places if place in devices]
    parts = list(context.ranks)
    return [
        place
        for place in context.places
        if np.isin(parts[-1 - place].ranges["process"], list(processes)).any()
    ]
