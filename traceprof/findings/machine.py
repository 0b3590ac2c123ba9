"""Notes on the machine in slow steps and of late ranks: GPU clocks, CPU time, and memory."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from traceprof.findings.context import Context
from traceprof.measures.collectives.members import find_members
from traceprof.measures.rows import mean_of
from traceprof.measures.steps.measured import measured_steps
from traceprof.model.results import Note
from traceprof.model.table import Table, is_known

_MIN_CPU_WAIT_RATIO: Final = 0.3
"""Minimum share of the excess of slow steps in which their thread waits for a CPU core."""
_MAX_CLOCK_RATIO: Final = 0.97
"""GPU clocks vary by some steps of 15 MHz without any reason."""
_ALLOCATOR_COUNTERS: Final = {
    "alloc_retries_count": "ran out of memory, freed its cache, and retried",
    "device_alloc_count": "requested memory from the GPU driver",
}
_LIMITS: Final = {"power_limit_ratio": "power", "heat_limit_ratio": "heat"}
_UNITS: Final = {"temperature_celsius": "°C", "power_watts": "W"}


def notes_on_machine(
    table: Table, slow: npt.NDArray[np.int64], usual: npt.NDArray[Any]
) -> Iterator[Note]:
    """Yield notes on clocks, throttling, and memory allocation that differ in the slow steps.

    ``slow`` and ``usual`` select rows of ``table``, the table of `MeasuredSteps`.
    """
    slow_rows, usual_rows = table.take(slow), table.take(usual)
    yield from _notes_on_clock(slow_rows, usual_rows)
    yield from notes_on_allocator(table, slow, usual)
    if cpu_wait_ratio(table, slow, usual):
        yield Note.of(
            "the training thread waits for a CPU core for {wait:ns} per step, and for {typical:ns} "
            "in the other steps",
            wait=mean_of(slow_rows["cpu_wait_ns"]),
            typical=mean_of(usual_rows["cpu_wait_ns"]),
        )


def _notes_on_clock(slow: Table, usual: Table) -> Iterator[Note]:
    """Yield a note on a lower clock, with the limits, the temperature, and the power then."""
    if "sm_clock_mhz" not in slow or not is_known(slow["sm_clock_mhz"]).any():
        return
    clock, typical = (float(np.nanmedian(rows["sm_clock_mhz"])) for rows in (slow, usual))
    if not clock < _MAX_CLOCK_RATIO * typical:
        return
    text = "the GPU clock was {clock:count} MHz instead of {typical:count} MHz"
    values: dict[str, Any] = {"clock": round(clock), "typical": round(typical)}
    for name, words in _LIMITS.items():
        share = mean_of(slow[name]) if name in slow else 0.0
        if share > 0:
            text += f", limited by {words} {{{name}:ratio}} of the time"
            values[name] = share
    for name, unit in _UNITS.items():
        sides = [
            rows[name] for rows in (slow, usual) if name in rows and is_known(rows[name]).any()
        ]
        if len(sides) == 2:
            there, usually = (round(float(np.nanmedian(side))) for side in sides)
            if there == usually:
                continue
            text += f", at {{{name}:count}} {unit} instead of {{{name}_usual:count}} {unit}"
            values |= {name: there, f"{name}_usual": usually}
    yield Note.of(text, **values)


def cpu_wait_ratio(table: Table, slow: npt.NDArray[np.int64], usual: npt.NDArray[Any]) -> float:
    """Return the share of the excess of ``slow`` steps that is waiting for a CPU core; 0: little.

    NaN and unknown times count as 0.
    """
    if not {"cpu_wait_ns", "period_ns"} <= table.columns.keys():
        return 0.0
    wait_ns, period_ns = (
        mean_of(table[name][slow]) - mean_of(table[name][usual])
        for name in ("cpu_wait_ns", "period_ns")
    )
    ratio = wait_ns / period_ns if period_ns > 0 else 0.0
    return float(ratio) if ratio >= _MIN_CPU_WAIT_RATIO else 0.0


def notes_on_allocator(
    table: Table, slow: npt.NDArray[np.int64], usual: npt.NDArray[Any]
) -> Iterator[Note]:
    """Yield notes on counters of PyTorch's memory allocator that are higher in the slow steps."""
    slow_rows, usual_rows = table.take(slow), table.take(usual)
    for name, words in _ALLOCATOR_COUNTERS.items():
        if name in table and mean_of(slow_rows[name]) > np.nan_to_num(mean_of(usual_rows[name])):
            count = int(np.nansum(slow_rows[name]))
            yield Note.of(f"in these steps, PyTorch {words} {{n:count}} time(s)", n=count)


def notes_on_clock(context: Context, places: Collection[int]) -> Iterator[Note]:
    """Yield a note if the GPUs of the late ranks have a lower clock than the GPUs of the others."""
    members = find_members(context.ranks)
    table = measured_steps(context.ranks).table
    is_slow = np.isin(table["process"], [members[place].process for place in places])
    if "sm_clock_mhz" in table and is_slow.any() and not is_slow.all():
        notes = notes_on_machine(table, np.flatnonzero(is_slow), np.flatnonzero(~is_slow))
        yield from (note for note in notes if "clock" in note.values)
