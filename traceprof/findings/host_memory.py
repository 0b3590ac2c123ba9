"""The rule on a process whose host memory grows in every part of the recording."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

import numpy as np

from traceprof.errors import NotRecordedError
from traceprof.findings.amounts import STEPS
from traceprof.findings.claims import Kind
from traceprof.findings.context import Context
from traceprof.findings.rules import Finding, rule
from traceprof.measures.device.counters import samples_named
from traceprof.measures.rows import rows_by
from traceprof.model.ranks import Ranks
from traceprof.model.results import Note
from traceprof.model.table import Table

_SAMPLES: Final = re.compile("memory_bytes")
_SOURCE: Final = "process:"
_N_PARTS: Final = 5
_MIN_PART_SAMPLES: Final = 2
_MIN_PART_GROWTH_RATIO: Final = 0.5
"""Minimum growth from each part to the next one, as a share of the mean growth of all parts."""
_MIN_GROWTH_RATIO: Final = 0.1
_MIN_GROWTH_BYTES: Final = 64e6
_MAX_NOTED_S: Final = 7 * 86400
_LIMITS: Final = {
    "address_space_limit_bytes": "`ulimit -v`",
    "ram_limit_bytes": "cgroup",
    "ram_bytes": "RAM",
}


class Growth(NamedTuple):
    """The growth of the memory of a process: bytes per step, and its first and last level."""

    process: int
    per_step_bytes: float
    first_bytes: float
    last_bytes: float
    steps_count: int
    step_ns: float


@rule(
    "host memory",
    "a process whose memory grows with every step",
    about=STEPS,
    show="steps",
)
def host_memory_growth(context: Context) -> Iterator[Finding]:
    """Find processes whose memory grows until the end of the analyzed steps."""
    if not len(context.steps):
        return
    samples = samples_named(context.ranks, _SAMPLES)
    measured = [
        measure_growth(steps, samples.take(samples["source"] == f"{_SOURCE}{process}"), process)
        for process, steps in _steps_by_process(context.steps.table).items()
    ]
    found = [growth for growth in measured if growth is not None]
    if not found:
        raise NotRecordedError(
            f"fewer than {_N_PARTS * _MIN_PART_SAMPLES} samples of process memory during the steps"
        )
    growing = [growth for growth in found if growth.per_step_bytes]
    if not growing:
        return
    worst = max(growing, key=lambda growth: growth.per_step_bytes / growth.step_ns)
    several = [
        Note.of("{n:count} of {of:count} processes grow", n=len(growing), of=len(found))
        for _ in growing[1:2]
    ]
    yield Finding(
        title=Note.of(
            "Host memory of process {process} grows by {bytes:bytes} per step",
            process=worst.process,
            bytes=worst.per_step_bytes,
        ),
        claims=(),
        kind=Kind.NONE,
        evidence=(
            Note.of(
                "from {first:bytes} to {last:bytes} in {n:count} steps, without a decrease",
                first=worst.first_bytes,
                last=worst.last_bytes,
                n=worst.steps_count,
            ),
            *_notes_on_limit(context.ranks, worst, sum(_rate(growth) for growth in growing)),
            *several,
        ),
        action="Find the objects that the loop keeps: store `loss.item()` instead of `loss`, call "
        "`.detach().cpu()` before you append outputs to a list, and limit caches. Compare two "
        "`tracemalloc` snapshots, or `len(gc.get_objects())`, some steps apart.",
        caveat="A cache that is still filling also grows. Record more steps to see whether the "
        "growth ends.",
        is_first=True,
    )


def _steps_by_process(steps: Table) -> Mapping[int, Table]:
    return {process: steps.take(rows) for process, rows in rows_by(steps, "process").items()}


def measure_growth(steps: Table, samples: Table, process: int) -> Growth | None:
    """Return the growth of a process during ``steps``; None if there are too few samples.

    The samples are split into parts with equal numbers of samples. The growth is 0 unless the
    smallest level rises from each part to the next one. So memory that is freed again, a warm-up,
    and a cache that is full do not count.
    """
    starts, ends = np.sort(steps["start_ns"]), steps["end_ns"]
    inside = (samples["start_ns"] >= starts[0]) & (samples["start_ns"] <= ends.max())
    times, levels = samples["start_ns"][inside], samples["value"][inside]
    if len(times) < _N_PARTS * _MIN_PART_SAMPLES or len(starts) < _N_PARTS:
        return None
    lows = np.array([part.min() for part in np.array_split(levels, _N_PARTS)])
    rises, number = np.diff(lows), np.interp(times, starts, np.arange(len(starts)))
    growth, n_steps = float(levels[-1] - levels[0]), float(number[-1] - number[0])
    grows = (
        rises.min() >= _MIN_PART_GROWTH_RATIO * rises.mean() > 0
        and growth >= max(_MIN_GROWTH_BYTES, _MIN_GROWTH_RATIO * levels[0])
        and n_steps > 0
    )
    slope = float(np.polyfit(number, levels, 1)[0]) if grows else 0.0
    step_ns = float(ends.max() - starts[0]) / len(starts)
    return Growth(process, slope, float(levels[0]), float(levels[-1]), round(n_steps), step_ns)


def _rate(growth: Growth) -> float:
    """Return the growth in bytes per ns."""
    return growth.per_step_bytes / growth.step_ns


def _notes_on_limit(ranks: Ranks, worst: Growth, rate: float) -> Iterator[Note]:
    """Yield when the growth of all processes reaches the memory limit, if the limit is known."""
    limit = memory_limit(ranks)
    if limit is None:
        yield Note("the memory limit of the machine is not recorded")
        return
    limit_bytes, kind = limit
    left_ns = max(0.0, limit_bytes - worst.last_bytes) / rate
    text = "at this rate, memory reaches the {kind} limit of {limit:bytes} "
    if left_ns > _MAX_NOTED_S * 1e9:
        text += "after more than a week"
    else:
        text += "about {left:ns} ({n:count} steps) after the last sample"
    yield Note.of(
        text,
        limit=limit_bytes,
        kind=kind,
        left=left_ns,
        n=round(left_ns / worst.step_ns),
    )


def memory_limit(ranks: Ranks) -> tuple[int, str] | None:
    """Return the smallest recorded memory limit, in bytes, and its kind; None if none is known."""
    environment = ranks.whole.table("environment")
    facts = zip(environment["name"], environment["value"], strict=True)
    known = [
        (int(value), _LIMITS[name])
        for name, value in facts
        if name in _LIMITS and value.isdecimal() and int(value)
    ]
    return min(known, default=None)
